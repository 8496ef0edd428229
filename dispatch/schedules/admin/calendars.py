"""Provide the admin page for exclusion calendars."""

from __future__ import annotations

from typing import Any

from django import forms
from django.contrib import admin
from django.core.exceptions import ValidationError
from django.http import HttpRequest, HttpResponse
from django.utils.html import format_html, format_html_join
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _
from unfold.decorators import action, display

from accounts.admin.base import EVERYTHING, OwnedAdmin, OwnedForm
from dispatch.core import clock
from dispatch.core.http.ssrf import check_target_url
from dispatch.core.labels import label
from dispatch.schedules import ical
from dispatch.schedules.models import ExclusionCalendar
from dispatch.schedules.services import calendars

SHOWN = 50


class ExclusionCalendarForm(OwnedForm):
    """A name with a URL, or with the file or text of an iCalendar."""

    file = forms.FileField(label=_("File"), required=False, help_text=_("An iCalendar file (.ics)."))

    class Meta:
        model = ExclusionCalendar
        fields = ["name", "url", "content"]

    def clean(self) -> dict[str, Any]:
        cleaned: dict[str, Any] = super().clean() or {}
        if upload := cleaned.get("file"):
            if upload.size > ical.MAX_BYTES:
                raise ValidationError({"file": gettext("At most {size} KB.").format(size=ical.MAX_BYTES // 1024)})
            cleaned["content"] = upload.read().decode("utf-8", "replace").replace("\x00", "")
        # Browsers send other line ends than the file has.
        text = (cleaned.get("content") or "").split()
        is_entered = bool(text) and "content" in self.changed_data  # the page may show an earlier refresh
        has_new_text = bool(upload) or (is_entered and text != self.instance.content.split())
        if cleaned.get("url") and has_new_text:
            raise ValidationError({"url": gettext("Set either a URL or a file, not both.")})
        if not cleaned.get("url") and not cleaned.get("content"):
            raise ValidationError({"url": gettext("Set a URL, or choose a file.")})
        if cleaned.get("url"):
            check_target_url(cleaned["url"])
        if has_new_text:
            try:
                cleaned["entries"] = ical.read_entries(cleaned["content"], clock.now())
            except ical.UnreadableCalendar as error:
                raise ValidationError({"file" if upload else "content": str(error)}) from None
        cleaned["has_new_text"] = has_new_text
        return cleaned


@admin.register(ExclusionCalendar)
class ExclusionCalendarAdmin(OwnedAdmin):
    """Create calendars of days and intervals at which schedules do not run, and refresh them."""

    admin_may = EVERYTHING
    form = ExclusionCalendarForm
    list_display = ["name", "entry_count", "refreshed_at", "last_error"]
    search_fields = ["name"]
    ordering = ["name"]
    actions_detail = ["refresh_this"]

    def get_fields(self, request: HttpRequest, obj: Any = None) -> list[str]:
        entered = ["name", "url", "file", "content"]
        return entered if obj is None else [*entered, "refreshed_at", "last_error", "listed"]

    def get_readonly_fields(self, request: HttpRequest, obj: Any = None) -> list[str]:
        return ["refreshed_at", "last_error", "listed"]

    @display(description=label("entries"))
    def entry_count(self, calendar: ExclusionCalendar) -> int:
        return len(calendar.entries)

    @display(description=label("entries"))
    def listed(self, calendar: ExclusionCalendar) -> str:
        rows = [(name, start, end) for start, end, name in calendar.entries[:SHOWN]]
        more = len(calendar.entries) - len(rows)
        shown = format_html_join("", "<li>{}: {} – {}</li>", rows)
        return (
            format_html("<ul>{}</ul>{}", shown, gettext("and {more:,} more").format(more=more) if more else "")
            if rows
            else gettext("none")
        )

    def save_model(self, request: Any, obj: ExclusionCalendar, form: Any, change: bool) -> None:
        given, entries = {"name": obj.name}, form.cleaned_data.get("entries")
        if form.cleaned_data["has_new_text"]:
            given["content"] = form.cleaned_data["content"]
        elif obj.url:
            given["url"] = obj.url
        if change:
            calendars.change_calendar(obj.pk, given, entries=entries, actor=request.actor)
        else:
            obj.pk = calendars.create_calendar(
                obj.organization_id, given.pop("name"), entries=entries, actor=request.actor, **given
            ).pk

    def delete_model(self, request: Any, obj: ExclusionCalendar) -> None:
        calendars.delete_calendar(obj.pk, actor=request.actor)

    @action(
        description=_("Refresh"),
        permissions=["change"],
        dialog={"title": _("Read this calendar now?"), "description": _("Its schedules follow within a minute.")},
    )
    def refresh_this(self, request: Any, form: Any, object_id: str) -> HttpResponse:
        calendars.request_refresh(int(object_id), actor=request.actor)
        return self.back_to(object_id)
