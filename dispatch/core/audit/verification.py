"""Verify the hash chain of the audit log: find the first row that was changed, removed or inserted."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from django.db import connection

from dispatch.core.audit import chain
from dispatch.core.audit.signatures import is_authentic
from dispatch.core.counts import count_noun
from dispatch.core.db.snapshots import read_snapshot
from dispatch.core.events import own_cursors
from dispatch.core.models import AuditAnchor, AuditRedaction, AuditRestart, AuditSeal, Event

BATCH = 1000

# Events without a seal: whether the sealer has already passed them.
_UNSEALED = """
SELECT e.id, (e.xid, e.id) <= (%(xid)s, %(event_id)s)
FROM core_event e
WHERE e.organization_id = %(organization)s AND e.subject_type = ANY(%(subjects)s)
  AND NOT EXISTS (SELECT FROM core_auditseal s WHERE s.event_id = e.id)
  AND NOT EXISTS (SELECT FROM core_failedevent f WHERE f.event_id = e.id AND f.reader = %(reader)s)
ORDER BY e.id
"""


class BrokenChain(Exception):
    """The audit log is not as it was written. The text names the first row that shows it."""


@dataclass(frozen=True)
class ChainReport:
    """The result of a successful verification.

    `unsealed` counts recent events that wait for the sealer. `restarts` are the records of former breaks.
    """

    organization_id: int
    position: int
    head: str
    sealed: int
    unsealed: int
    restarts: tuple[AuditRestart, ...] = ()


def chained_organizations() -> list[int]:
    """Return the ids of organizations that have audit events, seals or an anchor."""
    ids = {*AuditAnchor.objects.values_list("pk", flat=True)}
    ids |= {*AuditRestart.objects.values_list("organization_id", flat=True)}
    ids |= {*AuditSeal.objects.values_list("organization_id", flat=True).distinct()}
    audited = Event.objects.filter(subject_type__in=chain.SUBJECTS)
    return sorted(ids | {*audited.order_by().values_list("organization_id", flat=True).distinct()})


def verify_chain(
    organization_id: int, heads: Mapping[int, str] | None = None, known_restarts: int = 0
) -> ChainReport:
    """Verify the audit log of one organization, in one snapshot of the database. Raises BrokenChain.

    `heads` are hashes by position that an earlier verification reported when there had been `known_restarts`: they
    must still be in the chain, unless it was restarted since.
    """
    with read_snapshot():
        return _verify(organization_id, heads or {}, known_restarts)


def _verify(organization_id: int, heads: Mapping[int, str], known_restarts: int) -> ChainReport:
    name = chain.name_chain(organization_id)
    anchor = AuditAnchor.objects.filter(pk=organization_id).first()
    seals = AuditSeal.objects.filter(organization_id=organization_id)
    if anchor is None:
        if heads or seals.exists():
            raise BrokenChain(f"{name}: the anchor is missing.")
        anchor = AuditAnchor(organization_id=organization_id)
    elif not is_authentic(anchor):
        raise BrokenChain(f"{name}: the anchor was changed.")
    restarts = _read_restarts(anchor)
    if len(restarts) < known_restarts:
        raise BrokenChain(
            f"{name}: {count_noun(known_restarts, 'restart')} verified before, but "
            f"{count_noun(len(restarts), 'record')} found."
        )
    if len(restarts) > known_restarts:
        heads = {}  # they are hashes of the chain before the restart
    position, head, sealed = anchor.start, "", 0
    if restarts and restarts[-1].position == anchor.start:
        head = chain.hash_restart(restarts[-1])
    redactions = _redactions(organization_id)
    for seal, event in _pairs(organization_id):
        place = f"{name}, position {position + 1}"
        if seal.position != position + 1:
            raise BrokenChain(f"{place}: the seal is missing.")
        if seal.previous != head and (head or not anchor.start):
            raise BrokenChain(f"{place}: the seal of event {seal.event_id} does not follow the one before.")
        _check_event(place, seal, event, anchor, redactions)
        position, head, sealed = seal.position, chain.hash_seal(seal), sealed + 1
        if heads.get(position, head) != head:
            raise BrokenChain(f"{place}: the chain is not the one that was verified before.")
    if position < anchor.position:
        raise BrokenChain(f"{name}, position {position + 1}: the seal is missing.")
    if position > anchor.position:
        raise BrokenChain(f"{name}, position {anchor.position + 1}: the seal was inserted.")
    if head != anchor.head:
        raise BrokenChain(f"{name}, position {position}: the seal was changed.")
    if ahead := [known for known in heads if known > position]:
        raise BrokenChain(f"{name}, position {min(ahead)}: the seal is missing.")
    return ChainReport(organization_id, position, head, sealed, _count_unsealed(organization_id), tuple(restarts))


def _read_restarts(anchor: AuditAnchor) -> list[AuditRestart]:
    """Return the records of restarts. Raises BrokenChain unless all are there and authentic."""
    rows = list(AuditRestart.objects.filter(organization_id=anchor.organization_id).order_by("number"))
    name = chain.name_chain(anchor.organization_id)
    for row in rows:
        if not is_authentic(row):
            raise BrokenChain(f"{name}: the record of restart {row.number} was changed.")
    if len(rows) != anchor.restarts:
        restarts, records = count_noun(anchor.restarts, "restart"), count_noun(len(rows), "record")
        raise BrokenChain(f"{name}: {restarts} recorded, but {records} found.")
    return rows


def _pairs(organization_id: int) -> Iterator[tuple[AuditSeal, Event | None]]:
    after = -1
    seals = AuditSeal.objects.filter(organization_id=organization_id).order_by("position")
    while page := list(seals.filter(position__gt=after)[:BATCH]):
        events = Event.objects.in_bulk([seal.event_id for seal in page])
        yield from ((seal, events.get(seal.event_id)) for seal in page)
        after = page[-1].position


def _check_event(
    place: str, seal: AuditSeal, event: Event | None, anchor: AuditAnchor, redactions: Mapping[int, str]
) -> None:
    if event is None:
        if anchor.pruned_before is None or seal.at >= anchor.pruned_before:
            raise BrokenChain(f"{place}: event {seal.event_id} is missing.")
        return
    if event.organization_id != seal.organization_id or event.at != seal.at:
        raise BrokenChain(f"{place}: event {seal.event_id} was changed.")
    if seal.salt and chain.digest_event(event, seal.salt) == seal.digest:
        return
    if redactions.get(seal.event_id) != chain.digest_event(event, ""):
        raise BrokenChain(f"{place}: event {seal.event_id} was changed.{_describe_unsigned_erasure(event)}")


def _describe_unsigned_erasure(changed: Event) -> str:
    """Return a sentence if a process of an earlier version erased a person since the event, or an empty text.

    It is a hint only: anybody who can change events can also insert this one.
    """
    erasures = Event.objects.filter(organization_id=changed.organization_id, kind="person.erased")
    unsigned = erasures.filter(id__gt=changed.pk).exclude(data__has_key="redacted").order_by("id").first()
    if unsigned is None:
        return ""
    return (
        f" A process of an earlier version may have erased a person: see event {unsigned.pk} of "
        f"{unsigned.at:%Y-%m-%d %H:%M} UTC. If so, run `manage.py restart_audit_log`."
    )


def _redactions(organization_id: int) -> dict[int, str]:
    """Return the signed digests of erased contents by the event's id."""
    rows = AuditRedaction.objects.filter(organization_id=organization_id)
    return {row.event_id: row.digest for row in rows.iterator(chunk_size=BATCH) if is_authentic(row)}


def _count_unsealed(organization_id: int) -> int:
    """Count the events that wait for the sealer. Raises BrokenChain for one that it has passed."""
    # that of the organization alone, if the sealer has stopped for it
    cursor_of_sealer = own_cursors.position(chain.READER_NAME, organization_id)
    given: dict[str, Any] = {
        "xid": cursor_of_sealer.xid,
        "event_id": cursor_of_sealer.event_id,
        "organization": organization_id,
        "subjects": list(chain.SUBJECTS),
        "reader": chain.READER_NAME,
    }
    with connection.cursor() as cursor:
        cursor.execute(_UNSEALED, given)
        rows: Iterable[tuple[int, bool]] = cursor.fetchall()
    for event_id, is_passed in rows:
        if is_passed:
            name = chain.name_chain(organization_id)
            raise BrokenChain(f"{name}: event {event_id} was inserted, or its seal removed.")
    return len(list(rows))
