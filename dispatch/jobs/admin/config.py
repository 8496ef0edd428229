"""Admin pages of service types, dispatch policies and texts to customers."""

from __future__ import annotations

from typing import Any

from django import forms
from django.conf import settings
from django.contrib import admin, messages
from django.db.models import QuerySet
from django.http import HttpRequest
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _

from accounts.admin.base import VIEW, OwnedAdmin, OwnedForm
from accounts.admin.extensions import extend_admin
from accounts.admin.tenant_scope import changed_columns
from dispatch.capacity.models import OutboundNumber
from dispatch.core.labels import label
from dispatch.jobs import policies
from dispatch.jobs.models import CustomerTextKind, CustomerTextPolicy, DispatchPolicy, ServiceType
from dispatch.jobs.rules.policy import FIELDS, CascadePolicy
from dispatch.jobs.rules.quiet_hours import QuietHours
from dispatch.jobs.services import config
from dispatch.technicians.admin.technicians import SkillAdmin
from dispatch.technicians.models import Skill
from dispatch.technicians.rules import distance_words


class ConfigAdmin(OwnedAdmin):
    """Records every change with its actor in the event log."""

    def save_related(self, request: Any, form: Any, formsets: Any, change: bool) -> None:
        """Write the row together with its relations (`save_model` does nothing)."""
        row = form.instance
        names = form.changed_data if change else list(form.cleaned_data)
        changed = {name: form.cleaned_data[name] for name in names if name in form.cleaned_data}

        def write() -> Any:
            row.save(update_fields=changed_columns(form) if change else None)
            row.refresh_from_db()  # with what others changed meanwhile
            super(ConfigAdmin, self).save_related(request, form, formsets, change)
            return row

        config.save_config(write, changed, actor=request.actor, is_new=not change)

    def save_model(self, request: HttpRequest, obj: Any, form: Any, change: bool) -> None:
        """Do nothing: `save_related` writes the row."""


@admin.register(ServiceType)
class ServiceTypeAdmin(ConfigAdmin):
    """Admins edit service types; dispatchers view them."""

    subject = "service_type"
    dispatcher_may = VIEW
    list_display = ["name", "code", "spoken_name", "is_active"]
    list_filter = ["is_active", "required_skills"]
    search_fields = ["name", "code"]
    fields = [
        "name", "code", "spoken_name", "required_skills", "preferred_skills", "expected_minutes", "is_active",
    ]  # fmt: skip
    prepopulated_fields = {"code": ["name"]}
    autocomplete_fields = ["required_skills", "preferred_skills"]

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False  # jobs refer to their service types: deactivate them instead


@extend_admin(Skill)
class SkillOfServicesAdmin(SkillAdmin):
    """Keeps the skills that service types use."""

    def delete_model(self, request: HttpRequest, obj: Skill) -> None:
        config.check_unused(obj)
        super().delete_model(request, obj)


class DispatchPolicyForm(OwnedForm):
    """Shows the fallback value of each empty field as its placeholder."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        fallback = self._fallback()
        for name in FIELDS:
            if name not in self.fields:
                continue
            value = getattr(fallback, name)
            field = self.fields[name]
            if isinstance(field, forms.NullBooleanField):
                unset = gettext("Default (yes)") if value else gettext("Default (no)")
                field.widget.choices = [("unknown", unset), ("true", gettext("Yes")), ("false", gettext("No"))]
            else:
                field.widget.attrs["placeholder"] = f"{value:g}" if isinstance(value, float) else str(value)

        self._show_quiet_hours()
        if "duplicate_hours" in self.fields:
            shown = settings.DUPLICATE_HOURS
            if self._is_of_service():
                shown = policies.duplicate_hours(self.instance.organization_id, None)
            self.fields["duplicate_hours"].widget.attrs["placeholder"] = str(shown)

    def _is_of_service(self) -> bool:
        return self.instance.organization_id is not None and self.instance.service_type_id is not None

    def _show_quiet_hours(self) -> None:
        """Show the quiet hours that apply if the fields are empty."""
        if "quiet_for" not in self.fields:
            return
        row = self.instance
        quiet = policies.quiet_hours(row.organization_id, None) if self._is_of_service() else QuietHours()
        choices = DispatchPolicy._meta.get_field("quiet_for").choices or []
        words = str(dict(choices)[quiet.quiet_for]).lower()
        field: Any = self.fields["quiet_for"]
        field.choices = [("", gettext("Default ({words})").format(words=words)), *choices]
        for name in ("quiet_from", "quiet_until"):
            self.fields[name].widget.attrs["placeholder"] = f"{getattr(quiet, name):%H:%M}"

    def _fallback(self) -> CascadePolicy:
        """Return the policy behind the empty fields: the organization's for a service type, else the settings."""
        row = self.instance
        if row.organization_id is None or row.service_type_id is None:
            return policies.default_policy()
        return policies.for_service_type(row.organization_id, None)


@admin.register(DispatchPolicy)
class DispatchPolicyAdmin(ConfigAdmin):
    """Admins edit dispatch policies; dispatchers view them. The list shows the values in effect."""

    subject = "policy"
    form = DispatchPolicyForm
    dispatcher_may = VIEW
    list_display = ["__str__", "delay", "ring", "reach", "most", "rounds_in_effect", "call_pool"]
    list_select_related = ["organization", "service_type", "call_pool"]
    fieldsets = [
        (None, {"fields": ["service_type", "call_pool"]}),
        (_("Time"), {"fields": [("answer_timeout_s", "ring_timeout_s"), "answered_extension_s"]}),
        (_("Waiting"), {"fields": [("line_wait_s", "technician_wait_s"), "auto_pause_misses"]}),
        (_("Reminders"), {"fields": [("pause_reminder_s", "start_within_s", "finish_within_s")]}),
        (
            _("Quiet hours"),
            {
                "fields": ["quiet_for", ("quiet_from", "quiet_until")],
                "description": _("When jobs that can wait call nobody. A dispatcher can still call now."),
            },
        ),
        (_("Arrival windows"), {"fields": ["window_lead_s"]}),
        (_("Duplicates"), {"fields": ["duplicate_hours"]}),
        (
            _("By text"),
            {
                "fields": [("offer_by_text", "missed_call_grace_s"), "address_by_text"],
                "description": _(
                    "Texts are sent from numbers that may send texts, to technicians who have not "
                    "opted out. All others get calls only."
                ),
            },
        ),
        (
            _("Who"),
            {
                "fields": [
                    ("max_candidates", "rounds"),
                    ("radius_m", "radius_growth", "max_radius_m"),
                    "offers_at_once_for_emergencies",
                ]
            },
        ),
        (
            _("Ranking"),
            {
                "fields": [("weight_distance", "weight_workload"), ("weight_rest", "weight_skills")],
                "description": _(
                    "The lowest score gets the first offer. Score: distance ÷ radius, open jobs ÷ "
                    "limit, the missing share of an hour's rest since the last offer, and the missing share of "
                    "the service type's preferred skills, each times its weight. The customer's preferred "
                    "technician comes first regardless of the score."
                ),
            },
        ),
        (
            _("Call the next technician immediately"),
            {
                "fields": [
                    "advance_on_decline",
                    "advance_on_busy",
                    "advance_on_failed",
                    "advance_on_no_answer",
                    "advance_on_hangup",
                ]
            },
        ),
    ]

    def save_related(self, request: Any, form: Any, formsets: Any, change: bool) -> None:
        super().save_related(request, form, formsets, change)
        row = form.instance
        numbers = OutboundNumber.objects.of(row.organization_id).filter(sends_texts=True, is_paused=False)
        if _effective(row).offer_by_text and not numbers.exists():
            words = gettext("Offers by text are on, but no number may send texts. Technicians get calls only.")
            messages.warning(request, words)
        if _effective(row).radius_growth and _effective(row).rounds == 1:
            words = gettext(
                "The radius widens from round to round, but there is only one round. Set rounds to 2 or more."
            )
            messages.warning(request, words)

    def delete_model(self, request: Any, obj: DispatchPolicy) -> None:
        config.delete_config(obj, actor=request.actor)

    def delete_queryset(self, request: HttpRequest, queryset: QuerySet) -> None:
        super().delete_queryset(request, queryset.order_by("service_type"))  # the organization's last

    @admin.display(description=label("delay between attempts"))
    def delay(self, row: DispatchPolicy) -> str:
        return f"{_effective(row).answer_timeout_s} s"

    @admin.display(description=label("ring time"))
    def ring(self, row: DispatchPolicy) -> str:
        return f"{_effective(row).ring_timeout_s} s"

    @admin.display(description=label("radius"))
    def reach(self, row: DispatchPolicy) -> str:
        policy, unit = _effective(row), row.organization.distance_unit
        widest = policy.radius_in_round(policy.rounds)
        reach = [policy.radius_m, widest] if widest > policy.radius_m else [policy.radius_m]
        return (
            gettext("{least} to {most}").format(
                least=distance_words(reach[0], unit), most=distance_words(reach[-1], unit)
            )
            if len(reach) > 1
            else distance_words(reach[0], unit)
        )

    @admin.display(description=label("max candidates"))
    def most(self, row: DispatchPolicy) -> int:
        return _effective(row).max_candidates

    @admin.display(description=label("rounds"))
    def rounds_in_effect(self, row: DispatchPolicy) -> int:
        return _effective(row).rounds


@admin.register(CustomerTextPolicy)
class CustomerTextPolicyAdmin(ConfigAdmin):
    """Which texts the organization sends to its customers: one row."""

    subject = "customer_texts"
    dispatcher_may = VIEW
    list_display = [
        "__str__", "sends_received", "sends_assigned", "sends_on_the_way", "sends_running_late", "sends_completed",
        "sends_cancelled",
    ]  # fmt: skip
    fieldsets = [
        (
            _("Text the customer"),
            {
                "fields": [
                    "sends_received", "sends_assigned", "sends_on_the_way", "sends_running_late",
                    "sends_completed", "sends_cancelled",
                ],
                "description": _("Each text is sent at most once for a job, to customers who have not opted out, "
                "from numbers that may send texts. It links to the customer's page, where they can cancel or "
                "correct the request."),
            },
        ),
        (_("Sender"), {"fields": ["sender_name", "contact_phone"]}),
    ]  # fmt: skip

    def get_queryset(self, request: HttpRequest) -> QuerySet:
        return super().get_queryset(request).select_related("organization")

    def save_related(self, request: Any, form: Any, formsets: Any, change: bool) -> None:
        super().save_related(request, form, formsets, change)
        row = form.instance
        numbers = OutboundNumber.objects.of(row.organization_id).filter(sends_texts=True, is_paused=False)
        if any(row.sends(kind) for kind in CustomerTextKind.values) and not numbers.exists():
            messages.warning(request, gettext("No number may send texts, so customers get none."))

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False  # switch the texts off instead


def _effective(row: DispatchPolicy) -> CascadePolicy:
    """Return the policy with its fallback values, loaded once per row of the list."""
    policy: CascadePolicy | None = getattr(row, "_in_effect", None)
    if policy is None:
        policy = row._in_effect = policies.for_service_type(row.organization_id, row.service_type_id)  # type: ignore[attr-defined]
    return policy
