"""Hold the SQL on calls and texts: open calls for capacity's reconciliation, and the loops' batches."""

from __future__ import annotations

from collections.abc import Collection
from datetime import datetime
from typing import Any

from django.db import transaction
from django.db.models import Case, Min, Q, QuerySet, Value, When

from dispatch.capacity.lease_reconciliation import Lease
from dispatch.core.db import prepared
from dispatch.core.db.isolation import unlocked_ids
from dispatch.telephony import rules
from dispatch.telephony.models import Call, Text, holder_of

_LEASE = ("purpose", "subject_id", "attempt", "number_id", "line_slot", "pool_id", "pool_slot")


class OpenCalls:
    """Read open calls for capacity's lease reconciliation (its `OpenCallReader`)."""

    def open_leases(self) -> list[Lease]:
        return _leases(Q())

    def open_leases_of(self, pool_id: int, number_ids: Collection[int]) -> list[Lease]:
        return _leases(Q(pool_id=pool_id) | Q(number_id__in=number_ids))

    def ended(self, holders: Collection[str]) -> set[str]:
        keys: dict[tuple[str, int, int], str] = {}
        for holder in holders:
            purpose, _, rest = holder.partition(":")
            subject_id, _, attempt = rest.partition(":")
            if subject_id.isdigit() and attempt.isdigit():
                keys[purpose, int(subject_id), int(attempt)] = holder
        where = Q(subject_id__in={subject_id for _, subject_id, _ in keys})
        ended_calls = Call.objects.filter(where, ended_at__isnull=False).values_list(
            "purpose", "subject_id", "attempt"
        )
        return {keys[row] for row in ended_calls if row in keys} if keys else set()

    def requests_of_account(self, account_id: int, since: datetime, limit: int) -> list[datetime]:
        requests = Call.objects.filter(account_id=account_id, requested_at__gt=since)
        return _request_times(requests, limit)

    def requests_of_pool(self, pool_id: int, since: datetime, limit: int) -> list[datetime]:
        requests = Call.objects.filter(pool_id=pool_id, requested_at__gt=since)
        return _request_times(requests, limit)

    def requests_since(self, since: datetime) -> list[tuple[int, int, datetime]]:
        requests = Call.objects.filter(requested_at__gt=since).order_by("requested_at")
        rows: Any = requests.values_list("account_id", "pool_id", "requested_at")
        return list(rows)


def _request_times(requests: QuerySet[Call], limit: int) -> list[datetime]:
    times: Any = requests.order_by("-requested_at").values_list("requested_at", flat=True)[:limit]
    return list(times)


def _leases(where: Q) -> list[Lease]:
    rows = Call.objects.filter(where, ended_at=None).values_list(*_LEASE)
    return [Lease(holder_of(*row[:3]), *row[3:]) for row in rows]


# Alerts before offers before leads, also if they share a rate.
_TURN = "CASE purpose WHEN 'alert' THEN 0 WHEN 'offer' THEN 1 WHEN 'job_news' THEN 1 ELSE 2 END"

# Created calls that are due. A new call is left to its creator for a moment (%(fresh)s). Organizations take turns,
# each with its most urgent call.
_TO_PLACE = f"""
WITH due AS (
    SELECT id, organization_id, priority, not_before, {_TURN} AS turn FROM telephony_call
    WHERE status = 'created' AND NOT id = ANY(%(but)s::bigint[])
        AND (place_by <= %(now)s
             OR not_before <= %(now)s AND NOT (not_before <= created_at AND created_at > %(fresh)s))
), ranked AS (
    SELECT *, row_number() OVER (PARTITION BY organization_id, turn ORDER BY priority, not_before, id) AS round
    FROM due
)
SELECT c.id FROM ranked r JOIN telephony_call c ON c.id = r.id
ORDER BY r.turn, r.round, r.priority, r.not_before, r.id
LIMIT %(limit)s FOR NO KEY UPDATE OF c SKIP LOCKED
"""

# Whether a call of the account that goes before this one waits for the rate.
_WAITS_BEFORE = f"""
SELECT 1 FROM telephony_call
WHERE status = 'created' AND account_id = %(account_id)s AND id <> %(id)s AND not_before > created_at
    AND place_by > %(now)s AND cancel_requested_at IS NULL
    AND ({_TURN}, priority) < (%(turn)s::int, %(priority)s::int)
LIMIT 1
"""


_CONFLICTING_CALLS = """
SELECT id, (purpose, subject_id, attempt) = (%(purpose)s, %(subject_id)s, %(attempt)s) FROM telephony_call
WHERE (purpose = %(purpose)s AND subject_id = %(subject_id)s AND attempt = %(attempt)s)
    OR (organization_id = %(organization_id)s AND to_phone = %(phone)s AND ended_at IS NULL)
"""


def conflicting_calls(
    organization_id: int, phone: str, purpose: str, subject_id: int, attempt: int
) -> list[tuple[int, bool]]:
    """Return the calls that prevent a new call, as (id, whether it is the call of this attempt).

    These are the call of the attempt itself and the open calls to the phone.
    """
    params: dict[str, Any] = {
        "organization_id": organization_id, "phone": phone,
        "purpose": purpose, "subject_id": subject_id, "attempt": attempt,
    }  # fmt: skip
    return [(pk, is_same) for pk, is_same in prepared.fetch_all(_CONFLICTING_CALLS, params)]


def calls_to_place(now: datetime, limit: int, but: Collection[Any] = ()) -> list[int]:
    """Return ids of created calls that are due, not locked by another session and not in `but`.

    Alerts first, then offers, then others. Within each, organizations take turns: first the most urgent and
    longest waiting call of each, in the order of urgency, then the second of each.
    """
    given = {"now": now, "fresh": now - rules.CREATORS_TIME, "but": prepared.integers(but), "limit": limit}
    with transaction.atomic():
        prepared.defer_fsync()
        return [pk for (pk,) in prepared.fetch_all(_TO_PLACE, given)]


def waits_before(call: Call, now: datetime) -> bool:
    """Return whether a more urgent call of the same account waits for its rate."""
    turn = {"alert": 0, "offer": 1, "job_news": 1}.get(call.purpose, 2)
    given = {
        "id": call.pk, "account_id": call.account_id, "now": now, "turn": turn, "priority": call.priority,
    }  # fmt: skip
    return bool(prepared.fetch_all(_WAITS_BEFORE, given))


def next_to_place(now: datetime) -> datetime | None:
    """Return when the next created call is due, or None."""
    waiting = Call.objects.filter(status=Call.Status.CREATED, not_before__gt=now)
    first: datetime | None = waiting.aggregate(first=Min("not_before"))["first"]
    return first


# --- Batches

# %(organizations)s, %(phones)s: parallel arrays of pairs. Locks the decisions about these phones until the
# transaction ends. The locks are taken in a fixed order, so that two batches never deadlock.
LOCK_PHONES = """
SELECT pg_advisory_xact_lock(lock_key) FROM (
    SELECT DISTINCT hashtextextended('lead:' || organization_id || ':' || phone, 0) AS lock_key
    FROM unnest(%(organizations)s::bigint[], %(phones)s::text[]) AS wanted (organization_id, phone)
    ORDER BY lock_key OFFSET 0
) AS locks
"""

# %(ids)s: ids of calls. Returns the calls for which a hang-up has been requested.
CANCELLED = """
SELECT c.id FROM telephony_call c JOIN accounts_organization o ON o.id = c.organization_id
WHERE c.id = ANY(%(ids)s::bigint[]) AND (c.cancel_requested_at IS NOT NULL OR NOT o.is_active)
"""

CREATE_CALLS = """
INSERT INTO telephony_call
    (organization_id, purpose, subject_id, attempt, account_id, number_id, pool_id, line_slot, pool_slot,
     to_phone, from_phone, ring_timeout_s, time_limit_s, detect_machine, status, not_before, place_by, send_by,
     requested_at, created_at, empty_listings, last_sequence, answered_by, keys_pressed, context, error_code,
     error_message)
SELECT v.organization_id, %(purpose)s, v.subject_id, v.attempt, v.account_id, v.number_id, v.pool_id, v.line_slot,
       v.pool_slot, v.to_phone, v.from_phone, v.ring, v.time_limit, v.detects = 1, 'requesting', %(now)s,
       %(now)s + v.send * interval '1 ms', %(now)s + v.send * interval '1 ms', %(now)s + v.turn * interval '1 ms',
       %(now)s, 0, -1, '', '', v.context::jsonb, '',
       ''
FROM unnest(%(organizations)s::bigint[], %(subjects)s::bigint[], %(attempts)s::int[], %(accounts)s::bigint[],
            %(numbers)s::bigint[], %(pools)s::bigint[], %(line_slots)s::int[], %(pool_slots)s::int[],
            %(phones)s::text[], %(from_phones)s::text[], %(rings)s::int[], %(limits)s::int[],
            %(detects)s::int[], %(contexts)s::text[], %(turns)s::int[], %(sends)s::int[])
     AS v(organization_id, subject_id, attempt, account_id, number_id, pool_id, line_slot, pool_slot,
          to_phone, from_phone, ring, time_limit, detects, context, turn, send)
ON CONFLICT DO NOTHING
RETURNING id, subject_id
"""

RECORD_RESULTS = """
UPDATE telephony_call c
SET status = v.status, sid = v.sid, error_code = v.code, error_message = v.message,
    submitted_at = CASE WHEN v.sid IS NOT NULL THEN %(now)s::timestamptz END,
    ended_at = CASE WHEN v.status = ANY(%(ends)s) THEN %(now)s::timestamptz END
FROM unnest(%(ids)s::bigint[], %(statuses)s::text[], %(sids)s::text[], %(codes)s::text[], %(messages)s::text[])
     AS v(id, status, sid, code, message)
WHERE c.id = v.id AND c.status = 'requesting' AND c.sid IS NULL AND c.cancel_requested_at IS NULL
RETURNING c.id
"""


_URGENT_TEXTS = Case(
    When(purpose="alert", then=Value(0)),
    When(purpose__in=("offer", "job_news", "reply"), then=Value(1)),
    default=Value(2),
)


def texts_to_send(now: datetime, limit: int, but: Collection[Any] = ()) -> list[int]:
    """Return ids of created texts that are due or expired, not locked elsewhere and not in `but`.

    Alerts come first, then offers and replies, then others.
    """
    due = Text.objects.filter(Q(not_before__lte=now) | Q(not_after__lte=now), status=Text.Status.CREATED)
    return unlocked_ids(due.exclude(pk__in=but).order_by(_URGENT_TEXTS, "not_before", "id"), limit)


def next_to_send(now: datetime) -> datetime | None:
    """Return when the next created text is due, or None."""
    waiting = Text.objects.filter(status=Text.Status.CREATED, not_before__gt=now)
    first: datetime | None = waiting.aggregate(first=Min("not_before"))["first"]
    return first
