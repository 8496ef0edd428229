"""Repeat the first response when a request is repeated with the same Idempotency-Key.

One row per (organization, endpoint, key) is inserted before the work, in the same transaction. A concurrent repeat
waits on the unique index until the first request commits, and then reads its response. If the first request fails,
its row is rolled back and the waiting repeat takes its place.
"""

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

from dispatch.core import clock
from dispatch.core.api.problems import Unprocessable
from dispatch.core.db import fast_rows, prepared
from dispatch.core.models import RememberedAnswer

HEADER = "Idempotency-Key"
_KEY = re.compile(r"[\x21-\x7e]{1,255}")
_CLAIM = """
    INSERT INTO core_rememberedanswer (organization_id, endpoint, key, body_hash, status_code, body, created_at)
    VALUES (%s, %s, %s, %s, %s, %s, %s)
    ON CONFLICT (organization_id, endpoint, key) DO NOTHING
    RETURNING id
"""

_KEEP = "UPDATE core_rememberedanswer SET status_code = %s, body = %s WHERE id = %s"


class KeyReused(Unprocessable):
    """422: the key was used with another body."""

    default_detail = f"This {HEADER} was used with another body. Use a new key for a new request."
    default_code = "idempotency_key_reused"


def run_once(
    organization_id: int, endpoint: str, key: str, body: Any, make: Callable[[], tuple[int, dict]]
) -> tuple[int, dict, bool]:
    """Run `make` once per key; return (status code, JSON response, whether it is a replay).

    `make` runs in this function's transaction and returns (status code, JSON response). If it raises, or returns a
    status of 400 or above, everything is rolled back and nothing is stored. `body` is the parsed request body to
    which the key belongs. The response is kept for IDEMPOTENCY_KEEP_DAYS. With an empty `key`, `make` just runs in
    a transaction. Raises KeyReused (another body) and ValidationError (a key that is too long or not printable
    ASCII).
    """
    if not key:
        with transaction.atomic():
            return (*_run(make), False)
    if not is_valid_key(key):
        raise ValidationError({HEADER: ["Must be 1 to 255 printable ASCII characters without spaces."]})
    digest = body_hash(body)
    while True:
        with transaction.atomic():
            if claimed := _claim_key(organization_id, endpoint, key, digest):
                status_code, answer = _run(make)
                if status_code < 400:  # otherwise `_run` has rolled the transaction back
                    _store_response(claimed, status_code, answer)
                return status_code, answer, False
            first = RememberedAnswer.objects.filter(organization_id=organization_id, endpoint=endpoint, key=key)
            if (row := first.first()) is None:
                continue  # deleted between the two statements
            if row.created_at <= oldest_kept():
                first.filter(pk=row.pk).delete()
                continue
        if row.body_hash != digest:
            raise KeyReused
        return row.status_code, json.loads(row.body), True


def is_valid_key(key: str) -> bool:
    """Return whether the text may be an Idempotency-Key."""
    return bool(_KEY.fullmatch(key))


def guard(
    organization_id: int, endpoint: str, key: str, body: Any, status_code: int, answer: dict
) -> fast_rows.Guard:
    """Return the claim of a valid key with the response to store, for a row that is inserted once per key.

    It is for a response that is known before the row is inserted. If it inserts nothing, `run_once` returns the
    first response or says why there is none.
    """
    digest = body_hash(body)
    return fast_rows.Guard(
        _CLAIM, [organization_id, endpoint, key, digest, status_code, _as_text(answer), clock.now()]
    )


def plain_json(answer: dict) -> dict:
    """Return a response as its JSON will be read, so that the first response and its replays are the same."""
    plain: dict = json.loads(json.dumps(answer, cls=DjangoJSONEncoder))
    return plain


def body_hash(body: Any) -> str:
    """Return the SHA-256 of a JSON value, independent of member order."""
    return hashlib.sha256(json.dumps(body, sort_keys=True, cls=DjangoJSONEncoder).encode()).hexdigest()


def oldest_kept() -> Any:
    """Return the time before which stored responses have expired."""
    return clock.now() - timedelta(days=settings.IDEMPOTENCY_KEEP_DAYS)


def _claim_key(organization_id: int, endpoint: str, key: str, digest: str) -> int | None:
    claimed = prepared.fetch_all(_CLAIM, [organization_id, endpoint, key, digest, 0, "{}", clock.now()])
    return claimed[0][0] if claimed else None


def _store_response(claimed: int, status_code: int, answer: dict) -> None:
    prepared.execute(_KEEP, [status_code, _as_text(answer), claimed])


def _as_text(answer: dict) -> str:
    # Not ASCII-escaped, because erasure of personal data searches it.
    return json.dumps(answer, ensure_ascii=False)


def _run(make: Callable[[], tuple[int, dict]]) -> tuple[int, dict]:
    status_code, answer = make()
    if status_code >= 400:
        transaction.set_rollback(True)
    return status_code, plain_json(answer)
