"""Seal the events of the audit log in a hash chain per organization.

Writers only append events; they never wait for the chain. An elected loop reads committed events in the order
(xid, id) below the horizon, as every durable reader does, and appends a seal for each: position, salted digest of
the event's contents, and the hash of the previous seal. The chain's end is stored in an anchor under a keyed hash,
so that somebody who can write to the database, but does not have FIELD_ENCRYPTION_KEYS, can neither change,
remove, insert nor truncate without being detected (`verification`).

Two legitimate changes are known to the chain. Erasing a person changes the contents of sealed events: their new
digests are stored under keyed hashes (`AuditRedaction`) and listed in the sealed event `person.erased`, and the
salts are deleted, so that the former contents cannot be guessed from their digests. Retention deletes expired
events: the anchor says up to which time. A broken chain is continued only after a restart (`restarts`).

What superusers change outside of any organization is in the chain of the installation.
"""

from __future__ import annotations

import hashlib
import json
import secrets
from collections.abc import Iterable, Sequence
from datetime import datetime
from itertools import groupby
from typing import Any

from django.db import connection

from dispatch.core.audit.signatures import format_moment, is_authentic, sign_row
from dispatch.core.events.readers import EventReader
from dispatch.core.models import AuditAnchor, AuditRedaction, AuditRestart, AuditSeal, Event, EventCursor

# Subjects of the events in the audit log. Retention rules of organizations do not apply to them. After an
# addition, earlier events of the new subjects count as unsealed: give them seals in a migration.
SUBJECTS = ("api_key", "installation", "limits", "membership", "organization", "person", "retention", "user")
READER_NAME = "audit_log"
# The organization_id of events that belong to no organization.
INSTALLATION = 0

_PRUNE = """
DELETE FROM core_auditseal WHERE organization_id = %(organization)s AND position < COALESCE(
    (SELECT min(s.position) FROM core_auditseal s WHERE s.organization_id = %(organization)s
     AND (s.at >= %(before)s OR EXISTS (SELECT FROM core_event e WHERE e.id = s.event_id))),
    (SELECT max(s.position) FROM core_auditseal s WHERE s.organization_id = %(organization)s)
)
RETURNING position
"""
_PRUNE_REDACTIONS = """
DELETE FROM core_auditredaction r WHERE r.organization_id = %(organization)s
AND NOT EXISTS (SELECT FROM core_event e WHERE e.id = r.event_id)
"""


class InvalidAnchor(RuntimeError):
    """The keyed hash of an anchor is wrong: the chain must not be continued from it."""

    def __init__(self, organization_id: int) -> None:
        super().__init__(
            f"{name_chain(organization_id)}: the anchor of the audit log is missing or not authentic. "
            "Run `manage.py verify_audit_log`, then `manage.py restart_audit_log`."
        )


def name_chain(organization_id: int) -> str:
    """Return the owner of a chain, for messages."""
    return "Installation" if organization_id == INSTALLATION else f"Organization {organization_id}"


# --- hashes -----------------------------------------------------------------------------------------------------


def digest_event(event: Event, salt: str) -> str:
    """Return the SHA-256 of the salt and the event's contents.

    The transaction id is left out, because a restore changes it.
    """
    return _sha256({**event_contents(event), "salt": salt})


def event_contents(event: Event) -> dict[str, Any]:
    """Return every column of the event except its transaction id, as JSON."""
    return {
        "id": event.pk,
        "organization_id": event.organization_id,
        "kind": event.kind,
        "subject_type": event.subject_type,
        "subject_id": event.subject_id,
        "actor_type": event.actor_type,
        "actor_id": event.actor_id,
        "actor_label": event.actor_label,
        "data": event.data,
        "at": format_moment(event.at),
    }


def hash_seal(seal: AuditSeal) -> str:
    """Return the hash of a seal, which the next seal holds."""
    return _sha256(
        [seal.previous, seal.organization_id, seal.position, seal.event_id, format_moment(seal.at), seal.digest]
    )


def hash_restart(restart: AuditRestart) -> str:
    """Return the hash of a restart's record, which the first seal after it holds."""
    return _sha256(
        ["restart", restart.organization_id, restart.number, restart.position, format_moment(restart.at),
         restart.operator, restart.reason, restart.found, restart.former_seals, restart.former_digest]
    )  # fmt: skip


def _sha256(value: Any) -> str:
    text = json.dumps(value, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


# --- sealing ----------------------------------------------------------------------------------------------------


def seal_events(events: Sequence[Event]) -> None:
    """Append seals for the events that have none, in order. Runs under the lock of the reader's cursor.

    Raises InvalidAnchor, so that the reader keeps the events, and users are notified (`events.quarantine`).
    """
    ids = [event.pk for event in events]
    sealed = set(AuditSeal.objects.filter(event_id__in=ids).values_list("event_id", flat=True))
    by_organization = sorted(
        (event for event in events if event.pk not in sealed), key=lambda event: event.organization_id
    )
    for organization_id, group in groupby(by_organization, key=lambda event: event.organization_id):
        extend_chain(organization_id, list(group))


READER = EventReader(READER_NAME, seal_events, subjects=SUBJECTS)


def extend_chain(organization_id: int, events: Iterable[Event]) -> None:
    """Append a seal for each event. Raises InvalidAnchor."""
    anchor = lock_anchor(organization_id)
    seals = []
    for event in events:
        salt = secrets.token_hex(16)
        seal = AuditSeal(
            organization_id=organization_id,
            position=anchor.position + 1,
            event_id=event.pk,
            at=event.at,
            salt=salt,
            digest=digest_event(event, salt),
            previous=anchor.head,
        )
        anchor.position, anchor.head = seal.position, hash_seal(seal)
        seals.append(seal)
    AuditSeal.objects.bulk_create(seals)
    sign_row(anchor)
    anchor.save()


def lock_anchor(organization_id: int) -> AuditAnchor:
    """Lock the organization's anchor, and create it for a new chain. Raises InvalidAnchor."""
    anchors = AuditAnchor.objects.select_for_update(no_key=True)
    anchor = anchors.filter(pk=organization_id).first()
    if anchor is None:
        if AuditSeal.objects.filter(organization_id=organization_id).exists():
            raise InvalidAnchor(organization_id)
        new = AuditAnchor(organization_id=organization_id)
        sign_row(new)
        AuditAnchor.objects.bulk_create([new], ignore_conflicts=True)
        anchor = anchors.get(pk=organization_id)
    if not is_authentic(anchor):
        raise InvalidAnchor(organization_id)
    return anchor


def has_valid_anchor(organization_id: int) -> bool:
    """Return whether the chain can be continued and shortened."""
    anchor = AuditAnchor.objects.filter(pk=organization_id).first()
    if anchor is None:
        return not AuditSeal.objects.filter(organization_id=organization_id).exists()
    return is_authentic(anchor)


# --- legitimate changes -----------------------------------------------------------------------------------------


def redact_events(events: Sequence[Event]) -> dict[str, str]:
    """Delete the salts of events whose contents were changed, and return the new digests by the event's id.

    The digests are signed: verification accepts no others. The caller also records them in the event
    `person.erased`. The lock keeps the sealer from sealing former contents until the transaction ends.
    """
    audited = [event for event in events if event.subject_type in SUBJECTS]
    if not audited:
        return {}
    EventCursor.objects.select_for_update(no_key=True).filter(name=READER_NAME).first()
    AuditSeal.objects.filter(event_id__in=[event.pk for event in audited]).update(salt="")
    rows = [
        AuditRedaction(organization_id=event.organization_id, event_id=event.pk, digest=digest_event(event, ""))
        for event in audited
    ]
    for row in rows:
        sign_row(row)
    AuditRedaction.objects.bulk_create(
        rows,
        update_conflicts=True,
        unique_fields=["event_id"],
        update_fields=["organization_id", "digest", "keyed_hash"],
    )
    return {str(row.event_id): row.digest for row in rows}


def prune_seals(organization_id: int, before: datetime) -> None:
    """Record that events before this time were deleted, and delete the seals at the start of the chain.

    Call it in the transaction of the deletion. The last seal is kept. Raises InvalidAnchor.
    """
    anchor = lock_anchor(organization_id)
    anchor.pruned_before = max(anchor.pruned_before or before, before)
    with connection.cursor() as cursor:
        cursor.execute(_PRUNE, {"organization": organization_id, "before": anchor.pruned_before})
        positions = [position for (position,) in cursor.fetchall()]
        cursor.execute(_PRUNE_REDACTIONS, {"organization": organization_id})
    anchor.start = max([anchor.start, *positions])
    sign_row(anchor)
    anchor.save()
