"""Delete core's expired rows: events, and stored responses to idempotent requests."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from django.conf import settings
from django.db import connection, transaction

from dispatch.core import clock
from dispatch.core.audit import chain
from dispatch.core.events.own_cursors import lowest_cursor
from dispatch.core.events.readers import readers
from dispatch.core.languages import mark
from dispatch.core.models import RememberedAnswer
from dispatch.core.privacy import replay, retention

EVENT_DAYS = 400

# Every reader has read the events up to the lowest cursor, in the order (xid, id). ARRAY chooses the events once:
# with IN, a plan by wrong statistics may choose them again for each event of the log.
_DELETE = """
DELETE FROM core_event WHERE id = ANY(ARRAY(
    SELECT e.id FROM core_event e
    WHERE e.organization_id = %(organization)s AND e.at < %(before)s AND (e.xid, e.id) <= (%(xid)s, %(id)s)
    AND (e.at < %(audit_before)s OR e.subject_type <> ALL(%(audit)s))
    AND NOT EXISTS (SELECT FROM core_failedevent f WHERE f.event_id = e.id)
    {keep}
    ORDER BY e.id LIMIT %(limit)s
))
RETURNING subject_type
"""
# Events about deleted subjects that every reader has read.
_DELETE_OF_SUBJECTS = """
DELETE FROM core_event e
WHERE e.subject_type = %(subject_type)s AND e.subject_id = ANY(%(ids)s::bigint[])
AND (e.xid, e.id) <= (%(xid)s, %(id)s)
AND NOT EXISTS (SELECT FROM core_failedevent f WHERE f.event_id = e.id)
"""
_BY_SYSTEM = "AND e.organization_id = %(organization)s AND e.actor_type = 'system' AND e.at < %(before)s"
_OF_KINDS = "AND e.kind = ANY(%(kinds)s::text[])"
# SQL conditions on an event `e` that is kept regardless of its age.
_needed: list[str] = []


def keep_events(condition: str) -> None:
    """Keep events for which the SQL `condition` on `e` holds, such as events of a subject that is still open.

    Called from AppConfig.ready().
    """
    _needed.append(condition)


def delete_expired_events(organization_id: int, before: datetime, limit: int) -> int:
    """Delete expired events that every reader has read and no open subject needs; return how many.

    Events of the audit log (`core.audit`) are kept at least as long as the installation's rule requires, even if
    the organization's period is shorter. The hash chain records that they are gone. While its end is not
    authentic, they are kept, and all others are deleted.
    """
    first = lowest_cursor(readers)
    if first is None:
        return 0
    audit_before = min(before, _audit_horizon())
    if not chain.has_valid_anchor(organization_id):
        audit_before = datetime.min.replace(tzinfo=UTC)
    given: dict[str, Any] = {
        "organization": organization_id, "before": before, "limit": limit, "xid": first.xid, "id": first.event_id,
        "audit": list(chain.SUBJECTS), "audit_before": audit_before,
    }  # fmt: skip
    with transaction.atomic(), connection.cursor() as cursor:
        cursor.execute(_deletion(), given)
        subjects = [subject for (subject,) in cursor.fetchall()]
        if not set(chain.SUBJECTS).isdisjoint(subjects):
            chain.prune_seals(organization_id, audit_before)
    return len(subjects)


def _deletion() -> str:
    return _DELETE.format(keep="".join(f"AND NOT ({condition}) " for condition in _needed))


def delete_installation_events(before: datetime, limit: int) -> int:
    """Delete expired events of no organization; return how many."""
    return delete_expired_events(chain.INSTALLATION, before, limit)


def delete_system_events(organization_id: int, subject_type: str, subject_ids: Sequence[int], days: int) -> int:
    """Delete the events that the system appended about these deleted subjects; return how many.

    For subjects with many events. What a user did stays for the period of all events, and so does each event that
    is younger than `days` or that a reader has not read.
    """
    before = clock.now() - timedelta(days=days)
    return _delete_of_subjects(subject_type, subject_ids, _BY_SYSTEM, organization=organization_id, before=before)


def delete_steps(subject_type: str, ids: Sequence[int], kinds: Sequence[str]) -> int:
    """Delete events of these kinds about subjects that were deleted; return how many.

    For steps of the system that say nothing once their subject has gone; EVENT_LOG_MIN_DAYS does not apply to
    them. Those that a reader has not read stay until the rule of the event log deletes them.
    """
    return _delete_of_subjects(subject_type, ids, _OF_KINDS, kinds=list(kinds))


def _delete_of_subjects(subject_type: str, ids: Sequence[int], condition: str, **given: Any) -> int:
    first = lowest_cursor(readers)
    if first is None or not ids:
        return 0
    given |= {"subject_type": subject_type, "ids": list(ids), "xid": first.xid, "id": first.event_id}
    with connection.cursor() as cursor:
        cursor.execute(_DELETE_OF_SUBJECTS + condition, given)
        return int(cursor.rowcount)


def _audit_horizon() -> datetime:
    """Return the time before which the installation's rule deletes audit events.

    Return the minimum time if the rule keeps them forever.
    """
    days = retention.effective_days("events")
    return datetime.min.replace(tzinfo=UTC) if days == retention.FOREVER else clock.now() - timedelta(days=days)


def delete_expired_responses(organization_id: int, before: datetime, limit: int) -> int:
    """Delete expired responses to idempotent requests; return how many."""
    old = RememberedAnswer.objects.filter(organization_id=organization_id, created_at__lt=before)
    ids = list(old.order_by("created_at").values_list("pk", flat=True)[:limit])
    return RememberedAnswer.objects.filter(pk__in=ids).delete()[0]


def register() -> None:
    """Register core's retention rules. Called from AppConfig.ready()."""
    retention.register(
        "events",
        EVENT_DAYS,
        delete_expired_events,
        label=mark("Event log"),
        shortest_days=settings.EVENT_LOG_MIN_DAYS,
    )
    promised = settings.IDEMPOTENCY_KEEP_DAYS
    retention.register(
        "idempotency_keys",
        promised,
        delete_expired_responses,
        label=mark("Idempotency keys"),
        shortest_days=promised,
    )
    retention.register_shared("replay_list", replay.KEPT_DAYS, replay.delete_old_entries)
    retention.register_shared("installation_events", EVENT_DAYS, delete_installation_events)
