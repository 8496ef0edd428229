"""Define form widgets that differ from Unfold's."""

from __future__ import annotations

from datetime import time
from typing import Any

from django import forms
from django.db import models
from unfold.widgets import INPUT_CLASSES


class TimeOfDayInput(forms.TimeInput):
    """The browser's time picker.

    Django's widget warns that the browser's zone differs from the server's, but these times are local to
    the people called, or to the organization.
    """

    input_type = "time"

    def __init__(self, attrs: dict[str, Any] | None = None) -> None:
        # any step: the picker shows seconds only if the value has some
        super().__init__(attrs={"class": " ".join(INPUT_CLASSES), "step": "any", **(attrs or {})})

    def format_value(self, value: Any) -> str | None:
        return value.isoformat("seconds" if value.second else "minutes") if isinstance(value, time) else value


OVERRIDES: dict[Any, dict[str, Any]] = {models.TimeField: {"widget": TimeOfDayInput}}
