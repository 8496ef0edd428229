"""Make the model fields of a row that may choose another language and voice than its organization."""

from __future__ import annotations

from django.db import models

from accounts.models import Organization
from dispatch.core.voices import voice_choices


def own_language(help_text: str) -> models.CharField:
    """Return the field of a language, which may be empty for the organization's."""
    return models.CharField(
        max_length=2, choices=Organization.Language, blank=True, default="", db_default="", help_text=help_text
    )


def own_voice(help_text: str) -> models.CharField:
    """Return the field of a voice, which may be empty for the organization's."""
    return models.CharField(
        max_length=64, choices=voice_choices, blank=True, default="", db_default="", help_text=help_text
    )
