"""Restart the hash chain of an audit log that is broken.

A broken chain is not continued, and retention keeps its events. Only an operator with the keys can restart it. The
restart is a signed record of who, when, why, and what verification found; the anchor holds the number of such
records, so verification reports every restart from then on. All events that exist are sealed again in the new
chain, whose first seal holds the hash of the record. Export the log first: the former seals are deleted, and the
record has only their number and digest.
"""

from __future__ import annotations

import hashlib
import json

from django.db import transaction

from dispatch.core import clock, events
from dispatch.core.audit import chain, signatures, verification
from dispatch.core.events import Actor
from dispatch.core.models import AuditAnchor, AuditRestart, AuditSeal, Event, EventCursor, FailedEvent

BATCH = 1000
# A forged position must not make the next ones overflow.
MAX_POSITION = 2**53


class ChainIsValid(ValueError):
    """The chain is not broken, so it is not restarted."""


def restart_chain(organization_id: int, *, operator: str, reason: str) -> AuditRestart:
    """Restart the chain with a signed record, and seal every existing event again. Raises ChainIsValid."""
    with transaction.atomic():
        EventCursor.objects.select_for_update(no_key=True).filter(name=chain.READER_NAME).first()
        AuditAnchor.objects.select_for_update(no_key=True).filter(pk=organization_id).first()
        try:
            verification.verify_chain(organization_id)
        except verification.BrokenChain as broken:
            found = str(broken)
        else:
            raise ChainIsValid(f"{chain.name_chain(organization_id)}: the audit log is valid.")
        record = _record(organization_id, operator, reason, found)
        AuditSeal.objects.filter(organization_id=organization_id).delete()
        FailedEvent.objects.filter(reader=chain.READER_NAME, organization_id=organization_id).delete()
        _replace_anchor(record)
        _seal_again(organization_id)
        _append_events(record)
    return record


def _record(organization_id: int, operator: str, reason: str, found: str) -> AuditRestart:
    """Write the signed record. Former records that are not authentic are deleted, and named in it."""
    former = list(AuditRestart.objects.filter(organization_id=organization_id).order_by("number"))
    forged = [row.pk for row in former if not signatures.is_authentic(row)]
    if forged:
        AuditRestart.objects.filter(pk__in=forged).delete()
        found = f"{found} Records of restarts that were not authentic: {len(forged)}."
    digest, count, position = hashlib.sha256(), 0, 0
    seals = AuditSeal.objects.filter(organization_id=organization_id).order_by("position")
    for seal in seals.iterator(chunk_size=BATCH):
        digest.update(json.dumps([chain.hash_seal(seal), seal.salt]).encode())
        count, position = count + 1, seal.position
    record = AuditRestart(
        organization_id=organization_id,
        number=1 + max((row.number for row in former if row.pk not in forged), default=0),
        position=min(max(position, 0), MAX_POSITION),
        at=clock.now(),
        operator=operator,
        reason=reason,
        found=found,
        former_seals=count,
        former_digest=digest.hexdigest(),
    )
    signatures.sign_row(record)
    record.save()
    return record


def _replace_anchor(record: AuditRestart) -> None:
    anchor = AuditAnchor(
        organization_id=record.organization_id,
        position=record.position,
        start=record.position,
        head=chain.hash_restart(record),
        restarts=AuditRestart.objects.filter(organization_id=record.organization_id).count(),
    )
    signatures.sign_row(anchor)
    AuditAnchor.objects.filter(pk=record.organization_id).delete()
    anchor.save(force_insert=True)


def _seal_again(organization_id: int) -> None:
    after = 0
    audited = Event.objects.filter(organization_id=organization_id, subject_type__in=chain.SUBJECTS).order_by("id")
    while page := list(audited.filter(id__gt=after)[:BATCH]):
        chain.extend_chain(organization_id, page)
        after = page[-1].pk


def _append_events(record: AuditRestart) -> None:
    """Record the restart in the log itself, and in the installation's."""
    actor = Actor(label=record.operator)
    data = {"number": record.number, "reason": record.reason, "found": record.found}
    if record.organization_id != chain.INSTALLATION:
        owner = record.organization_id
        events.append(owner, "organization.audit_log_restarted", owner, actor=actor, **data)
    events.append(
        chain.INSTALLATION, "installation.audit_log_restarted", record.organization_id, actor=actor, **data
    )
