"""The labels of models and of the admin's columns, in the language of the reader.

A label is a word or two without a sentence around it, so the same English label can need several translations. The
catalogs hold labels with a context: `jobs.offer` for a model's, `event` for
the verbs of events, `label` for all others. Without such an entry,
the translation of the plain text is used.

    @display(description=label("state"), label=BadgeColors({"active": "success", "paused": "warning"}))
    def state(self, row): return translate_label("paused" if row.is_paused else "active")

The labels of models stay plain texts in their definitions, or are derived from the names of fields by Django.
`translate_model_labels` replaces them once all models are loaded, so that no migration contains a translation.
A model's `REFUSALS` are what forms say if one of its constraints is violated, by the constraint's name.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from django.apps import apps
from django.utils.choices import CallableChoiceIterator
from django.utils.functional import lazy
from django.utils.translation import gettext, pgettext

# The packages whose models are ours.
OURS = frozenset({"accounts", "dispatch", "notifications"})
CONTEXT = "label"


def translate_label(text: str, model: str = "") -> str:
    """Return a label in the active language. `model`: the model that it belongs to, such as `jobs.offer`."""
    for context in (model, CONTEXT):
        if context and (translated := pgettext(context, text)) != text:
            return translated
    return gettext(text)


# Return a label that is translated each time it is shown.
label: Any = lazy(translate_label, str)


# The words of fields' names that labels write differently.
_SPELLINGS = {
    "id": "ID", "ids": "IDs", "api": "API", "pin": "PIN", "sid": "SID", "lat": "latitude", "lng": "longitude",
}  # fmt: skip


def _spell_out(name: str) -> str:
    """Return the label of a field that is named `name`, such as "call SID" or "ring timeout (s)"."""
    words = [_SPELLINGS.get(word, word) for word in name.split(" ")]
    return " ".join([*words[:-1], "(s)"] if len(words) > 1 and words[-1] == "s" else words)


class BadgeColors(dict[str, str]):
    """The colors of badges by their English words. It finds them by the translated words as well."""

    def __contains__(self, words: object) -> bool:
        return self._key_of(words) is not None

    def __getitem__(self, words: str) -> str:
        key = self._key_of(words)
        if key is None:
            raise KeyError(words)
        return super().__getitem__(key)

    def _key_of(self, words: object) -> str | None:
        return next((key for key in self if words in (key, translate_label(key))), None)


def translate_model_labels() -> None:
    """Make the names, field labels, help texts and choices of our models follow the active language."""
    for config in apps.get_app_configs():
        if config.name.partition(".")[0] in OURS:
            config.verbose_name = label(config.verbose_name)
    for model in apps.get_models(include_auto_created=True):
        if model.__module__.partition(".")[0] not in OURS:
            continue
        meta: Any = model._meta
        context = meta.label_lower
        if meta.auto_created:
            meta.verbose_name, meta.verbose_name_plural = label("relationship"), label("relationships")
            continue
        plural = str(meta.verbose_name_plural)  # before the singular: Django derives it
        meta.verbose_name, meta.verbose_name_plural = label(meta.verbose_name, context), label(plural, context)
        for constraint in meta.constraints:
            if text := constraint.violation_error_message:
                constraint.violation_error_message = _label(text, context)
            if sentence := getattr(model, "REFUSALS", {}).get(constraint.name):
                constraint.get_violation_error_message = partial(gettext, sentence)
        for field in [*meta.local_fields, *meta.local_many_to_many]:
            derived = _spell_out(field.verbose_name) if field._verbose_name is None else field.verbose_name
            field.verbose_name = _label(derived, context)
            field.help_text = _label(field.help_text, context)
            if isinstance(field.choices, CallableChoiceIterator):
                field.choices = _LabeledChoices(field.choices.func, context)
            elif field.choices is not None:
                field.choices = [(value, _label(words, context)) for value, words in field.choices]


class _LabeledChoices(CallableChoiceIterator):
    """The choices that a function returns, with labels in the active language. Migrations name the function."""

    def __init__(self, func: Callable[[], Any], context: str) -> None:
        super().__init__(func)
        self._context = context

    def __iter__(self) -> Iterator[Any]:
        return ((value, _label(words, self._context)) for value, words in super().__iter__())


def _label(text: Any, context: str) -> Any:
    return label(text, context) if isinstance(text, str) and text else text
