"""Show calling hours and weekdays in the admin."""

from __future__ import annotations

from datetime import time
from typing import Any

from django import forms
from django.db import models
from django.http import HttpRequest
from unfold.widgets import UnfoldAdminCheckboxSelectMultipleWidget

DAYS = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")
_CHOICES = list(enumerate(("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")))


def describe_window(window_from: time, window_until: time) -> str:
    """Describe a calling window for a list."""
    return "at any hour" if window_from == window_until else f"{window_from:%H:%M}–{window_until:%H:%M}"


class WeekdaysMixin:
    """Show weekdays as checkboxes. Mix into an admin class, before its base."""

    def formfield_for_dbfield(self, db_field: models.Field, request: HttpRequest, **kwargs: Any) -> Any:
        if db_field.name == "weekdays":
            return forms.TypedMultipleChoiceField(
                choices=_CHOICES,
                coerce=int,
                initial=[day for day, _ in _CHOICES],
                widget=UnfoldAdminCheckboxSelectMultipleWidget,
                help_text="For a window that runs past midnight, choose the day on which it begins.",
            )
        return super().formfield_for_dbfield(db_field, request, **kwargs)  # type: ignore[misc]
