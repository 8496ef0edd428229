"""Manage the calling rules in the admin: an organization's own, and the global ones that superusers maintain."""

from __future__ import annotations

from datetime import time
from functools import partial
from typing import Any

from django import forms
from django.contrib import admin, messages
from django.db import models, transaction
from django.db.models import QuerySet
from django.http import HttpRequest
from django.utils.text import capfirst
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _
from unfold.decorators import display
from unfold.widgets import UnfoldAdminCheckboxSelectMultipleWidget

from accounts.admin.base import EVERYTHING, VIEW, OwnedAdmin
from dispatch.core import languages
from dispatch.core.api.problems import Conflict
from dispatch.core.labels import label
from dispatch.core.privacy import replay
from dispatch.leads.models import (
    CallingRule,
    ClosedDay,
    Consent,
    CustomerRate,
    DoNotCall,
    DoNotCallEverywhere,
    EngineSwitch,
    Holiday,
)
from dispatch.leads.services import consents, do_not_call, switches

_CHOICES = list(
    enumerate(map(label, ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")))
)


def describe_window(window_from: time, window_until: time) -> str:
    """Describe a calling window for a list."""
    return gettext("at any hour") if window_from == window_until else f"{window_from:%H:%M}–{window_until:%H:%M}"


class WeekdaysMixin:
    """Show weekdays as checkboxes. Mix into an admin class, before its base."""

    def formfield_for_dbfield(self, db_field: models.Field, request: HttpRequest, **kwargs: Any) -> Any:
        if db_field.name == "weekdays":
            return forms.TypedMultipleChoiceField(
                label=capfirst(db_field.verbose_name),
                choices=_CHOICES,
                coerce=int,
                initial=[day for day, _ in _CHOICES],
                widget=UnfoldAdminCheckboxSelectMultipleWidget,
                help_text=gettext("For a window that runs past midnight, choose the day on which it begins."),
            )
        return super().formfield_for_dbfield(db_field, request, **kwargs)  # type: ignore[misc]


@admin.register(DoNotCall)
class DoNotCallAdmin(OwnedAdmin):
    """Manage the do-not-call list.

    As soon as a phone is added, no campaign calls it, and a ringing call to it is hung up.
    """

    subject = "do_not_call"
    entry_name, entries_name = label("a number"), label("do-not-call numbers")
    dispatcher_may = frozenset({"view", "add"})
    admin_may = frozenset({"view", "add", "delete"})
    list_display = ["phone", "source", "note", "created_at"]
    list_filter = ["source"]
    search_fields = ["phone", "note"]
    fields = ["phone", "note"]

    def save_model(self, request: Any, obj: DoNotCall, form: Any, change: bool) -> None:
        phone, note = str(obj.phone), obj.note
        do_not_call.add_to_list(obj.organization_id, phone, source="person", actor=request.actor, note=note)
        obj.pk = DoNotCall.objects.get(organization_id=obj.organization_id, phone=phone).pk

    def delete_model(self, request: Any, obj: DoNotCall) -> None:
        do_not_call.remove_from_list(obj, actor=request.actor)


@admin.register(Consent)
class ConsentAdmin(OwnedAdmin):
    """Show the records of consent, and withdraw them. They are never changed or deleted."""

    admin_may = dispatcher_may = frozenset({"view", "add", "act"})
    list_display = ["phone", "purpose", "given_at", "source", "withdrawn_at"]
    list_filter = ["purpose"]
    search_fields = ["=phone"]
    search_help_text = _("The full phone number, such as +16025550134")
    show_full_result_count = False
    fields = [
        "phone", "purpose", "given_at", "source", "words", "proof", ("withdrawn_at", "withdrawn_by"),
        "created_at",
    ]  # fmt: skip
    readonly_fields = ["withdrawn_at", "withdrawn_by", "created_at"]
    actions = ["withdraw"]

    def save_model(self, request: Any, obj: Consent, form: Any, change: bool) -> None:
        phone = str(obj.phone)
        new = consents.NewConsent(obj.given_at, obj.source, obj.purpose, obj.words, obj.proof)
        with transaction.atomic():
            added = consents.record_consents(obj.organization_id, [(phone, new)], actor=request.actor)
        valid = Consent.objects.filter(
            organization_id=obj.organization_id, phone=phone, purpose=obj.purpose, withdrawn_at=None
        )
        if (row := valid.first()) is None or not added:
            raise Conflict(gettext(consents.NOT_RECORDED if row is None else consents.ALREADY_VALID))
        obj.pk = row.pk

    @admin.action(
        description=_("Withdraw (campaigns that need consent stop calling this phone)"), permissions=["act"]
    )
    def withdraw(self, request: Any, queryset: QuerySet) -> None:
        rows = list(queryset.filter(withdrawn_at=None).exclude(phone=""))
        for row in rows:
            consents.withdraw(
                row.organization_id, str(row.phone), by="person", actor=request.actor, purpose=row.purpose
            )
        messages.success(request, gettext("{count:,} withdrawn.").format(count=len(rows)))


@admin.register(ClosedDay)
class ClosedDayAdmin(OwnedAdmin):
    """Manage the days on which an organization makes no calls."""

    dispatcher_may = VIEW
    list_display = ["date", "name"]
    search_fields = ["name"]
    fields = ["date", "name"]


@admin.register(CustomerRate)
class CustomerRateAdmin(OwnedAdmin):
    """Manage the rate limits of customers."""

    dispatcher_may = VIEW
    list_display = ["customer", "most", "per_s"]
    search_fields = ["customer"]
    fields = ["customer", "most", "per_s"]


class EverybodysAdmin(OwnedAdmin):
    """Manage rows that apply to all organizations (base class). Superusers only."""

    admin_may = frozenset()
    superuser_may = EVERYTHING

    def of_organizations(self, rows: QuerySet, organizations: list[int]) -> QuerySet:
        return rows.none()


@admin.register(CallingRule)
class CallingRuleAdmin(WeekdaysMixin, EverybodysAdmin):
    """Manage the legal calling hours of countries and states."""

    list_display = ["name", "place", "days", "hours", "since", "until", "source"]
    list_filter = ["country"]
    search_fields = ["name", "region", "source"]
    fields = [
        "name", ("country", "region"), "weekdays", ("window_from", "window_until"), "keeps_holidays",
        ("since", "until"), "source",
    ]  # fmt: skip

    @display(description=label("place"))
    def place(self, rule: CallingRule) -> str:
        return f"{rule.country}-{rule.region}" if rule.region else rule.country

    @display(description=label("days"))
    def days(self, rule: CallingRule) -> str:
        return (
            gettext("every day")
            if len(rule.weekdays) == len(languages.DAYS)
            else ", ".join(gettext(languages.DAYS[day]).lower() for day in rule.weekdays)
            if not languages.is_english()
            else ", ".join(languages.DAYS[day] for day in rule.weekdays)
        )

    @display(description=label("hours"))
    def hours(self, rule: CallingRule) -> str:
        return describe_window(rule.window_from, rule.window_until)


@admin.register(Holiday)
class HolidayAdmin(EverybodysAdmin):
    """Manage the holidays of countries and states."""

    list_display = ["date", "name", "country", "region"]
    list_filter = ["country"]
    search_fields = ["name"]
    fields = ["date", "name", ("country", "region")]


@admin.register(DoNotCallEverywhere)
class DoNotCallEverywhereAdmin(EverybodysAdmin):
    """Manage the phones that no organization may call. Adding a phone hangs up ringing calls to it."""

    entry_name, entries_name = label("a number"), label("do-not-call numbers")
    list_display = ["phone", "note", "created_at"]
    search_fields = ["phone", "note"]
    fields = ["phone", "note"]

    def save_model(self, request: Any, obj: DoNotCallEverywhere, form: Any, change: bool) -> None:
        with transaction.atomic():
            super().save_model(request, obj, form, change)
            replay.record(None, replay.DO_NOT_CALL, str(obj.phone))
        hang_up = partial(do_not_call.hang_up_everywhere, str(obj.phone), actor=request.actor)
        transaction.on_commit(hang_up, robust=True)

    def delete_model(self, request: Any, obj: DoNotCallEverywhere) -> None:
        with transaction.atomic():
            replay.record(None, replay.CALL_AGAIN, str(obj.phone))
            super().delete_model(request, obj)


@admin.register(EngineSwitch)
class EngineSwitchAdmin(EverybodysAdmin):
    """Manage the kill switch and the promoter's pause, which share a single row."""

    superuser_may = frozenset({"view", "add", "change"})
    list_display = ["__str__", "is_stopped", "promoter_paused"]
    fields = ["is_stopped", "promoter_paused"]

    def has_add_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return super().has_add_permission(request, obj) and not EngineSwitch.objects.exists()

    def save_model(self, request: Any, obj: EngineSwitch, form: Any, change: bool) -> None:
        changed = {name: form.cleaned_data[name] for name in form.changed_data}
        obj.pk = switches.set_engine(**changed, actor=request.actor).pk
