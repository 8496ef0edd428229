"""Record erasures, opt-outs, withdrawn consents and do-not-call entries, to repeat them after a restore.

A restored dump brings erased people back, and does not know who has opted out since. Each such act therefore
writes a ReplayEntry in its transaction, and `write_list` copies the entries to a file outside the database. The
file has keyed hashes instead of phone numbers and email addresses: without FIELD_ENCRYPTION_KEYS it reveals
nobody. `manage.py replay_after_restore` repeats the entries that the restored database does not have.

An opt-out of a number that the restored database does not know stays pending: `find_refused` recognizes the number
when it appears again, and `find_withdrawn` a consent that was withdrawn.
"""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import structlog

from dispatch.core import clock, keyed_hashes
from dispatch.core.models import ReplayEntry

log = structlog.get_logger(__name__)

PURPOSE = "replay list"
ERASURE, TECHNICIAN_ERASURE, USER_ERASURE = "erasure", "technician_erasure", "user_erasure"
INVITATION_ERASURE = "invitation_erasure"  # `subject_id` is the membership's
OPT_OUT, OPT_IN = "opt_out", "opt_in"
DO_NOT_CALL, CALL_AGAIN = "do_not_call", "call_again"
CONSENT_WITHDRAWAL = "consent_withdrawal"
# The reverse of each entry that a later one revokes.
REVOKED_BY = {OPT_OUT: OPT_IN, DO_NOT_CALL: CALL_AGAIN}
# Kinds that stay pending while the database does not have what they concern.
MAY_BE_PENDING = frozenset({*REVOKED_BY, CONSENT_WITHDRAWAL})
KEPT_DAYS = 400
# How long a process remembers whether pending entries exist.
PENDING_CACHE_S = 60.0


@dataclass(frozen=True)
class Entry:
    """One entry of the list. `organization_id` None: of every organization."""

    uid: str
    organization_id: int | None
    kind: str
    keyed_hash: str
    key_id: str
    subject_id: int | None
    at: datetime

    def row(self, *, is_pending: bool = False) -> ReplayEntry:
        """Return the row of this entry, unsaved."""
        return ReplayEntry(
            uid=uuid.UUID(self.uid),
            organization_id=self.organization_id,
            kind=self.kind,
            keyed_hash=self.keyed_hash,
            key_id=self.key_id,
            subject_id=self.subject_id,
            at=self.at,
            is_pending=is_pending,
        )


# --- recording --------------------------------------------------------------------------------------------------


def record(organization_id: int | None, kind: str, value: str = "", *, subject_id: int | None = None) -> None:
    """Record one act, in its transaction. `value` is the phone number (E.164) or the email address."""
    ReplayEntry.objects.create(
        uid=uuid.uuid4(),
        organization_id=organization_id,
        kind=kind,
        keyed_hash=keyed_hashes.make_hash(PURPOSE, value) if value else "",
        key_id=keyed_hashes.key_ids()[0],
        subject_id=subject_id,
    )


def record_erasure(
    organization_id: int,
    values: Iterable[str],
    *,
    technician_id: int | None,
    user_id: int | None,
    invitation_id: int | None,
) -> None:
    """Record the erasure of a person, by each value that identified them and by their id."""
    for value in sorted(values):
        record(organization_id, ERASURE, value)
    if technician_id is not None:
        record(organization_id, TECHNICIAN_ERASURE, subject_id=technician_id)
    if user_id is not None:
        record(organization_id, USER_ERASURE, subject_id=user_id)
    if invitation_id is not None:
        record(organization_id, INVITATION_ERASURE, subject_id=invitation_id)


def delete_old_entries(before: datetime, limit: int) -> int:
    """Delete entries older than every dump that is kept. Pending ones stay, because they are in effect."""
    ids = ReplayEntry.objects.filter(at__lt=before, is_pending=False).order_by("pk").values_list("pk", flat=True)
    return ReplayEntry.objects.filter(pk__in=list(ids[:limit])).delete()[0]


# --- the list ---------------------------------------------------------------------------------------------------


def write_list(path: Path, *, days: int = KEPT_DAYS) -> int:
    """Write the entries of these days as JSON Lines; return how many. The file is never half.

    Recent entries of the existing file that the database does not have are kept: after a restore they are missing
    there until they are repeated. A file that cannot be read is renamed to `<name>.unreadable`.
    """
    since = clock.now() - timedelta(days=days)
    kept = {entry.uid: entry for entry in _read_existing(path) if entry.at >= since}
    new = path.with_name(f"{path.name}.new")
    count = 0
    with new.open("w") as file:
        for row in ReplayEntry.objects.filter(at__gte=since).order_by("pk").iterator():
            kept.pop(str(row.uid), None)
            file.write(json.dumps(_members(row)) + "\n")
            count += 1
        for entry in kept.values():
            file.write(json.dumps(_members(entry.row())) + "\n")
    new.chmod(0o600)
    new.replace(path)
    return count + len(kept)


def _read_existing(path: Path) -> list[Entry]:
    try:
        return read_list(path) if path.exists() else []
    except ValueError as error:
        log.error("replay_list_unreadable", file=str(path), error=str(error))
        path.replace(path.with_name(f"{path.name}.unreadable"))
        return []


def read_list(path: Path) -> list[Entry]:
    """Return the entries of the file. Raises ValueError with the line that cannot be read."""
    entries = []
    for number, line in enumerate(path.read_text().splitlines(), 1):
        try:
            members = json.loads(line)
            entries.append(Entry(**{**members, "at": datetime.fromisoformat(members["at"])}))
            uuid.UUID(members["uid"])
        except (ValueError, KeyError, TypeError):
            raise ValueError(f"{path}, line {number}: not an entry of a replay list.") from None
    return entries


def _members(entry: ReplayEntry) -> dict[str, Any]:
    return {
        "uid": str(entry.uid),
        "organization_id": entry.organization_id,
        "kind": entry.kind,
        "keyed_hash": entry.keyed_hash,
        "key_id": entry.key_id,
        "subject_id": entry.subject_id,
        "at": entry.at.astimezone(UTC).isoformat(),
    }


def new_entries(entries: Iterable[Entry]) -> Iterator[Entry]:
    """Yield the entries that the database does not have, by time, except those that were revoked later."""
    ordered = sorted(entries, key=lambda entry: (entry.at, entry.uid))
    known = {str(uid) for uid in ReplayEntry.objects.values_list("uid", flat=True)}
    revoked_at: dict[tuple[int | None, str, str], datetime] = {}
    for entry in ordered:
        revoked_at[entry.organization_id, entry.kind, entry.keyed_hash] = entry.at
    for entry in ordered:
        reverse = REVOKED_BY.get(entry.kind, "")
        later = revoked_at.get((entry.organization_id, reverse, entry.keyed_hash))
        if entry.uid not in known and not (later and later > entry.at):
            yield entry


def match_values(values: Iterable[str]) -> dict[str, str]:
    """Return the values by each of their hashes: one for every key."""
    return {digest: value for value in values for digest in keyed_hashes.all_hashes(PURPOSE, value)}


# --- pending entries --------------------------------------------------------------------------------------------

_pending: tuple[float, bool] | None = None


def find_refused(organization_id: int, phones: Collection[str], *kinds: str) -> set[str]:
    """Return those of the phones that a pending entry of these kinds concerns.

    Without pending entries, as in an installation that was never restored, this costs no query.
    """
    if not phones or not _has_pending():
        return set()
    by_hash = match_values(phones)
    rows = ReplayEntry.objects.filter(is_pending=True, keyed_hash__in=list(by_hash), kind__in=kinds)
    concerned = rows.values_list("organization_id", "keyed_hash")
    return {by_hash[digest] for of, digest in concerned if of in (None, organization_id)}


def find_withdrawn(organization_id: int, phones: Collection[str]) -> dict[str, datetime]:
    """Return the phones for which a withdrawal of consent is pending, with the time of the last one."""
    if not phones or not _has_pending():
        return {}
    by_hash = match_values(phones)
    rows = ReplayEntry.objects.filter(
        is_pending=True, keyed_hash__in=list(by_hash), kind=CONSENT_WITHDRAWAL, organization_id=organization_id
    )
    return {by_hash[digest]: at for digest, at in rows.order_by("at").values_list("keyed_hash", "at")}


def _has_pending() -> bool:
    global _pending
    now = time.monotonic()
    if _pending is None or now >= _pending[0]:
        _pending = (now + PENDING_CACHE_S, ReplayEntry.objects.filter(is_pending=True).exists())
    return _pending[1]


def reset() -> None:
    """Reset the cache (tests, and after a replay)."""
    global _pending
    _pending = None
