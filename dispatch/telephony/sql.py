"""What capacity asks about calls (`capacity.truth.Truth`), and the placer's and reconcilers' picks."""

from __future__ import annotations

from collections.abc import Collection
from datetime import datetime
from typing import Any

from django.db.models import Case, F, Min, Q, QuerySet, Value, When

from dispatch.capacity.truth import Lease
from dispatch.core import statements
from dispatch.telephony import rules
from dispatch.telephony.models import Call, Text, holder_of

_LEASE = ("purpose", "subject_id", "attempt", "number_id", "line_slot", "pool_id", "pool_slot")


class OpenCalls:
    """The calls as capacity sees them."""

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
        over = Call.objects.filter(where, ended_at__isnull=False).values_list("purpose", "subject_id", "attempt")
        return {keys[row] for row in over if row in keys} if keys else set()

    def requests_of_account(self, account_id: int, since: datetime, limit: int) -> list[datetime]:
        requests = Call.objects.filter(account_id=account_id, requested_at__gt=since)
        return _moments(requests, limit)

    def requests_of_pool(self, pool_id: int, since: datetime, limit: int) -> list[datetime]:
        requests = Call.objects.filter(pool_id=pool_id, requested_at__gt=since)
        return _moments(requests, limit)

    def requests_since(self, since: datetime) -> list[tuple[int, int, datetime]]:
        requests = Call.objects.filter(requested_at__gt=since).order_by("requested_at")
        rows: Any = requests.values_list("account_id", "pool_id", "requested_at")
        return list(rows)


def _moments(requests: QuerySet[Call], limit: int) -> list[datetime]:
    moments: Any = requests.order_by("-requested_at").values_list("requested_at", flat=True)[:limit]
    return list(moments)


def _leases(where: Q) -> list[Lease]:
    rows = Call.objects.filter(where, ended_at=None).values_list(*_LEASE)
    return [Lease(holder_of(*row[:3]), *row[3:]) for row in rows]


def _to_place(now: datetime) -> Any:
    """Created calls whose time has come; a fresh one is left to its creator for a moment."""
    fresh = Q(not_before__lte=F("created_at"), created_at__gt=now - rules.CREATORS_TIME)
    return Call.objects.filter(Q(not_before__lte=now) & ~fresh | Q(place_by__lte=now), status=Call.Status.CREATED)


# Alerts before offers before leads, also where they share a rate.
_TURN = Case(When(purpose="alert", then=Value(0)), When(purpose="offer", then=Value(1)), default=Value(2))


_IN_THE_WAY = """
SELECT id, (purpose, subject_id, attempt) = (%(purpose)s, %(subject_id)s, %(attempt)s) FROM telephony_call
WHERE (purpose = %(purpose)s AND subject_id = %(subject_id)s AND attempt = %(attempt)s)
    OR (organization_id = %(organization_id)s AND to_phone = %(phone)s AND ended_at IS NULL)
"""


def calls_in_the_way(
    organization_id: int, phone: str, purpose: str, subject_id: int, attempt: int
) -> list[tuple[int, bool]]:
    """(id, whether it is the call of this very attempt): that call, and open ones to the phone."""
    given: dict[str, Any] = {
        "organization_id": organization_id, "phone": phone,
        "purpose": purpose, "subject_id": subject_id, "attempt": attempt,
    }  # fmt: skip
    return [(pk, is_same) for pk, is_same in statements.rows(_IN_THE_WAY, given)]


def calls_to_place(now: datetime, limit: int) -> list[int]:
    """Ids of created calls that are due: alerts, offers, then all others, of each the longest waiting first."""
    return list(_to_place(now).order_by(_TURN, "not_before", "id").values_list("id", flat=True)[:limit])


def next_to_place(now: datetime) -> datetime | None:
    """When the next created call will be due."""
    waiting = Call.objects.filter(status=Call.Status.CREATED, not_before__gt=now)
    first: datetime | None = waiting.aggregate(first=Min("not_before"))["first"]
    return first


# --- Batches

CREATE_MANY = """
INSERT INTO telephony_call
    (organization_id, purpose, subject_id, attempt, account_id, number_id, pool_id, line_slot, pool_slot,
     to_phone, from_phone, ring_timeout_s, time_limit_s, detect_machine, status, not_before, place_by, send_by,
     requested_at, created_at, empty_listings, last_sequence, answered_by, keys_pressed, context, error_code,
     error_message)
SELECT v.organization_id, %(purpose)s, v.subject_id, v.attempt, v.account_id, v.number_id, v.pool_id, v.line_slot,
       v.pool_slot, v.to_phone, v.from_phone, v.ring, v.time_limit, v.detects = 1, 'requesting', %(now)s,
       %(send_by)s, %(send_by)s, %(now)s + v.turn * interval '1 ms', %(now)s, 0, -1, '', '', v.context::jsonb, '',
       ''
FROM unnest(%(organizations)s::bigint[], %(subjects)s::bigint[], %(attempts)s::int[], %(accounts)s::bigint[],
            %(numbers)s::bigint[], %(pools)s::bigint[], %(line_slots)s::int[], %(pool_slots)s::int[],
            %(phones)s::text[], %(from_phones)s::text[], %(rings)s::int[], %(limits)s::int[],
            %(detects)s::int[], %(contexts)s::text[], %(turns)s::int[])
     AS v(organization_id, subject_id, attempt, account_id, number_id, pool_id, line_slot, pool_slot,
          to_phone, from_phone, ring, time_limit, detects, context, turn)
ON CONFLICT DO NOTHING
RETURNING id, subject_id
"""

SETTLE_MANY = """
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
    When(purpose="alert", then=Value(0)), When(purpose__in=("offer", "reply"), then=Value(1)), default=Value(2)
)


def texts_to_send(now: datetime, limit: int) -> list[int]:
    """Ids of created texts that are due, or whose time is over: alerts, offers and replies, then all others."""
    due = Text.objects.filter(Q(not_before__lte=now) | Q(not_after__lte=now), status=Text.Status.CREATED)
    return list(due.order_by(_URGENT_TEXTS, "not_before", "id").values_list("id", flat=True)[:limit])


def next_to_send(now: datetime) -> datetime | None:
    """When the next created text will be due."""
    waiting = Text.objects.filter(status=Text.Status.CREATED, not_before__gt=now)
    first: datetime | None = waiting.aggregate(first=Min("not_before"))["first"]
    return first
