"""Form fields that reject hostile texts instead of failing."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from django import forms
from django.contrib.postgres.forms import SimpleArrayField
from django.core.exceptions import ValidationError
from django.forms.fields import InvalidJSONInput

from dispatch.core.api.parsers import MAX_DEPTH, is_too_deep, load_json
from dispatch.core.api.serializers import MAX_ITEMS
from dispatch.core.languages import gettext

MAX_JSON_LENGTH = 100_000
# PostgreSQL stores moments that Python can't read: the last evening of the year 9999, west of Greenwich.
YEARS = range(1900, 2201)


def check_year(moment: datetime) -> None:
    """Accept a moment in the years that every zone can show. Raises ValidationError."""
    if moment.year not in YEARS:
        raise ValidationError(
            gettext("Choose a year from {first} to {last}.").format(first=YEARS[0], last=YEARS[-1])
        )


class BoundedDateTimeField(forms.SplitDateTimeField):
    """Read a date and a time in the years that every zone can show."""

    default_validators = [check_year]


class BoundedArrayField(SimpleArrayField):
    """Parse a list of limited length. Django's field validates each item first, however many there are."""

    max_items = MAX_ITEMS

    def to_python(self, value: Any) -> Any:
        count = value.count(self.delimiter) + 1 if isinstance(value, str) else len(value or ())
        if count > self.max_items:
            raise ValidationError(
                gettext("At most {count:,} values allowed.").format(count=self.max_items), code="max_length"
            )
        return super().to_python(value)


class BoundedJSONField(forms.JSONField):
    """Parse JSON of limited length and depth.

    Django's field fails with a server error for deep nesting and for numbers of thousands of digits.
    """

    def to_python(self, value: Any) -> Any:
        if isinstance(value, str) and value not in self.empty_values:
            if len(value) > MAX_JSON_LENGTH:
                raise ValidationError(
                    gettext("At most {count:,} characters allowed.").format(count=MAX_JSON_LENGTH),
                    code="max_length",
                )
            try:
                parsed = load_json(value)
            except ValueError:
                raise ValidationError(
                    self.error_messages["invalid"], code="invalid", params={"value": ""}
                ) from None
            if is_too_deep(parsed):
                raise ValidationError(
                    gettext("Nested too deeply. The maximum is {count} levels.").format(count=MAX_DEPTH),
                    code="too_deep",
                )
        return super().to_python(value)

    def prepare_value(self, value: Any) -> Any:
        """Return the text of a value; no value is an empty field, not the text "null"."""
        return "" if value is None else super().prepare_value(value)

    def bound_data(self, data: Any, initial: Any) -> Any:
        """Return what the form shows again: the parsed value, or a rejected text as it was entered."""
        try:
            self.to_python(data)
        except ValidationError:
            return InvalidJSONInput(str(data)[:MAX_JSON_LENGTH])
        return super().bound_data(data, initial)
