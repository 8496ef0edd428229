"""Limit the length of passwords: one that could be chosen but not entered would lock its owner out."""

from __future__ import annotations

from typing import Any

from django.contrib.auth.password_validation import MinimumLengthValidator
from django.core.exceptions import ValidationError

from dispatch.core.languages import gettext as _

# Sign-in refuses longer ones before it hashes them.
MAX_PASSWORD_LENGTH = 4096


class LengthValidator(MinimumLengthValidator):
    """Refuse passwords that are too short, or longer than the sign-in page accepts."""

    def validate(self, password: str, user: Any = None) -> None:
        super().validate(password, user)
        if len(password) > MAX_PASSWORD_LENGTH:
            raise ValidationError(
                _("Enter at most {most} characters.").format(most=MAX_PASSWORD_LENGTH), code="password_too_long"
            )
