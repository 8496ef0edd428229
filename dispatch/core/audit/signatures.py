"""Sign the rows of the audit log that nobody without the keys may write: anchors, redactions and restarts.

A signature is a keyed hash of the row's values (FIELD_ENCRYPTION_KEYS). Each kind of row has a separate purpose,
so that the signature of one kind is worthless for another. `manage.py reencrypt` signs with the first key again.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from typing import Any

from django.db import models, transaction

from dispatch.core import keyed_hashes
from dispatch.core.models import AuditAnchor, AuditRedaction, AuditRestart

SignedRow = AuditAnchor | AuditRedaction | AuditRestart


def format_moment(moment: datetime) -> str:
    """Return a time in UTC, as hashes and signatures contain it."""
    return moment.astimezone(UTC).isoformat(timespec="microseconds")


def _anchor_values(row: AuditAnchor) -> list[Any]:
    pruned = format_moment(row.pruned_before) if row.pruned_before else ""
    values = [row.organization_id, row.position, row.head, row.start, pruned]
    return [*values, row.restarts] if row.restarts else values  # rows of earlier versions stay valid


def _redaction_values(row: AuditRedaction) -> list[Any]:
    return [row.organization_id, row.event_id, row.digest]


def _restart_values(row: AuditRestart) -> list[Any]:
    return [
        row.organization_id, row.number, row.position, format_moment(row.at), row.operator, row.reason, row.found,
        row.former_seals, row.former_digest,
    ]  # fmt: skip


_KINDS: dict[type[models.Model], tuple[str, Callable[[Any], list[Any]]]] = {
    AuditAnchor: ("audit log anchor", _anchor_values),
    AuditRedaction: ("audit log redaction", _redaction_values),
    AuditRestart: ("audit log restart", _restart_values),
}


def text_of(row: SignedRow) -> str:
    """Return the text under the row's signature."""
    return json.dumps(_KINDS[type(row)][1](row))


def sign_row(row: SignedRow) -> None:
    """Set the row's signature."""
    row.keyed_hash = keyed_hashes.make_hash(_KINDS[type(row)][0], text_of(row))


def is_authentic(row: SignedRow) -> bool:
    """Return whether this installation wrote the row's values."""
    return keyed_hashes.is_hash_of(_KINDS[type(row)][0], text_of(row), row.keyed_hash)


def sign_rows_again(*, write: bool) -> Iterator[tuple[str, int, int, list[int]]]:
    """Yield for each kind: its column, the rows, those signed with a former key, and the ids of unauthentic rows.

    With `write`, sign those of former keys with the first key.
    """
    for model, (purpose, _) in _KINDS.items():
        count, old, unreadable = 0, 0, list[int]()
        for pk in model._default_manager.order_by("pk").values_list("pk", flat=True):
            with transaction.atomic():
                row: Any = model._default_manager.select_for_update(no_key=True).filter(pk=pk).first()
                if row is None:  # deleted meanwhile
                    continue
                count += 1
                if not is_authentic(row):
                    unreadable.append(pk)
                elif not keyed_hashes.is_under_first_key(purpose, text_of(row), row.keyed_hash):
                    old += 1
                    if write:
                        sign_row(row)
                        row.save(update_fields=["keyed_hash"])
        yield f"{model._meta.label}.keyed_hash", count, old, unreadable
