"""A model field for weekly working hours."""

from __future__ import annotations

from typing import Any

from django.db import models
from psycopg.types.multirange import Int4Multirange
from psycopg.types.range import Range

Spans = tuple[tuple[int, int], ...]


class WeekSpansField(models.Field):
    """Half-open spans of seconds since Monday 00:00 local time: `((28800, 61200), …)`. None: no hours set.

    Stored as an `int4multirange`, so that "at work now" takes one operator and no join.
    """

    def db_type(self, connection: Any) -> str:
        return "int4multirange"

    def get_prep_value(self, value: Any) -> Any:
        value = super().get_prep_value(value)
        if value is None or isinstance(value, Int4Multirange):
            return value
        return Int4Multirange([Range(low, high, "[)") for low, high in value])

    def from_db_value(self, value: Any, expression: Any, connection: Any) -> Spans | None:
        return spans_of(value)


def spans_of(value: Any) -> Spans | None:
    """Convert the driver's value of a WeekSpansField to plain tuples."""
    return None if value is None else tuple((span.lower, span.upper) for span in value)
