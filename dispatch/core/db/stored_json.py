"""Compare JSON values with those read from a jsonb column."""

from __future__ import annotations

import json
from decimal import Decimal
from typing import Any

from django.core.serializers.json import DjangoJSONEncoder


def is_same_json(stored: Any, given: Any) -> bool:
    """Return whether storing `given` would change nothing.

    In Python, 1, 1.0 and True are equal, but not in JSON. The order of members does not count.
    """
    return _as_text(stored) == _as_text(given)


def _as_text(value: Any) -> str:
    as_read = json.loads(json.dumps(value, cls=DjangoJSONEncoder), parse_float=_read_number)
    return json.dumps(as_read, sort_keys=True)


def _read_number(text: str) -> float | int:
    """Return a number with a point or an exponent as it is read from jsonb, which is decimal and has no -0.0.

    Python writes numbers from 1e16 on with an exponent; PostgreSQL returns their digits.
    """
    return int(Decimal(text)) if "e+" in text else float(text) + 0.0
