"""The same request twice is answered as it was the first time.

One row per (organization, endpoint, key), inserted before the work in the same transaction: a concurrent repeat
waits on the unique index until the first has committed, and then reads its answer. If the first fails, its row
goes with it and the waiting repeat becomes the first."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable
from datetime import timedelta
from typing import Any

from django.conf import settings
from django.core.serializers.json import DjangoJSONEncoder
from django.db import transaction
from rest_framework.exceptions import ValidationError

from dispatch.core import clock, statements
from dispatch.core.models import RememberedAnswer
from dispatch.core.problems import Unprocessable

HEADER = "Idempotency-Key"
_KEY = re.compile(r"[\x21-\x7e]{1,255}")
_CLAIM = """
    INSERT INTO core_rememberedanswer (organization_id, endpoint, key, body_hash, status_code, body, created_at)
    VALUES (%s, %s, %s, %s, 0, '{}', %s)
    ON CONFLICT (organization_id, endpoint, key) DO NOTHING
    RETURNING id
"""

_KEEP = "UPDATE core_rememberedanswer SET status_code = %s, body = %s WHERE id = %s"


class KeyReused(Unprocessable):
    """422: the key was used for another body."""

    default_detail = f"This {HEADER} was used for another body. Use a new key for a new request."
    default_code = "idempotency_key_reused"


def remember(
    organization_id: int, endpoint: str, key: str, body: Any, make: Callable[[], tuple[int, dict]]
) -> tuple[int, dict, bool]:
    """Runs `make` once per key and returns (status code, answer, whether it is a replay).

    `make` runs in this function's transaction and returns (status code, JSON answer). If it raises, or answers 400
    or above, everything is rolled back and nothing is remembered. `body` is the parsed body that the key stands
    for; the answer is kept for IDEMPOTENCY_KEEP_DAYS. An empty `key` just runs `make` in a transaction. Raises
    KeyReused (other body), ValidationError (a key that is too long or not printable ASCII)."""
    if not key:
        with transaction.atomic():
            return (*_run(make), False)
    if not _KEY.fullmatch(key):
        raise ValidationError({HEADER: ["1 to 255 printable ASCII characters without spaces."]})
    digest = body_hash(body)
    while True:
        with transaction.atomic():
            if claimed := _claim(organization_id, endpoint, key, digest):
                status_code, answer = _run(make)
                if status_code < 400:  # else `_run` has given the transaction up
                    _keep(claimed, status_code, answer)
                return status_code, answer, False
            first = RememberedAnswer.objects.filter(organization_id=organization_id, endpoint=endpoint, key=key)
            if (row := first.first()) is None:
                continue  # deleted between the two statements
            if row.created_at <= kept_since():
                first.filter(pk=row.pk).delete()
                continue
        if row.body_hash != digest:
            raise KeyReused
        return row.status_code, json.loads(row.body), True


def body_hash(body: Any) -> str:
    """SHA-256 of a JSON value, whatever the order of its members."""
    return hashlib.sha256(json.dumps(body, sort_keys=True, cls=DjangoJSONEncoder).encode()).hexdigest()


def kept_since() -> Any:
    """Answers from before this moment are forgotten."""
    return clock.now() - timedelta(days=settings.IDEMPOTENCY_KEEP_DAYS)


def _claim(organization_id: int, endpoint: str, key: str, digest: str) -> int | None:
    claimed = statements.rows(_CLAIM, [organization_id, endpoint, key, digest, clock.now()])
    return claimed[0][0] if claimed else None


def _keep(claimed: int, status_code: int, answer: dict) -> None:
    # Not in ASCII: who erases a person looks for their name in it.
    statements.do(_KEEP, [status_code, json.dumps(answer, ensure_ascii=False), claimed])


def _run(make: Callable[[], tuple[int, dict]]) -> tuple[int, dict]:
    status_code, answer = make()
    if status_code >= 400:
        transaction.set_rollback(True)
    # What is answered now and what is replayed later are the same JSON.
    return status_code, json.loads(json.dumps(answer, cls=DjangoJSONEncoder))
