"""Form fields of an arrival window: a day and two times of day, in the organization's local time."""

from __future__ import annotations

from datetime import UTC, date, datetime, time, timedelta
from typing import Any
from zoneinfo import ZoneInfo

from django import forms

from dispatch.core import clock
from dispatch.core.languages import gettext as _
from dispatch.jobs.rules.arrival_window import ArrivalWindow

NAMES = ("window_day", "window_from", "window_until")
# Days beyond these are refused as past or too far away, and could not be converted to UTC.
_FIRST_DAY, _LAST_DAY = date.min + timedelta(days=2), date.max - timedelta(days=2)


def add_window_fields(form: forms.Form, zone: str, window: ArrivalWindow | None = None) -> None:
    """Add the three fields, with the values of `window` in the local time of `zone`."""
    start, end = (
        (moment.astimezone(ZoneInfo(zone)) for moment in (window.start, window.end)) if window else (None, None)
    )
    form.window_zone, form.window_before = zone, window  # type: ignore[attr-defined]
    form.fields["window_day"] = forms.DateField(
        required=False,
        label=_("Arrival on"),
        initial=start and start.date(),
        widget=forms.DateInput({"type": "date"}, format="%Y-%m-%d"),
    )
    for name, label, moment in (
        ("window_from", _("Arrival from"), start),
        ("window_until", _("Arrival until"), end),
    ):
        form.fields[name] = forms.TimeField(
            required=False,
            label=label,
            initial=moment and moment.time().replace(tzinfo=None),
            widget=forms.TimeInput({"type": "time"}, format="%H:%M"),
        )


def clean_window(form: forms.Form, values: dict[str, Any]) -> None:
    """Set `window` to the entered ArrivalWindow, or to None if all three fields are empty.

    Add an error to a field that is missing or contradicts the others. A window that was not changed is accepted
    although it has passed.
    """
    values["window"] = None
    if any(name in form.errors for name in NAMES):
        return
    given: dict[str, Any] = {name: values.get(name) for name in NAMES}
    if not any(value is not None for value in given.values()):
        return
    for name, value in given.items():
        if value is None:
            form.add_error(name, _("Enter the day and both times, or leave all three empty."))
            return
    zone: str = form.window_zone  # type: ignore[attr-defined]
    before: ArrivalWindow | None = form.window_before  # type: ignore[attr-defined]
    window = window_of(given["window_day"], given["window_from"], given["window_until"], zone)
    if before is not None and _to_minutes(before) == _to_minutes(window):
        values["window"] = before
    elif problem := window.problem(clock.now()):
        form.add_error("window_until" if "end" in problem else "window_day", _(problem))
    else:
        values["window"] = window


def window_of(day: date, start: time, end: time, zone: str) -> ArrivalWindow:
    """Return the window of local times on a day. One that ends at or before it starts ends on the next day.

    Both are in UTC, so that a window across a change of the clocks is compared by the time that passes.
    """
    local = ZoneInfo(zone)
    day = min(max(day, _FIRST_DAY), _LAST_DAY)
    last = day if end > start else day + timedelta(days=1)
    moments = (datetime.combine(day, start, tzinfo=local), datetime.combine(last, end, tzinfo=local))
    return ArrivalWindow(*(moment.astimezone(UTC) for moment in moments))


def _to_minutes(window: ArrivalWindow) -> tuple[datetime, datetime]:
    return (window.start.replace(second=0, microsecond=0), window.end.replace(second=0, microsecond=0))
