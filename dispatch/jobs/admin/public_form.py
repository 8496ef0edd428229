"""Admin pages of the public form, and the links to technicians' pages in the technician admin."""

from __future__ import annotations

from typing import Any

from django.conf import settings
from django.contrib import admin, messages
from django.db import transaction
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse
from django.urls import reverse
from django.utils.html import format_html
from django.utils.translation import gettext, ngettext
from django.utils.translation import gettext_lazy as _
from unfold.decorators import action

from accounts.admin.extensions import extend_admin
from accounts.admin.organizations import OrganizationAdmin
from accounts.models import Organization
from dispatch.core.labels import label, translate_label
from dispatch.core.stored_texts import mark_stored
from dispatch.jobs import signed_links
from dispatch.jobs.admin.config import ConfigAdmin
from dispatch.jobs.models import PublicForm
from dispatch.jobs.services import sms
from dispatch.technicians import services as technicians
from dispatch.technicians.admin.technicians import TechnicianAdmin
from dispatch.technicians.models import Technician
from dispatch.telephony.services import NoTextNumber, TextNotAllowed


@admin.register(PublicForm)
class PublicFormAdmin(ConfigAdmin):
    """One form per organization, with its address and its HTML snippet."""

    subject = "public_form"
    list_display = ["__str__", "is_on", "address", "per_hour"]
    list_filter = ["is_on"]
    readonly_fields = ["address", "snippet"]
    fieldsets = [
        (None, {"fields": ["is_on", "address", "heading", "intro", "thanks", "asks_urgency"]}),
        (_("On your website"), {"fields": ["snippet", "embed_origins"]}),
        (_("Limits"), {"fields": ["per_hour"]}),
    ]

    def get_queryset(self, request: HttpRequest) -> QuerySet:
        return super().get_queryset(request).select_related("organization")

    def formfield_for_dbfield(self, db_field: Any, request: Any, **kwargs: Any) -> Any:
        field = super().formfield_for_dbfield(db_field, request, **kwargs)
        if db_field.name in ("intro", "thanks", "embed_origins"):
            field.widget.attrs["rows"] = 3
        return field

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False  # switch the form off instead

    @admin.display(description=label("address"))
    def address(self, row: PublicForm) -> str:
        if not row.pk:
            return gettext("Save to see the address.")
        url = _address("form", row)
        return format_html('<a href="{}" target="_blank" rel="noopener">{}</a>', url, url)

    @admin.display(description=label("HTML for your website"))
    def snippet(self, row: PublicForm) -> str:
        if not row.pk:
            return gettext("Save to see the snippet.")
        return format_html('<code class="block break-all select-all">{}</code>', snippet(row))


def snippet(row: PublicForm) -> str:
    """Return the HTML that embeds the form in a website. Adding `?service=<code>` prefills the service."""
    return (
        f'<iframe src="{_address("embed", row)}" title="Request a technician" loading="lazy" '
        'style="width: 100%; max-width: 600px; height: 980px; border: 0"></iframe>'
    )


def _address(name: str, row: PublicForm) -> str:
    return f"{settings.PUBLIC_BASE_URL}{reverse(f'pages:{name}', args=[row.organization.slug])}"


@extend_admin(Organization)
class OrganizationWithFormAdmin(OrganizationAdmin):
    """Organizations with a link to their public form."""

    def get_fields(self, request: HttpRequest, obj: Any = None) -> list:
        fields = list(super().get_fields(request, obj))
        return [*fields, "public_form_is"] if obj else fields

    def get_readonly_fields(self, request: HttpRequest, obj: Any = None) -> list:
        return [*super().get_readonly_fields(request, obj), "public_form_is"]

    @admin.display(description=label("public form"))
    def public_form_is(self, organization: Organization) -> str:
        row = PublicForm.objects.of(organization).select_related("organization").first()
        if row is None:
            url = reverse("admin:jobs_publicform_add")
            words = gettext('None yet. <a href="{}?organization={}">Create form</a>')
            return format_html(words, url, organization.pk)
        state, address = translate_label("On") if row.is_on else translate_label("Off"), _address("form", row)
        url = reverse("admin:jobs_publicform_change", args=[row.pk])
        return format_html(gettext('{}, at {}. <a href="{}">Edit or embed</a>'), state, address, url)


@extend_admin(Technician)
class TechnicianWithPageAdmin(TechnicianAdmin):
    """Technicians with a link to their own page."""

    actions = [*TechnicianAdmin.actions, "send_links"]
    actions_detail = [*TechnicianAdmin.actions_detail, "show_link", "void_links"]

    @admin.action(description=_("Text the link to their page"), permissions=["act"])
    def send_links(self, request: Any, queryset: QuerySet) -> None:
        sent = 0
        for technician in queryset.filter(is_active=True).select_related("organization"):
            try:
                with transaction.atomic():
                    sms.send_link(technician, actor=request.actor)
                sent += 1
            except NoTextNumber:
                messages.error(request, gettext("No number may send texts. Turn on texts for a number first."))
                break
            except TextNotAllowed as refused:
                messages.warning(
                    request,
                    gettext("{name} was not texted: {reason}.").format(
                        name=technician.name, reason=refused.reason
                    ),
                )
        if sent:
            messages.success(
                request,
                ngettext(
                    "Texting the link to {count} technician.", "Texting the link to {count} technicians.", sent
                ).format(count=sent),
            )

    @action(
        description=_("Link to their page"),
        permissions=["act"],
        dialog={
            "title": _("Show the link to this technician's page?"),
            "description": _(
                "Anyone with the link can answer offers, set duty and close jobs as this technician."
            ),
        },
    )
    def show_link(self, request: HttpRequest, form: Any, object_id: str) -> HttpResponse:
        technician = self.get_object(request, object_id)
        self.log_change(request, technician, mark_stored("Viewed the link to the technician's page."))
        link = signed_links.technician_url(technician)
        return HttpResponse(format_html('<div id="dialog-form"><p><code>{}</code></p></div>', link))

    @action(
        description=_("Revoke links to their page"),
        permissions=["act"],
        dialog={
            "title": _("Revoke all links to this technician's page?"),
            "description": _("Use this for a lost phone, then send a new link."),
        },
    )
    def void_links(self, request: Any, form: Any, object_id: str) -> HttpResponse:
        technicians.void_links(int(object_id), actor=request.actor)
        self.log_change(
            request, self.get_object(request, object_id), mark_stored("Revoked the links to their page.")
        )
        messages.success(request, gettext("Previously issued links are now invalid."))
        return self.back_to(object_id)
