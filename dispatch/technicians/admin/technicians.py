"""Admin pages of technicians and skills."""

from __future__ import annotations

from typing import Any

from django import forms
from django.contrib import admin, messages
from django.db.models import QuerySet
from django.http import HttpRequest
from django.utils.translation import gettext, ngettext
from django.utils.translation import gettext_lazy as _
from unfold.widgets import UnfoldAdminPasswordWidget, UnfoldAdminSelectWidget

from accounts.admin.base import ACT, VIEW, AuditedAdmin, OwnedAdmin, OwnedForm, OwnedTabularInline
from dispatch.core.labels import label
from dispatch.core.stored_texts import mark_stored
from dispatch.technicians import services
from dispatch.technicians.admin.csv_import import CsvImportMixin
from dispatch.technicians.admin.map import PositionPickerMixin
from dispatch.technicians.models import Shift, Skill, Technician
from dispatch.technicians.rules import MAX_PIN_LENGTH, distance_words, pin_problem
from dispatch.telephony.admin.voice_preview import VoicePreviewMixin


@admin.register(Skill)
class SkillAdmin(AuditedAdmin):
    """Admins edit skills; dispatchers view them."""

    dispatcher_may = VIEW
    list_display = ["name", "code"]
    search_fields = ["name", "code"]
    fields = ["name", "code"]
    prepopulated_fields = {"code": ["name"]}


class ShiftInline(OwnedTabularInline):
    """A technician's shifts, on a tab of the technician's page."""

    model = Shift
    dispatcher_may = VIEW
    fields = ["weekday", "starts", "ends"]
    tab = True


class TechnicianForm(OwnedForm):
    """The form of a technician.

    Deactivating one with open jobs asks what happens to them. A PIN can be set or removed, and is never shown.
    """

    one_value = ("lat", "lng")
    open_jobs_then = forms.ChoiceField(
        label=_("Open jobs when deactivated"),
        widget=UnfoldAdminSelectWidget,
        required=False,
        choices=[
            ("", "—"),
            (services.GIVE_BACK, _("Give them back: other technicians are called")),
            (services.KEEP, _("Keep them assigned: dispatchers look after them")),
        ],
        help_text=_("Required to deactivate a technician with open jobs."),
    )
    new_pin = forms.CharField(
        label=_("New PIN"),
        required=False,
        strip=True,
        max_length=MAX_PIN_LENGTH,
        widget=UnfoldAdminPasswordWidget(attrs={"autocomplete": "new-password", "inputmode": "numeric"}),
        help_text=_(
            "4 to 8 digits. Leave empty to keep the current one. A caller whose number the carrier can't "
            "vouch for enters it to hear customers' data."
        ),
    )
    remove_pin = forms.BooleanField(label=_("Remove the PIN"), required=False)

    def clean(self) -> dict[str, Any]:
        given = super().clean() or self.cleaned_data
        technician = Technician.objects.filter(pk=self.instance.pk).first()
        is_leaving = technician is not None and technician.is_active and given.get("is_active") is False
        is_leaving = is_leaving and "is_active" in self.changed_data  # else the page only showed it before
        if technician and is_leaving and technician.open_jobs and not given.get("open_jobs_then"):
            raise forms.ValidationError({"open_jobs_then": services.count_open_jobs(technician)})
        return given

    def clean_new_pin(self) -> str:
        """Reject a PIN that is too short or easy to guess."""
        pin = str(self.cleaned_data["new_pin"])
        if pin and (problem := pin_problem(pin)):
            raise forms.ValidationError(problem)
        return pin


@admin.register(Technician)
class TechnicianAdmin(VoicePreviewMixin, CsvImportMixin, PositionPickerMixin, OwnedAdmin):
    """Dispatchers view and set duty; admins edit."""

    preview_kind = "technician"
    read_only_actions = (*CsvImportMixin.read_only_actions, *VoicePreviewMixin.read_only_actions)

    form = TechnicianForm
    dispatcher_may = ACT
    list_display = ["name", "phone", "on_duty", "skill_names", "workload", "offer", "reach", "last_offered_at"]
    list_filter = ["on_duty", "is_active", "skills"]
    list_filter_submit = False
    search_fields = ["name", "phone"]
    autocomplete_fields = ["skills"]
    inlines = [ShiftInline]
    actions = ["on_duty_now", "off_duty_now", "export_selected"]
    readonly_fields = ["on_the_map", "position_at", "pin_state", "open_jobs", "live_offer_id", "last_offered_at"]
    fieldsets = [
        (None, {"fields": ["name", "phone", "on_duty", "is_active", "open_jobs_then", "skills"]}),
        (_("Where"), {"fields": [("lat", "lng"), "on_the_map", "position_at", "radius_m", "time_zone"]}),
        (_("Calls and texts"), {"fields": [("language", "voice")]}),
        (_("PIN for calls"), {"fields": ["pin_state", ("new_pin", "remove_pin")]}),
        (_("Work"), {"fields": ["max_open_jobs", "open_jobs", "live_offer_id", "last_offered_at"]}),
    ]

    class Media:
        css = {"all": ["dispatch/jobs_admin.css", "dispatch/map_picker.css"]}
        js = ["dispatch/map_picker.js"]

    def get_queryset(self, request: HttpRequest) -> QuerySet:
        return super().get_queryset(request).select_related("organization").prefetch_related("skills")

    @admin.display(description=label("skills"))
    def skill_names(self, technician: Technician) -> str:
        return ", ".join(skill.name for skill in technician.skills.all()) or "—"

    @admin.display(description=label("open jobs"), ordering="open_jobs")
    def workload(self, technician: Technician) -> str:
        return technician.workload_words

    @admin.display(description=label("live offer"), boolean=True, ordering="live_offer_id")
    def offer(self, technician: Technician) -> bool:
        return technician.live_offer_id is not None

    @admin.display(description=label("own radius"), ordering="radius_m")
    def reach(self, technician: Technician) -> str:
        if technician.radius_m is None:
            return "—"
        return distance_words(technician.radius_m, technician.organization.distance_unit)

    @admin.display(description=label("PIN"))
    def pin_state(self, technician: Technician) -> str:
        if not technician.pin_hash:
            return gettext("No PIN. They only hear customers' data if the carrier vouches for their number.")
        return (
            gettext("Locked for some or all callers after wrong PINs. A new one unlocks it.")
            if services.is_pin_locked(technician)
            else gettext("A PIN is set.")
        )

    def save_model(self, request: HttpRequest, obj: Technician, form: Any, change: bool) -> None:
        aside = ("skills", "open_jobs_then", "new_pin", "remove_pin")
        if not change:
            super().save_model(request, obj, form, change)
        else:
            names = {*form.changed_data} - {*aside}
            if names & {"lat", "lng"}:
                names |= {"lat", "lng"}  # a position, even if the other one is what the page showed
            changed = {name: form.cleaned_data[name] for name in names}
            then = form.cleaned_data.get("open_jobs_then", "")
            services.change_technician(obj.pk, changed, open_jobs=then, actor=request.actor)
        if pin := form.cleaned_data.get("new_pin"):
            services.set_pin(obj.pk, pin, actor=request.actor)
        elif form.cleaned_data.get("remove_pin"):
            services.set_pin(obj.pk, "", actor=request.actor)

    def save_related(self, request: HttpRequest, form: Any, formsets: Any, change: bool) -> None:
        super().save_related(request, form, formsets, change)
        services.refresh_hours(form.instance.pk)

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False  # jobs refer to their technicians: deactivate them instead

    @admin.action(description=_("Put on duty (they get offers during their shifts)"), permissions=["act"])
    def on_duty_now(self, request: HttpRequest, queryset: QuerySet) -> None:
        self._set_duty(request, queryset, True)

    @admin.action(description=_("Take off duty (no more offers; they keep their jobs)"), permissions=["act"])
    def off_duty_now(self, request: HttpRequest, queryset: QuerySet) -> None:
        self._set_duty(request, queryset, False)

    def _set_duty(self, request: HttpRequest, queryset: QuerySet, on_duty: bool) -> None:
        changed, same = self.change_each(
            request,
            queryset,
            lambda technician: services.set_duty(technician.pk, on_duty, actor=request.actor),
            mark_stored("Put on duty.") if on_duty else mark_stored("Taken off duty."),
        )
        if not changed and not same:
            return
        if on_duty:
            words = ngettext("{count} technician is now on duty", "{count} technicians are now on duty", changed)
        else:
            words = ngettext("{count} technician is now off duty", "{count} technicians are now off duty", changed)
        note = ngettext("; {count} already was", "; {count} already were", same).format(count=same) if same else ""
        self.message_user(request, f"{words.format(count=changed)}{note}.", messages.SUCCESS)
