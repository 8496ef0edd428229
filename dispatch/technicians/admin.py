"""Technicians and skills in the admin."""

from __future__ import annotations

from typing import Any

from django.contrib import admin, messages
from django.db.models import QuerySet
from django.http import HttpRequest

from accounts.admin_base import ACT, VIEW, OwnedAdmin, OwnedTabularInline
from dispatch.technicians import editing, services
from dispatch.technicians.admin_map import PositionPicker
from dispatch.technicians.admin_sheets import TechnicianSheets
from dispatch.technicians.models import Shift, Skill, Technician
from dispatch.technicians.rules import distance_words


@admin.register(Skill)
class SkillAdmin(OwnedAdmin):
    dispatcher_may = VIEW
    list_display = ["name", "code"]
    search_fields = ["name", "code"]
    fields = ["name", "code"]
    prepopulated_fields = {"code": ["name"]}


class ShiftInline(OwnedTabularInline):
    model = Shift
    dispatcher_may = VIEW
    fields = ["weekday", "starts", "ends"]
    tab = True


@admin.register(Technician)
class TechnicianAdmin(TechnicianSheets, PositionPicker, OwnedAdmin):
    """Dispatchers look, and set duty; Admins edit."""

    dispatcher_may = ACT
    list_display = ["name", "phone", "on_duty", "skill_names", "workload", "offer", "reach", "last_offered_at"]
    list_filter = ["on_duty", "is_active", "skills"]
    list_filter_submit = False
    search_fields = ["name", "phone"]
    autocomplete_fields = ["skills"]
    inlines = [ShiftInline]
    actions = ["on_duty_now", "off_duty_now", "export_selected"]
    readonly_fields = ["on_the_map", "position_at", "open_jobs", "live_offer_id", "last_offered_at"]
    fieldsets = [
        (None, {"fields": ["name", "phone", "on_duty", "is_active", "skills"]}),
        ("Where", {"fields": [("lat", "lng"), "on_the_map", "position_at", "radius_m", "time_zone"]}),
        ("Work", {"fields": ["max_open_jobs", "open_jobs", "live_offer_id", "last_offered_at"]}),
    ]

    class Media:
        css = {"all": ["dispatch/jobs_admin.css", "dispatch/map_picker.css"]}
        js = ["dispatch/map_picker.js"]

    def get_queryset(self, request: HttpRequest) -> QuerySet:
        return super().get_queryset(request).select_related("organization").prefetch_related("skills")

    @admin.display(description="skills")
    def skill_names(self, technician: Technician) -> str:
        return ", ".join(skill.name for skill in technician.skills.all()) or "—"

    @admin.display(description="open jobs", ordering="open_jobs")
    def workload(self, technician: Technician) -> str:
        return f"{technician.open_jobs} of {technician.max_open_jobs}"

    @admin.display(description="on an offer", boolean=True, ordering="live_offer_id")
    def offer(self, technician: Technician) -> bool:
        return technician.live_offer_id is not None

    @admin.display(description="own radius", ordering="radius_m")
    def reach(self, technician: Technician) -> str:
        if technician.radius_m is None:
            return "—"
        return distance_words(technician.radius_m, technician.organization.distance_unit)

    def save_model(self, request: HttpRequest, obj: Technician, form: Any, change: bool) -> None:
        if not change:
            super().save_model(request, obj, form, change)
            return
        changed = {name: form.cleaned_data[name] for name in form.changed_data if name != "skills"}
        editing.change_technician(obj.pk, changed, actor=request.actor)

    def save_related(self, request: HttpRequest, form: Any, formsets: Any, change: bool) -> None:
        super().save_related(request, form, formsets, change)
        services.refresh_hours(form.instance.pk)

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False  # jobs remember their technicians: set them inactive

    @admin.action(description="Put on duty: offered jobs from now on, within their shifts", permissions=["act"])
    def on_duty_now(self, request: HttpRequest, queryset: QuerySet) -> None:
        self._set_duty(request, queryset, True)

    @admin.action(description="Take off duty: no more offers, their jobs stay theirs", permissions=["act"])
    def off_duty_now(self, request: HttpRequest, queryset: QuerySet) -> None:
        self._set_duty(request, queryset, False)

    def _set_duty(self, request: HttpRequest, queryset: QuerySet, on_duty: bool) -> None:
        words = "on" if on_duty else "off"
        rows = list(queryset)
        moved = [one for one in rows if editing.set_duty(one.pk, on_duty, actor=request.actor)]
        for one in moved:
            self.log_change(request, one, "Put on duty." if on_duty else "Taken off duty.")
        changed, same = len(moved), len(rows) - len(moved)
        note = f"; {same} already {'was' if same == 1 else 'were'}" if same else ""
        count = "1 technician is" if changed == 1 else f"{changed} technicians are"
        self.message_user(request, f"{count} now {words} duty{note}.", messages.SUCCESS)
