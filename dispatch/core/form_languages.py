"""Translate the fields of forms, whose labels are marked and stored in English."""

from __future__ import annotations

from typing import Any

from django import forms

from dispatch.core.languages import gettext


def translate_field(field: forms.Field) -> None:
    """Translate the label, the help text and the choices of a form's own field into the active language."""
    field.label = gettext(str(field.label)) if field.label else field.label
    field.help_text = gettext(str(field.help_text)) if field.help_text else ""
    if isinstance(field, forms.ModelChoiceField):
        field.empty_label = gettext(str(field.empty_label)) if field.empty_label else field.empty_label
    elif isinstance(field, forms.ChoiceField):
        choices: Any = field.choices
        field.choices = [(value, gettext(str(words)) if words else words) for value, words in choices]
