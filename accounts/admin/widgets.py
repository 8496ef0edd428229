"""Define form widgets and columns that differ from Unfold's."""

from __future__ import annotations

from datetime import time
from typing import Any

from django import forms
from django.contrib import admin
from django.contrib.postgres.fields import ArrayField
from django.db import models
from phonenumber_field.modelfields import PhoneNumberField
from unfold.widgets import INPUT_CLASSES, UnfoldAdminSplitDateTimeWidget, UnfoldAdminTextareaWidget

from accounts.phone_inputs import PhoneInput
from dispatch.core.phone_numbers import format_national
from dispatch.core.web.form_fields import BoundedArrayField, BoundedDateTimeField


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


class ShownChoices(forms.MultipleHiddenInput):
    """The choices that a page showed. Django's widget renders nothing if there were none."""

    def get_context(self, name: str, value: Any, attrs: Any) -> dict[str, Any]:
        return super().get_context(name, value or [""], attrs)

    def value_from_datadict(self, data: Any, files: Any, name: str) -> list[str]:
        return [value for value in super().value_from_datadict(data, files, name) if value]


# Fields of text that hold a phone number, or a short code or a name instead.
PHONES = frozenset({"from_phone", "to_phone"})
OVERRIDES: dict[Any, dict[str, Any]] = {
    ArrayField: {"form_class": BoundedArrayField, "widget": UnfoldAdminTextareaWidget},
    models.DateTimeField: {"form_class": BoundedDateTimeField, "widget": UnfoldAdminSplitDateTimeWidget},
    models.TimeField: {"widget": TimeOfDayInput},
    PhoneNumberField: {"widget": PhoneInput},
}


def phone_fields(model: type[models.Model]) -> list[str]:
    """Return the names of the model's fields that hold a phone number."""
    return [
        field.name
        for field in model._meta.fields
        if isinstance(field, PhoneNumberField) or (isinstance(field, models.CharField) and field.name in PHONES)
    ]


def phone_column(model: type[models.Model], name: Any) -> Any:
    """Return a column of a list that formats the phone numbers of this field; any other column as it is."""
    if not isinstance(name, str) or name not in phone_fields(model):
        return name

    @admin.display(description=model._meta.get_field(name).verbose_name, ordering=name)  # type: ignore[union-attr]
    def phone(row: models.Model) -> str:
        return format_national(getattr(row, name)) if getattr(row, name) else "—"

    phone.__name__ = name
    return phone
