"""Claim and release ownership of problems that need attention. A problem has one owner, whom everyone sees."""

from __future__ import annotations

from datetime import timedelta
from zoneinfo import ZoneInfo

from django.db import transaction

from accounts.models import Organization, User
from dispatch.core import clock, events
from dispatch.core.api.problems import Conflict
from dispatch.core.events import Actor
from dispatch.core.languages import gettext as _
from dispatch.core.models import Event
from notifications import rules
from notifications.models import Claim, Notification

JOB, CALL_ERROR = "job", "call_error"
# A claim of such a subject expires: no event says that the problem is over.
EXPIRES_AFTER = {CALL_ERROR: timedelta(hours=2)}
_WITH_AN_END = [rule.kind for rule in rules.TABLE if rule.ends]


def has_expired(row: Claim) -> bool:
    """Return whether the claim is of an earlier occurrence of the problem, so that nobody owns this one."""
    after = EXPIRES_AFTER.get(row.subject_type)
    return after is not None and row.claimed_at < clock.now() - after


def claim(
    organization: Organization,
    subject_type: str,
    subject_id: int,
    *,
    user: User,
    actor: Actor,
    take_over: bool = False,
) -> Claim:
    """Make the user the owner. Idempotent.

    Raise Conflict, naming the owner and the time, if someone else owns it and `take_over` is false. An expired
    claim is nobody's.
    """
    with transaction.atomic():
        row, is_new = Claim.objects.get_or_create(
            organization=organization, subject_type=subject_type, subject_id=subject_id, defaults={"user": user}
        )
        row = Claim.objects.select_for_update(no_key=True, of=("self",)).select_related("user").get(pk=row.pk)
        is_owned = not is_new and not has_expired(row)
        if is_owned and row.user_id == user.pk:
            return row
        if not is_new:
            if is_owned and not take_over:
                since = row.claimed_at.astimezone(ZoneInfo(organization.time_zone))
                raise Conflict(
                    _("{name} claimed this at {time}.").format(name=row.user, time=f"{since:%H:%M:%S %Z}"),
                    by=Actor("user", row.user_id, str(row.user)),
                    did=_("claimed it"),
                    at=row.claimed_at,
                )
            Claim.objects.filter(pk=row.pk).update(user=user, claimed_at=clock.now())
            row.refresh_from_db()
        _append_event(organization.pk, "claimed", subject_type, subject_id, actor)
    return row


def release(organization: Organization, subject_type: str, subject_id: int, *, actor: Actor) -> bool:
    """End the ownership. Return whether anyone owned it."""
    with transaction.atomic():
        rows = Claim.objects.of(organization).filter(subject_type=subject_type, subject_id=subject_id)
        gone = bool(rows.delete()[0])
        if gone:
            _append_event(organization.pk, "released", subject_type, subject_id, actor)
    return gone


def release_of_member(organization_id: int, user_id: int, actor: Actor) -> None:
    """End the ownership of a member who leaves: a job that an outage stopped resumes only if nobody owns it."""
    rows = Claim.objects.of(organization_id).filter(user_id=user_id).order_by("pk")
    for row in rows.select_for_update(no_key=True):
        row.delete()
        _append_event(organization_id, "released", row.subject_type, row.subject_id, actor)


def delete_ownership(event: Event) -> None:
    """Delete an ownership that was claimed before the event that ended the cause, unless another cause is open."""
    about = Notification.objects.of(event.organization_id).filter(
        subject_type=event.subject_type, subject_id=event.subject_id, settled_at=None, event_id__lt=event.pk
    )
    if about.filter(kind__in=_WITH_AN_END).exists():
        return
    made_before = Claim.objects.of(event.organization_id).filter(
        subject_type=event.subject_type, subject_id=event.subject_id, claimed_at__lte=event.at
    )
    made_before.delete()


def _append_event(organization_id: int, verb: str, subject_type: str, subject_id: int, actor: Actor) -> None:
    events.append(organization_id, f"{subject_type}.{verb}", subject_id, actor=actor)
