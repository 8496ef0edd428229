"""Service types and dispatch policies in the admin: what Admins set up."""

from __future__ import annotations

from typing import Any

from django import forms
from django.contrib import admin, messages
from django.db import transaction
from django.db.models import QuerySet
from django.http import HttpRequest

from accounts.admin_base import VIEW, OwnedAdmin, OwnedForm
from dispatch.capacity.models import OutboundNumber
from dispatch.jobs import policies
from dispatch.jobs.models import DispatchPolicy, ServiceType
from dispatch.jobs.rules.policy import FIELDS, CascadePolicy
from dispatch.jobs.services import setting_up


class SetupAdmin(OwnedAdmin):
    """Every change is in the log, with who made it."""

    def save_related(self, request: Any, form: Any, formsets: Any, change: bool) -> None:
        """Writes the row together with its relations; `save_model` leaves it to this."""
        row = form.instance
        named = form.changed_data if change else list(form.cleaned_data)
        changed = {name: form.cleaned_data[name] for name in named if name in form.cleaned_data}

        def write() -> Any:
            row.save()
            super(SetupAdmin, self).save_related(request, form, formsets, change)
            return row

        setting_up.save(write, changed, actor=request.actor, is_new=not change)

    def save_model(self, request: HttpRequest, obj: Any, form: Any, change: bool) -> None:
        """See `save_related`."""


@admin.register(ServiceType)
class ServiceTypeAdmin(SetupAdmin):
    subject = "service_type"
    dispatcher_may = VIEW
    list_display = ["name", "code", "spoken_name", "is_active"]
    list_filter = ["is_active", "required_skills"]
    search_fields = ["name", "code"]
    fields = ["name", "code", "spoken_name", "required_skills", "is_active"]
    prepopulated_fields = {"code": ["name"]}
    autocomplete_fields = ["required_skills"]

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False  # jobs remember their service types: set them inactive


class DispatchPolicyForm(OwnedForm):
    """Empty fields show, greyed, what they fall back to."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        fallback = self._fallback()
        for name in FIELDS:
            if name not in self.fields:
                continue
            value = getattr(fallback, name)
            field = self.fields[name]
            if isinstance(field, forms.NullBooleanField):
                unset = f"As by default ({'yes' if value else 'no'})"
                field.widget.choices = [("unknown", unset), ("true", "Yes"), ("false", "No")]
            else:
                field.widget.attrs["placeholder"] = f"{value:g}" if isinstance(value, float) else str(value)

    def _fallback(self) -> CascadePolicy:
        """What an empty field means: for a service type the organization's value, for that the settings'."""
        row = self.instance
        if row.organization_id is None or row.service_type_id is None:
            return policies.defaults()
        return policies.for_service_type(row.organization_id, None)


@admin.register(DispatchPolicy)
class DispatchPolicyAdmin(SetupAdmin):
    subject = "policy"
    form = DispatchPolicyForm
    dispatcher_may = VIEW
    list_display = ["__str__", "delay", "ring", "reach", "most", "rounds_in_effect", "call_pool"]
    list_select_related = ["service_type", "call_pool"]
    fieldsets = [
        (None, {"fields": ["service_type", "call_pool"]}),
        ("Time", {"fields": [("answer_timeout_s", "ring_timeout_s"), "answered_extension_s"]}),
        ("Waiting", {"fields": [("line_wait_s", "technician_wait_s"), "auto_pause_misses"]}),
        (
            "By text",
            {
                "fields": [("offer_by_text", "missed_call_grace_s"), "address_by_text"],
                "description": "Texts go out from numbers that may send them, to technicians who have not opted "
                "out; all others are only called.",
            },
        ),
        ("Who", {"fields": ["radius_m", ("max_candidates", "rounds")]}),
        (
            "Ranking",
            {
                "fields": [("weight_distance", "weight_workload", "weight_rest")],
                "description": "The lower the sum, the sooner offered: distance ÷ radius, open jobs ÷ limit, and "
                "how much of an hour's rest since the last offer is missing, each times its weight.",
            },
        ),
        (
            "Move on at once when …",
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
            words = "Offers are to go by text, but no number may send texts: technicians are only called."
            messages.warning(request, words)

    def delete_model(self, request: Any, obj: DispatchPolicy) -> None:
        setting_up.remove(obj, actor=request.actor)

    def delete_queryset(self, request: HttpRequest, queryset: QuerySet) -> None:
        with transaction.atomic():
            for row in queryset.order_by("service_type"):  # the organization's last
                self.delete_model(request, row)

    @admin.display(description="delay between attempts")
    def delay(self, row: DispatchPolicy) -> str:
        return f"{_effective(row).answer_timeout_s} s"

    @admin.display(description="ring time")
    def ring(self, row: DispatchPolicy) -> str:
        return f"{_effective(row).ring_timeout_s} s"

    @admin.display(description="radius")
    def reach(self, row: DispatchPolicy) -> str:
        return f"{_effective(row).radius_m / 1000:g} km"

    @admin.display(description="most candidates")
    def most(self, row: DispatchPolicy) -> int:
        return _effective(row).max_candidates

    @admin.display(description="rounds")
    def rounds_in_effect(self, row: DispatchPolicy) -> int:
        return _effective(row).rounds


def _effective(row: DispatchPolicy) -> CascadePolicy:
    """With what the empty fields fall back to; asked once per row of the list."""
    kept: CascadePolicy | None = getattr(row, "_in_effect", None)
    if kept is None:
        kept = row._in_effect = policies.for_service_type(row.organization_id, row.service_type_id)  # type: ignore[attr-defined]
    return kept
