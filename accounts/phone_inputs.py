"""Read phone numbers in forms as people of a region write them, and store them in E.164."""

from __future__ import annotations

from typing import Any

import phonenumbers
from django.utils.translation import gettext
from phonenumber_field.formfields import PhoneNumberField
from phonenumber_field.phonenumber import PhoneNumber, to_python
from phonenumber_field.widgets import RegionalPhoneNumberWidget
from unfold.widgets import INPUT_CLASSES


class PhoneInput(RegionalPhoneNumberWidget):
    """Show a phone number as people of the region write it; one of another region with + and its country code."""

    def __init__(self, region: str | None = None, attrs: dict[str, Any] | None = None) -> None:
        super().__init__(region, {"class": " ".join(INPUT_CLASSES), **(attrs or {})})

    def format_value(self, value: Any) -> str | None:
        """Return the number as it is shown, and a text that is no valid number as it was entered."""
        number = to_python(value, region=self.region) if isinstance(value, str) else value
        if isinstance(number, PhoneNumber) and not number.is_valid():
            return str(number.raw_input or value)
        shown: str | None = super().format_value(value)
        return shown


def use_region(field: PhoneNumberField, region: str) -> None:
    """Let the field show and read numbers without a + as numbers of this region; "": a + is required."""
    field.region = region or None
    if isinstance(field.widget, RegionalPhoneNumberWidget):
        field.widget.region = field.region
    field.error_messages["invalid"] = (
        gettext("Enter a valid phone number, such as {example}, or with + and its country code.").format(
            example=phone_example(region)
        )
        if region
        else gettext("Enter a valid phone number with + and its country code, such as +16025550123.")
    )


def phone_example(region: str | None) -> str:
    """Return an example of a phone number, as people of the region write it."""
    number = to_python(phonenumbers.example_number(region)) if region else None
    return number.as_national if number else "+16025550123"
