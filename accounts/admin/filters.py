"""Restrict the query parameters that admin lists accept as filters.

Django accepts every lookup on a model's own fields (`?password__regex=^a`), so a reader could recover a hidden
column one character at a time. These lists accept only what `list_filter` and `date_hierarchy` offer, with the
operators that their links use and values that fit the field.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any

from django.contrib import admin
from django.contrib.admin.utils import get_fields_from_path
from django.core.exceptions import ImproperlyConfigured, ValidationError
from django.db import models
from django.db.models.constants import LOOKUP_SEP
from django.utils.dateparse import parse_date, parse_datetime

from dispatch.core.api.parsers import is_storable
from dispatch.core.ids import read_id
from dispatch.core.web.form_fields import YEARS

MAX_VALUE_LENGTH = 200
_SECRET = re.compile("password|secret|token|body|payload|headers")

_Check = Callable[[str], bool]


def check_filters(name: str, paths: Iterator[str]) -> None:
    """Raise ImproperlyConfigured if a list would filter by a column that its page must not disclose."""
    for path in paths:
        if is_secret(path):
            raise ImproperlyConfigured(f"{name}: {path} must not be a filter; its value would be disclosed.")


def is_secret(path: str) -> bool:
    """Return whether the field path names a credential, a token or the content of a message."""
    return bool(_SECRET.search(path))


def is_offered(model_admin: Any, request: Any, lookup: str, value: Any) -> bool:
    """Return whether the list offers this lookup and the value fits its field."""
    if is_secret(lookup) or not isinstance(value, str) or len(value) > MAX_VALUE_LENGTH or not is_storable(value):
        return False
    known = request.__dict__.setdefault("_offered_filters", {})  # called once for each parameter of the URL
    if model_admin not in known:
        known[model_admin] = dict(_offered(model_admin, request))
    accepts = known[model_admin].get(lookup)
    return accepts is not None and accepts(value)


def _offered(model_admin: Any, request: Any) -> Iterator[tuple[str, _Check]]:
    """Yield the parameters of the list's filters, each with a check of its value."""
    for item in model_admin.get_list_filter(request):
        if isinstance(item, type):
            yield item.parameter_name, _is_any  # type: ignore[attr-defined]
            continue
        path, kind = item if isinstance(item, tuple | list) else (item, None)
        field = get_fields_from_path(model_admin.model, path)[-1]
        yield from _of_field(path, field, kind or _default_filter(field))
    if path := model_admin.date_hierarchy:
        yield f"{path}__year", _is_in(YEARS)
        yield f"{path}__month", _is_in(range(1, 13))
        yield f"{path}__day", _is_in(range(1, 32))


def _default_filter(field: Any) -> type:
    """Return the filter class that Django chooses for a field."""
    for test, kind in admin.FieldListFilter._field_list_filters:  # type: ignore[attr-defined]
        if test(field):
            return kind
    raise ImproperlyConfigured(f"{field} has no filter.")


def _of_field(path: str, field: Any, kind: type) -> Iterator[tuple[str, _Check]]:
    exact = f"{path}{LOOKUP_SEP}exact"
    yield f"{path}{LOOKUP_SEP}isnull", _is_flag
    if issubclass(kind, admin.EmptyFieldListFilter):
        yield f"{path}{LOOKUP_SEP}isempty", _is_flag
    elif field.is_relation:
        yield f"{path}{LOOKUP_SEP}{field.target_field.name}{LOOKUP_SEP}exact", _is_id
    elif isinstance(field, models.BooleanField):
        yield exact, _is_flag
    elif isinstance(field, models.DateField):
        yield f"{path}{LOOKUP_SEP}gte", _is_moment
        yield f"{path}{LOOKUP_SEP}lt", _is_moment
    elif field.choices:
        yield exact, {str(choice) for choice, _ in field.flatchoices}.__contains__
    else:
        yield path, _fits(field)
        yield exact, _fits(field)


def _is_any(value: str) -> bool:
    return True  # the filter compares the value with its choices


def _is_flag(value: str) -> bool:
    return value in ("0", "1", "True", "False")


def _is_id(value: str) -> bool:
    return read_id(value) is not None


def _is_in(numbers: range) -> _Check:
    return lambda value: value.isascii() and value.isdigit() and len(value) <= 4 and int(value) in numbers


def _is_moment(value: str) -> bool:
    try:
        moment = parse_datetime(value) or parse_date(value)
    except ValueError:
        return False
    return moment is not None and moment.year in YEARS


def _fits(field: Any) -> _Check:
    def check(value: str) -> bool:
        try:
            field.to_python(value)
        except (ValidationError, ValueError, TypeError):
            return False
        return True

    return check
