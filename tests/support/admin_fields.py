"""Find the fields that the admin's pages show, and the labels of these fields in English."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from typing import Any

from django.contrib import admin
from django.db.models import BaseConstraint, Model
from django.utils.translation import override

_NAME = re.compile(r'"([a-z_0-9]+)"')


def shown_fields() -> dict[type[Model], set[str]]:
    """Return the models of the admin with the names of the fields that a list, a form or a filter may show.

    A name counts if the source of the admin class or of its form contains it as a literal.
    """
    admin.autodiscover()
    found: dict[type[Model], set[str]] = {}
    for model, page in admin.site._registry.items():
        for shown, owner in [(model, type(page)), *((inline.model, inline) for inline in page.inlines)]:
            found.setdefault(shown, set()).update(_names_of(shown, owner))
    return found


def _names_of(model: type[Model], owner: type[Any]) -> Iterator[str]:
    source = "".join(_source_of(part) for part in (*owner.__mro__, owner.form))
    literals = set(_NAME.findall(source)) | set(_flat([owner.fields or (), getattr(owner, "list_display", ())]))
    has_fields = owner.fields or owner.fieldsets or re.search(r"def get_fields(?:ets)?\(", source)
    for field in model._meta.get_fields():
        is_own = hasattr(field, "verbose_name") and field.name != "id"
        if is_own and (field.name in literals or (not has_fields and getattr(field, "editable", False))):
            yield field.name


def _has_own_message(constraint: BaseConstraint) -> bool:
    return constraint.violation_error_message is not constraint.default_violation_error_message


def _flat(names: Any) -> Iterator[str]:
    for name in names:
        if isinstance(name, str):
            yield name
        else:
            yield from _flat(name)


def _source_of(part: type[Any]) -> str:
    is_ours = part.__module__.partition(".")[0] in ("accounts", "dispatch", "notifications")
    if not is_ours or part.__module__.startswith("accounts.admin.base"):
        return ""
    try:
        return inspect.getsource(part)
    except OSError:  # made by `extend_admin`
        return ""


def labels_of(model: type[Model], names: set[str]) -> set[str]:
    """Return the model's names, and the labels, help texts and choices of these fields, in English."""
    with override("en"):
        found = {str(model._meta.verbose_name), str(model._meta.verbose_name_plural)}
        for field in (model._meta.get_field(name) for name in names):
            choices = [str(words) for _, words in getattr(field, "flatchoices", ())]
            found |= {str(field.verbose_name), str(field.help_text), *choices}  # type: ignore[union-attr]
        own = (constraint for constraint in model._meta.constraints if constraint.violation_error_message)
        found |= {str(constraint.violation_error_message) for constraint in own if _has_own_message(constraint)}
    return {text for text in found if re.search(r"[^\W\d_]{2,}", text)}
