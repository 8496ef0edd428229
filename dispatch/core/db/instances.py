"""Create model instances on hot paths, where the model's constructor costs more than writing the row."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeVar

from django.db import DEFAULT_DB_ALIAS
from django.db.models import NOT_PROVIDED, Model
from django.db.models.base import ModelState
from django.db.models.query_utils import DeferredAttribute

M = TypeVar("M", bound=Model)


class _Defaults(NamedTuple):
    """What the instances of a model begin with. `assignable`: other names, whose descriptors set a value."""

    constant: dict[str, Any]
    computed: list[tuple[str, Callable[[], Any]]]
    assignable: frozenset[str]


def new_instance(model: type[M], **values: Any) -> M:
    """Create an instance that is not in the database, as the model's constructor does, but without signals.

    Raises TypeError for a name that is no field.
    """
    constant, computed, assignable = _defaults(model)
    row = _empty(model, constant, None)
    columns = row.__dict__
    for name, default in computed:
        columns[name] = values[name] if name in values else default()
    for name, value in values.items():
        if name in assignable:
            setattr(row, name, value)
        elif name in columns:
            columns[name] = value
        else:
            raise TypeError(f"{model.__name__} has no field {name}.")
    return row


def stored_instance(model: type[M], names: Sequence[str], values: Sequence[Any]) -> M:
    """Create the instance of a row of the database from the converted values of its columns."""
    return _empty(model, zip(names, values, strict=True), DEFAULT_DB_ALIAS)


def _empty(model: type[M], columns: Any, database: str | None) -> M:
    row = model.__new__(model)
    own = row.__dict__
    own["_state"] = state = ModelState()
    state.db, state.adding = database, database is None
    own.update(columns)
    return row


@functools.cache
def _defaults(model: type[Model]) -> _Defaults:
    constant: dict[str, Any] = {}
    computed = []
    assignable = set()
    for field in model._meta.concrete_fields:
        if field.is_relation:
            assignable.add(field.name)
        if not isinstance(model.__dict__.get(field.attname), DeferredAttribute):
            assignable.add(field.attname)
        if field.default is not NOT_PROVIDED and callable(field.default):
            computed.append((field.attname, field.get_default))
        else:
            constant[field.attname] = field.get_default()
    return _Defaults(constant, computed, frozenset(assignable))
