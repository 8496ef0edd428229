"""Create and revoke portal links in the admin."""

from __future__ import annotations

from typing import Any

from django import forms
from django.contrib import admin, messages
from django.core.exceptions import ValidationError
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _
from unfold.decorators import display
from unfold.widgets import UnfoldAdminIntegerFieldWidget

from accounts.admin.base import EVERYTHING, OwnedAdmin, OwnedForm, render_secret_once
from dispatch.core.labels import BadgeColors, label, translate_label
from dispatch.outbox.api.portal import portal_url
from dispatch.outbox.models import Endpoint, PortalLink
from dispatch.outbox.services import portal

HOURS = 3600

STATE_COLORS = BadgeColors(
    {"new": "info", "open": "success", "used": "warning", "expired": "warning", "revoked": "danger"}
)


class PortalLinkForm(OwnedForm):
    """Create a portal link for one endpoint, or for all endpoints of a receiver."""

    link_h = forms.IntegerField(
        min_value=1, max_value=portal.MAX_LINK_S // HOURS, initial=portal.LINK_S // HOURS,
        label=_("Hours to open it"), widget=UnfoldAdminIntegerFieldWidget,
        help_text=_("The link can be opened once, within this time."),
    )  # fmt: skip
    session_h = forms.IntegerField(
        min_value=1, max_value=portal.MAX_SESSION_S // HOURS, initial=portal.SESSION_S // HOURS,
        label=_("Hours it stays open"), widget=UnfoldAdminIntegerFieldWidget,
    )  # fmt: skip

    class Meta:
        model = PortalLink
        fields = ["organization", "endpoint", "receiver", "label", "is_read_only"]

    def clean(self) -> dict[str, Any]:
        cleaned = super().clean()
        if cleaned.get("organization") and not self.errors:
            try:
                portal.check_scope(
                    cleaned["organization"].pk, cleaned.get("endpoint"), cleaned.get("receiver", "")
                )
            except ValidationError as error:
                for name, problems in error.error_dict.items():
                    self.add_error(name, problems)
        return cleaned


@admin.register(PortalLink)
class PortalLinkAdmin(OwnedAdmin):
    """Show portal links and their states. The link itself is shown once, when it is created."""

    form = PortalLinkForm
    subject = "portal_link"
    admin_may = EVERYTHING - {"change", "delete"} | {"act"}
    list_display = ["__str__", "opens", "state", "created_by", "created_at"]
    list_select_related = ["endpoint"]
    search_fields = ["label", "receiver"]
    actions = ["revoke"]
    readonly_fields = [
        "state",
        "expires_at",
        "opened_at",
        "session_until",
        "revoked_at",
        "created_by",
        "created_at",
    ]

    def get_fields(self, request: HttpRequest, obj: Any = None) -> list[str]:
        scope = ["endpoint", "receiver", "label", "is_read_only"]
        return [*scope, "event_types", *self.readonly_fields] if obj else [*scope, "link_h", "session_h"]

    @display(description=label("opens"))
    def opens(self, link: PortalLink) -> str:
        if link.endpoint_id:
            return str(Endpoint.objects.values_list("name", flat=True).get(pk=link.endpoint_id))
        return gettext("all endpoints of {receiver}").format(receiver=link.receiver)

    @display(
        description=label("state"),
        label=STATE_COLORS,
    )
    def state(self, link: PortalLink) -> str:
        return translate_label(portal.state_of(link))

    def save_model(self, request: Any, obj: PortalLink, form: Any, change: bool) -> None:
        given = {name: form.cleaned_data[name] for name in ("endpoint", "receiver", "label", "is_read_only")}
        link, code = portal.create_link(
            obj.organization, **given, link_s=form.cleaned_data["link_h"] * HOURS,
            session_s=form.cleaned_data["session_h"] * HOURS, actor=request.actor,
        )  # fmt: skip
        obj.pk, obj._state.adding, request.shown_once = link.pk, False, portal_url(link, code)

    def response_add(self, request: Any, obj: PortalLink, post_url_continue: str | None = None) -> HttpResponse:
        text = gettext("Send this link to the receiver. It can be opened once and won't be shown again.")
        return render_secret_once(self, request, gettext("The portal link was created"), text, request.shown_once)

    @admin.action(description=_("Revoke (ends the session too)"), permissions=["act"])
    def revoke(self, request: Any, queryset: QuerySet) -> None:
        done = sum(portal.revoke_link(row.pk, actor=request.actor) for row in queryset)
        messages.success(request, gettext("{done} revoked.").format(done=done))
