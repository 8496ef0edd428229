"""Accept an erasure that a process of a former version made during an upgrade, and whose digests nobody signed.

Before signatures existed (`core` 0004), a process listed the new digests of changed events in `person.erased`.
Such a list proves nothing by itself: an attacker who can write to the database can write one. Verification
therefore reports it, and names the event; an operator who knows about the erasure has it signed.
"""

from __future__ import annotations

from typing import Any

from django.db import transaction

from dispatch.core import events
from dispatch.core.audit import chain, signatures
from dispatch.core.events import Actor
from dispatch.core.models import AuditRedaction, AuditSeal, Event

KIND = "person.erased"


class NotAcceptable(Exception):
    """The event lists nothing that can be signed. The text says why."""


def find_claim(organization_id: int, event_id: int, digest: str) -> int | None:
    """Return the sealed `person.erased` event that lists this digest of the changed event, or None."""
    claims = Event.objects.filter(
        organization_id=organization_id, kind=KIND, data__redacted__contains={str(event_id): digest}
    )
    ids = list(claims.order_by("-id").values_list("pk", flat=True))
    return (
        AuditSeal.objects.filter(event_id__in=ids).values_list("event_id", flat=True).order_by("-event_id").first()
    )


def accept_erasure(organization_id: int, erasure_id: int, *, operator: str) -> int:
    """Sign the digests that the event `person.erased` lists, and return how many. Raises NotAcceptable.

    Only events that still have the listed contents are signed. The acceptance is an event of the organization.
    """
    with transaction.atomic():
        erasure = Event.objects.filter(pk=erasure_id, organization_id=organization_id, kind=KIND).first()
        if erasure is None or not AuditSeal.objects.filter(event_id=erasure_id).exists():
            raise NotAcceptable(f"Event {erasure_id} is no sealed {KIND} of this organization.")
        rows = [_sign(organization_id, *item) for item in _unsigned(organization_id, erasure.data)]
        if not rows:
            raise NotAcceptable(f"Event {erasure_id} lists no erased event without a signature.")
        actor = Actor(label=operator)
        named: dict[str, Any] = {"erasure": erasure_id, "accepted": sorted(rows)}
        events.append(organization_id, "organization.erasure_accepted", organization_id, actor=actor, **named)
    return len(rows)


def _unsigned(organization_id: int, data: dict[str, Any]) -> list[tuple[Event, str]]:
    listed = {int(event_id): str(digest) for event_id, digest in data.get("redacted", {}).items()}
    signed = AuditRedaction.objects.filter(event_id__in=listed)
    known = {row.event_id for row in signed if signatures.is_authentic(row)}
    changed = Event.objects.filter(organization_id=organization_id, pk__in=set(listed) - known).order_by("pk")
    return [(event, listed[event.pk]) for event in changed if chain.digest_event(event, "") == listed[event.pk]]


def _sign(organization_id: int, event: Event, digest: str) -> int:
    row = AuditRedaction(organization_id=organization_id, event_id=event.pk, digest=digest)
    signatures.sign_row(row)
    AuditRedaction.objects.filter(event_id=event.pk).delete()  # one that is not authentic
    row.save(force_insert=True)
    return event.pk
