"""Claiming what needs attention: one person has it, and everybody sees who."""

from __future__ import annotations

from zoneinfo import ZoneInfo

from django.db import transaction

from accounts.models import Organization, User
from dispatch.core import clock, events
from dispatch.core.events import Actor
from dispatch.core.problems import Conflict
from notifications.models import Claim

JOB, CALL_ERROR = "job", "call_error"


def claim(
    organization: Organization,
    subject_type: str,
    subject_id: int,
    *,
    user: User,
    actor: Actor,
    take_over: bool = False,
) -> Claim:
    """The user's from now on; the same again changes nothing. Raises Conflict, which says who has it since when,
    unless it is to be taken over."""
    with transaction.atomic():
        row, is_new = Claim.objects.get_or_create(
            organization=organization, subject_type=subject_type, subject_id=subject_id, defaults={"user": user}
        )
        row = Claim.objects.select_for_update(of=("self",)).select_related("user").get(pk=row.pk)
        if row.user_id == user.pk and not is_new:
            return row
        if not is_new:
            if not take_over:
                since = row.claimed_at.astimezone(ZoneInfo(organization.time_zone))
                raise Conflict(
                    f"{row.user} has this since {since:%H:%M:%S %Z}.",
                    by=Actor("user", row.user_id, str(row.user)),
                    did="claimed it",
                    at=row.claimed_at,
                )
            Claim.objects.filter(pk=row.pk).update(user=user, claimed_at=clock.now())
            row.refresh_from_db()
        _tell(organization.pk, "claimed", subject_type, subject_id, actor)
    return row


def release(organization: Organization, subject_type: str, subject_id: int, *, actor: Actor) -> bool:
    """Nobody has it any more; says whether somebody had."""
    with transaction.atomic():
        rows = Claim.objects.of(organization).filter(subject_type=subject_type, subject_id=subject_id)
        gone = bool(rows.delete()[0])
        if gone:
            _tell(organization.pk, "released", subject_type, subject_id, actor)
    return gone


def settled(organization_id: int, subject_type: str, subject_id: int) -> None:
    """The cause is gone, and with it the claim; what ended it is in the log already."""
    Claim.objects.of(organization_id).filter(subject_type=subject_type, subject_id=subject_id).delete()


def _tell(organization_id: int, verb: str, subject_type: str, subject_id: int, actor: Actor) -> None:
    events.append(organization_id, f"{subject_type}.{verb}", subject_id, actor=actor)
