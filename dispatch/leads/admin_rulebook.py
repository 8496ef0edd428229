"""The rulebook in the admin: what an organization keeps for itself, and what superusers keep for everybody."""

from __future__ import annotations

from typing import Any

from django.contrib import admin
from django.db.models import QuerySet
from django.http import HttpRequest
from unfold.decorators import display

from accounts.admin_base import EVERYTHING, VIEW, OwnedAdmin
from dispatch.leads.admin_hours import DAYS, Weekdays, said
from dispatch.leads.models import (
    CallingRule,
    ClosedDay,
    CustomerRate,
    DoNotCall,
    DoNotCallEverywhere,
    EngineSwitch,
    Holiday,
)
from dispatch.leads.services import do_not_call, switches


@admin.register(DoNotCall)
class DoNotCallAdmin(OwnedAdmin):
    """From the moment a phone is added, no campaign calls it; a call that rings is hung up."""

    subject = "do_not_call"
    dispatcher_may = frozenset({"view", "add"})
    admin_may = frozenset({"view", "add", "delete"})
    list_display = ["phone", "source", "note", "created_at"]
    list_filter = ["source"]
    search_fields = ["phone", "note"]
    fields = ["phone", "note"]

    def save_model(self, request: Any, obj: DoNotCall, form: Any, change: bool) -> None:
        phone, note = str(obj.phone), obj.note
        do_not_call.refuse(obj.organization_id, phone, source="person", actor=request.actor, note=note)
        obj.pk = DoNotCall.objects.get(organization_id=obj.organization_id, phone=phone).pk

    def delete_model(self, request: Any, obj: DoNotCall) -> None:
        do_not_call.allow(obj, actor=request.actor)

    def delete_queryset(self, request: Any, queryset: QuerySet) -> None:
        for row in queryset:
            do_not_call.allow(row, actor=request.actor)


@admin.register(ClosedDay)
class ClosedDayAdmin(OwnedAdmin):
    dispatcher_may = VIEW
    list_display = ["date", "name"]
    search_fields = ["name"]
    fields = ["date", "name"]


@admin.register(CustomerRate)
class CustomerRateAdmin(OwnedAdmin):
    dispatcher_may = VIEW
    list_display = ["customer", "most", "per_s"]
    search_fields = ["customer"]
    fields = ["customer", "most", "per_s"]


class EverybodysAdmin(OwnedAdmin):
    """Rows that hold for all organizations: superusers keep them."""

    admin_may = frozenset()
    superuser_may = EVERYTHING

    def of_organizations(self, rows: QuerySet, organizations: list[int]) -> QuerySet:
        return rows.none()


@admin.register(CallingRule)
class CallingRuleAdmin(Weekdays, EverybodysAdmin):
    list_display = ["name", "place", "days", "hours", "since", "until", "source"]
    list_filter = ["country"]
    search_fields = ["name", "region", "source"]
    fields = [
        "name", ("country", "region"), "weekdays", ("window_from", "window_until"), "keeps_holidays",
        ("since", "until"), "source",
    ]  # fmt: skip

    @display(description="place")
    def place(self, rule: CallingRule) -> str:
        return f"{rule.country}-{rule.region}" if rule.region else rule.country

    @display(description="days")
    def days(self, rule: CallingRule) -> str:
        return "every day" if len(rule.weekdays) == len(DAYS) else ", ".join(DAYS[day] for day in rule.weekdays)

    @display(description="hours")
    def hours(self, rule: CallingRule) -> str:
        return said(rule.window_from, rule.window_until)


@admin.register(Holiday)
class HolidayAdmin(EverybodysAdmin):
    list_display = ["date", "name", "country", "region"]
    list_filter = ["country"]
    search_fields = ["name"]
    fields = ["date", "name", ("country", "region")]


@admin.register(DoNotCallEverywhere)
class DoNotCallEverywhereAdmin(EverybodysAdmin):
    list_display = ["phone", "note", "created_at"]
    search_fields = ["phone", "note"]
    fields = ["phone", "note"]


@admin.register(EngineSwitch)
class EngineSwitchAdmin(EverybodysAdmin):
    """One row: the kill switch, and the promoter's pause."""

    superuser_may = frozenset({"view", "add", "change"})
    list_display = ["__str__", "is_stopped", "promoter_paused"]
    fields = ["is_stopped", "promoter_paused"]

    def has_add_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return super().has_add_permission(request, obj) and not EngineSwitch.objects.exists()

    def save_model(self, request: Any, obj: EngineSwitch, form: Any, change: bool) -> None:
        row = switches.set_engine(
            is_stopped=obj.is_stopped, promoter_paused=obj.promoter_paused, actor=request.actor
        )
        obj.pk = row.pk
