"""Verify the hash chain of the audit log: find the first row that was changed, removed or inserted."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from django.db import connection, transaction

from dispatch.core.audit import chain
from dispatch.core.models import AuditAnchor, AuditSeal, Event

BATCH = 1000

# Events without a seal: whether the sealer has already passed them.
_UNSEALED = """
SELECT e.id, c.name IS NOT NULL AND (e.xid, e.id) <= (c.xid, c.event_id)
FROM core_event e LEFT JOIN core_eventcursor c ON c.name = %(reader)s
WHERE e.organization_id = %(organization)s AND e.subject_type = ANY(%(subjects)s)
  AND NOT EXISTS (SELECT FROM core_auditseal s WHERE s.event_id = e.id)
  AND NOT EXISTS (SELECT FROM core_failedevent f WHERE f.event_id = e.id AND f.reader = %(reader)s)
ORDER BY e.id
"""


class BrokenChain(Exception):
    """The audit log is not as it was written. The text names the first row that shows it."""


@dataclass(frozen=True)
class ChainReport:
    """The result of a successful verification. `unsealed` counts recent events that wait for the sealer."""

    organization_id: int
    position: int
    head: str
    sealed: int
    unsealed: int


def chained_organizations() -> list[int]:
    """Return the ids of organizations that have audit events, seals or an anchor."""
    ids = {*AuditAnchor.objects.values_list("pk", flat=True)}
    ids |= {*AuditSeal.objects.values_list("organization_id", flat=True).distinct()}
    audited = Event.objects.filter(subject_type__in=chain.SUBJECTS)
    return sorted(ids | {*audited.order_by().values_list("organization_id", flat=True).distinct()})


def verify_chain(organization_id: int, heads: Mapping[int, str] | None = None) -> ChainReport:
    """Verify the audit log of one organization, in one snapshot of the database. Raises BrokenChain.

    `heads` are hashes by position that an earlier verification reported: they must still be in the chain.
    """
    is_outermost = not connection.in_atomic_block
    with transaction.atomic():
        if is_outermost:
            with connection.cursor() as cursor:
                cursor.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY")
        return _verify(organization_id, heads or {})


def _verify(organization_id: int, heads: Mapping[int, str]) -> ChainReport:
    anchor = AuditAnchor.objects.filter(pk=organization_id).first()
    seals = AuditSeal.objects.filter(organization_id=organization_id)
    if anchor is None:
        if heads or seals.exists():
            raise BrokenChain(f"Organization {organization_id}: the anchor is missing.")
        anchor = AuditAnchor(organization_id=organization_id)
    elif not chain.is_authentic(anchor):
        raise BrokenChain(f"Organization {organization_id}: the anchor was changed.")
    position, head, sealed = anchor.start, "", 0
    redactions = _redactions(organization_id)
    for seal, event in _pairs(organization_id):
        place = f"Organization {organization_id}, position {position + 1}"
        if seal.position != position + 1:
            raise BrokenChain(f"{place}: the seal is missing.")
        if seal.previous != head and (head or not anchor.start):
            raise BrokenChain(f"{place}: the seal of event {seal.event_id} does not follow the one before.")
        _check_event(place, seal, event, anchor, redactions)
        position, head, sealed = seal.position, chain.hash_seal(seal), sealed + 1
        if heads.get(position, head) != head:
            raise BrokenChain(f"{place}: the chain is not the one that was verified before.")
    if position < anchor.position:
        raise BrokenChain(f"Organization {organization_id}, position {position + 1}: the seal is missing.")
    if position > anchor.position:
        raise BrokenChain(
            f"Organization {organization_id}, position {anchor.position + 1}: the seal was inserted."
        )
    if head != anchor.head:
        raise BrokenChain(f"Organization {organization_id}, position {position}: the seal was changed.")
    if ahead := [known for known in heads if known > position]:
        raise BrokenChain(f"Organization {organization_id}, position {min(ahead)}: the seal is missing.")
    return ChainReport(organization_id, position, head, sealed, _count_unsealed(organization_id))


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
        raise BrokenChain(f"{place}: event {seal.event_id} was changed.")


def _redactions(organization_id: int) -> dict[int, str]:
    """Return the digests of erased contents by the event's id, as the events about erasures list them."""
    about = Event.objects.filter(
        organization_id=organization_id, subject_type="person", kind="person.erased", data__has_key="redacted"
    )
    found: dict[int, str] = {}
    for data in about.order_by("id").values_list("data", flat=True):
        found |= {int(event_id): digest for event_id, digest in data["redacted"].items()}
    return found


def _count_unsealed(organization_id: int) -> int:
    """Count the events that wait for the sealer. Raises BrokenChain for one that it has passed."""
    given: dict[str, Any] = {
        "organization": organization_id,
        "subjects": list(chain.SUBJECTS),
        "reader": chain.READER_NAME,
    }
    with connection.cursor() as cursor:
        cursor.execute(_UNSEALED, given)
        rows: Iterable[tuple[int, bool]] = cursor.fetchall()
    for event_id, is_passed in rows:
        if is_passed:
            raise BrokenChain(
                f"Organization {organization_id}: event {event_id} was inserted, or its seal removed."
            )
    return len(list(rows))
