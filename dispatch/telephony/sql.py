"""Hold the SQL on calls and texts: open calls for capacity's reconciliation, and the loops' batches."""

from __future__ import annotations

from collections.abc import Callable, Collection
from datetime import datetime, timedelta
from typing import Any

from django.conf import settings
from django.db import transaction
from django.db.models import Min, Q, QuerySet

from dispatch.capacity.lease_reconciliation import Lease
from dispatch.core.db import prepared
from dispatch.telephony import rules
from dispatch.telephony.models import Call, Text, holder_of
from dispatch.telephony.request_threads import DueRow

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
        requests = Call.objects.filter(requested_at__gte=since).order_by("requested_at")
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
    WHERE status = 'created' AND NOT id = ANY(%(but)s::bigint[]) AND NOT account_id = ANY(%(full)s::bigint[])
        AND (place_by <= %(now)s
             OR not_before <= %(now)s AND NOT (not_before <= created_at AND created_at > %(fresh)s))
), ranked AS (
    SELECT *, row_number() OVER (PARTITION BY organization_id, turn ORDER BY priority, not_before, id) AS round
    FROM due
)
SELECT c.id, c.account_id FROM (SELECT id FROM ranked ORDER BY turn, round, priority, not_before, id) r
CROSS JOIN LATERAL (SELECT id, account_id FROM telephony_call WHERE id = r.id FOR NO KEY UPDATE SKIP LOCKED) c
LIMIT %(limit)s
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
) -> Callable[[], list[tuple[int, bool]]]:
    """Return a function for the calls that prevent a new call, as (id, whether it is the call of this attempt).

    These are the call of the attempt itself and the open calls to the phone.
    """
    params: dict[str, Any] = {
        "organization_id": organization_id, "phone": phone,
        "purpose": purpose, "subject_id": subject_id, "attempt": attempt,
    }  # fmt: skip
    answer = prepared.fetch_later(_CONFLICTING_CALLS, params)
    return lambda: [(pk, is_same) for pk, is_same in answer()]


def calls_to_place(
    now: datetime, limit: int, but: Collection[Any] = (), full: Collection[int] = ()
) -> list[DueRow]:
    """Return created calls that are due, not locked by another session, not in `but` and of no account in `full`.

    Alerts first, then offers, then others. Within each, organizations take turns: first the most urgent and
    longest waiting call of each, in the order of urgency, then the second of each.
    """
    given = {"now": now, "fresh": now - rules.CREATORS_TIME, "limit": limit}
    return _fetch_due(_TO_PLACE, given, but, full)


def waits_before(call: Call, now: datetime) -> Callable[[], bool]:
    """Return a function for whether a more urgent call of the same account waits for its rate."""
    turn = {"alert": 0, "offer": 1, "job_news": 1}.get(call.purpose, 2)
    given = {
        "id": call.pk, "account_id": call.account_id, "now": now, "turn": turn, "priority": call.priority,
    }  # fmt: skip
    answer = prepared.fetch_later(_WAITS_BEFORE, given)
    return lambda: bool(answer())


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

# %(organizations)s, %(phones)s: as above. Returns the pairs with an open call.
BUSY_PHONES = """
SELECT c.organization_id, c.to_phone FROM unnest(%(organizations)s::bigint[], %(phones)s::text[]) AS w (o, p)
JOIN telephony_call c ON c.organization_id = w.o AND c.to_phone = w.p AND c.ended_at IS NULL
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
     error_message, customer)
SELECT v.organization_id, %(purpose)s, v.subject_id, v.attempt, v.account_id, v.number_id, v.pool_id, v.line_slot,
       v.pool_slot, v.to_phone, v.from_phone, v.ring, v.time_limit, v.detects = 1, 'requesting', %(now)s,
       %(now)s + v.send * interval '1 ms', %(now)s + v.send * interval '1 ms', %(now)s + v.turn * interval '1 ms',
       %(now)s, 0, -1, '', '', v.context::jsonb, '',
       '', v.customer
FROM unnest(%(organizations)s::bigint[], %(subjects)s::bigint[], %(attempts)s::int[], %(accounts)s::bigint[],
            %(numbers)s::bigint[], %(pools)s::bigint[], %(line_slots)s::int[], %(pool_slots)s::int[],
            %(phones)s::text[], %(from_phones)s::text[], %(rings)s::int[], %(limits)s::int[],
            %(detects)s::int[], %(contexts)s::text[], %(turns)s::int[], %(sends)s::int[],
            %(customers)s::text[])
     AS v(organization_id, subject_id, attempt, account_id, number_id, pool_id, line_slot, pool_slot,
          to_phone, from_phone, ring, time_limit, detects, context, turn, send, customer)
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


# Rows of {table} that are {due} for a request. Accounts take turns, each with the row that waits longest since
# {since}; before that, by {urgency}. The due rows are found before their accounts, since a plan that begins with
# the accounts could read all their rows. They are locked one by one: a join could read all due rows each time.
_TAKING_TURNS = """
WITH found AS MATERIALIZED (
    SELECT c.id, c.account_id, {urgency} AS urgency, {since} AS since FROM {table} c
    WHERE {due} AND NOT c.id = ANY(%(but)s::bigint[]) AND NOT c.account_id = ANY(%(full)s::bigint[])
), due AS (
    SELECT f.id, f.urgency, f.since, a.outage <> '' AS is_out,
           row_number() OVER (PARTITION BY f.account_id, f.urgency ORDER BY f.since NULLS FIRST, f.id) AS turn
    FROM found f JOIN capacity_provideraccount a ON a.id = f.account_id
)
SELECT c.id, c.account_id, d.is_out
FROM (SELECT id, is_out FROM due ORDER BY urgency, turn, since NULLS FIRST, id) d
CROSS JOIN LATERAL (SELECT id, account_id FROM {table} WHERE id = d.id FOR NO KEY UPDATE SKIP LOCKED) c
LIMIT %(limit)s
"""


def _taking_turns(table: str, due: str, since: str, urgency: str = "0") -> str:
    return _TAKING_TURNS.format(table=table, due=due, since=since, urgency=urgency)


_UNKNOWN = """
c.status = 'unknown' AND c.sid IS NULL AND c.send_by IS NOT NULL
AND (c.empty_listings = 0 AND (c.checked_at IS NULL OR c.checked_at <= %(asked_before)s)
     OR c.empty_listings > 0 AND c.checked_at <= %(listed_before)s AND c.send_by <= %(sent_before)s)
"""
_CALLS_UNKNOWN = _taking_turns("telephony_call", f"c.ended_at IS NULL AND {_UNKNOWN}", "c.checked_at")
_TEXTS_UNKNOWN = _taking_turns("telephony_text", _UNKNOWN, "c.checked_at")

_HANG_UPS = _taking_turns("telephony_call", "c.hang_up_at <= %(now)s AND c.sid IS NOT NULL", "c.hang_up_at")

# After the ringing or the talking, and a margin, the end of a call should have been reported.
_OVERDUE_ENDS = _taking_turns(
    "telephony_call",
    """
c.ended_at IS NULL AND c.sid IS NOT NULL AND c.status IN ('unknown', 'submitted', 'ringing', 'answered')
AND (c.checked_at IS NULL OR c.checked_at < %(asked_before)s)
AND coalesce(c.answered_at + c.time_limit_s * interval '1 s',
             coalesce(c.requested_at, c.created_at) + c.ring_timeout_s * interval '1 s') <= %(end_before)s
""",
    "c.checked_at",
)

_TEXT_URGENCY = (
    "CASE c.purpose WHEN 'alert' THEN 0 WHEN 'offer' THEN 1 WHEN 'job_news' THEN 1 WHEN 'reply' THEN 1 ELSE 2 END"
)
_TEXTS_TO_SEND = _taking_turns(
    "telephony_text",
    "c.status = 'created' AND (c.not_before <= %(now)s OR c.not_after <= %(now)s)",
    "c.not_before",
    _TEXT_URGENCY,
)
# Due at one moment, all waiting texts of a number would be claimed then to send one of them. The first ones get a
# separate turn each. The others share the last turn, because a turn is lost if its text is canceled.
MAX_TURNS = 30
_SPACE_TEXTS = f"""
WITH due AS (
    SELECT c.id, {_TEXT_URGENCY} AS urgency, c.not_before FROM telephony_text c
    WHERE c.number_id = %(number)s AND c.status = 'created' AND c.not_before <= %(now)s
    FOR NO KEY UPDATE SKIP LOCKED
), turn AS (
    SELECT id, least(row_number() OVER (ORDER BY urgency, not_before, id) - 1, {MAX_TURNS}) AS number FROM due
)
UPDATE telephony_text t SET not_before = %(first)s::timestamptz + turn.number * make_interval(secs => %(each_s)s)
FROM turn WHERE t.id = turn.id
"""

# In each pause, up to this many of the texts that wait for the same as the text %(id)s, such as a paused number,
# are checked one by one. The others are postponed with it: hundreds would keep the loop busy.
CHECKED_ALONE = 8
# The pause is as long again for each further group of this many waiting texts, up to MAX_PAUSE_S.
PAUSED_TOGETHER, MAX_PAUSE_S = 5000, 30
# All are due again at the same time, a multiple of the pause, so that they keep their order. Those that are
# checked one by one are chosen at random, so that each is checked in time. `+ 0` keeps PostgreSQL from an index of
# all texts of a number, and the array from a join that reads all texts for each of them.
_POSTPONE_TEXTS = f"""
WITH pause AS (
    SELECT make_interval(secs => least(
        %(pause_s)s::float8 * (1 + count(*) / {PAUSED_TOGETHER}), greatest(%(pause_s)s::float8, {MAX_PAUSE_S})
    )) AS length
    FROM telephony_text c
    WHERE c.status = 'created' AND c.not_before <= %(now)s::timestamptz + interval '{MAX_PAUSE_S} s' AND {{alike}}
), due AS (
    SELECT c.id FROM telephony_text c
    WHERE c.status = 'created' AND c.not_before <= %(now)s AND c.not_after > %(now)s AND {{alike}}
    FOR NO KEY UPDATE SKIP LOCKED
), ranked AS (
    SELECT id, row_number() OVER (ORDER BY id <> %(id)s, random()) AS place FROM due
)
UPDATE telephony_text
SET not_before = (
    SELECT length + date_bin(length, %(now)s, '2000-01-01 00:00:00Z'::timestamptz) FROM pause
)
WHERE id = ANY(ARRAY(SELECT id FROM ranked WHERE id = %(id)s OR place > 1 + {CHECKED_ALONE}))
"""
_POSTPONE_OF_NUMBER = _POSTPONE_TEXTS.format(
    alike="""c.number_id + 0 = %(number)s AND c.account_id + 0 = %(account)s
        AND (%(purposes)s::text[] IS NULL OR c.purpose = ANY(%(purposes)s::text[]))"""
)
_POSTPONE_HELD = _POSTPONE_TEXTS.format(
    alike="c.organization_id + 0 = %(organization)s AND c.error_message = %(why)s"
)

# Conditions of the loops, which rest while they are false. A condition on the status is an index's.
IS_CALL_TO_PLACE = """
EXISTS (SELECT FROM telephony_call WHERE status = 'created' AND (not_before <= %(soon)s OR place_by <= %(soon)s))
"""
IS_TEXT_TO_SEND = """
EXISTS (SELECT FROM telephony_text WHERE status = 'created' AND (not_before <= %(soon)s OR not_after <= %(soon)s))
"""
IS_HANG_UP_DUE = "EXISTS (SELECT FROM telephony_call WHERE hang_up_at <= %(now)s)"
IS_KEY_UNHANDLED = """(
    EXISTS (SELECT FROM telephony_callevent WHERE next_action_at <= %(now)s)
    OR EXISTS (SELECT FROM telephony_inboundcall WHERE next_action_at <= %(now)s)
)"""

# Calls to be ended for which no hang-up is scheduled: they were written by an older version.
_UNSCHEDULED_HANG_UPS = """
UPDATE telephony_call SET hang_up_at = %(now)s WHERE id = ANY(ARRAY(
    SELECT id FROM telephony_call
    WHERE ended_at IS NULL AND cancel_requested_at IS NOT NULL AND hang_up_at IS NULL AND sid IS NOT NULL
        AND status IN ('unknown', 'submitted', 'ringing', 'answered')
    FOR NO KEY UPDATE SKIP LOCKED
))
"""


def _fetch_due(statement: str, given: dict[str, Any], but: Collection[Any], full: Collection[int]) -> list[DueRow]:
    """Return the due rows that no session has locked. Without a transaction: most passes find none."""
    given = {**given, "but": prepared.integers(but), "full": prepared.integers(full)}
    return [DueRow(*row) for row in prepared.fetch_by_index(statement, given)]


def unknown_rows(
    model: type[Call] | type[Text], now: datetime, limit: int, but: Collection[Any], full: Collection[int]
) -> list[DueRow]:
    """Return calls or texts with an unknown outcome that are due for a listing; accounts take turns.

    A row with an empty listing is due when another one would prove something. Rows in `but` and of accounts in
    `full` are left out, as in the other functions.
    """
    given = {
        "asked_before": now - timedelta(seconds=settings.CALL_RECONCILER_INTERVAL_S),
        "listed_before": now - timedelta(seconds=settings.UNKNOWN_LISTING_GAP_S),
        "sent_before": now - timedelta(seconds=settings.PROVIDER_TIMEOUT_S),
        "limit": limit,
    }
    return _fetch_due(_CALLS_UNKNOWN if model is Call else _TEXTS_UNKNOWN, given, but, full)


def overdue_ends(
    now: datetime, asked_before: datetime, limit: int, but: Collection[Any], full: Collection[int]
) -> list[DueRow]:
    """Return calls whose end is overdue and that were not asked about since `asked_before`."""
    given = {"asked_before": asked_before, "end_before": now - rules.END_MARGIN, "limit": limit}
    return _fetch_due(_OVERDUE_ENDS, given, but, full)


def due_hang_ups(now: datetime, limit: int, but: Collection[Any], full: Collection[int]) -> list[DueRow]:
    """Return calls that the provider must be asked to end now."""
    return _fetch_due(_HANG_UPS, {"now": now, "limit": limit}, but, full)


def schedule_missing_hang_ups(now: datetime) -> int:
    """Schedule the hang-ups that an older version requested but did not schedule. Return how many."""
    with transaction.atomic():
        prepared.prefer_index_plans()
        return prepared.execute_rowcount(_UNSCHEDULED_HANG_UPS, {"now": now})


def texts_to_send(
    now: datetime, limit: int, but: Collection[Any] = (), full: Collection[int] = ()
) -> list[DueRow]:
    """Return created texts that are due or expired and not locked elsewhere.

    Alerts come first, then offers and replies, then others. Within each, accounts take turns.
    """
    return _fetch_due(_TEXTS_TO_SEND, {"now": now, "limit": limit}, but, full)


def space_texts(number_id: int, first: datetime, each_s: float, now: datetime) -> None:
    """Make the due texts of a number due one after another, the most urgent at `first`.

    Texts that are locked elsewhere are skipped. Call it with the number's advisory lock.
    """
    given = {"number": number_id, "first": first, "each_s": each_s, "now": now}
    prepared.execute(_SPACE_TEXTS, given)


def postpone_texts_of_number(text: Text, pause_s: float, now: datetime, purposes: Collection[str] = ()) -> None:
    """Postpone a locked, due text, and the other due texts of its number and account, of these purposes if given.

    Some are left due and are checked one by one (see CHECKED_ALONE). Texts that are locked elsewhere are skipped.
    """
    of_number = {"number": text.number_id, "account": text.account_id, "purposes": list(purposes) or None}
    given = {"id": text.pk, "pause_s": pause_s, "now": now}
    prepared.execute(_POSTPONE_OF_NUMBER, {**of_number, **given})


def postpone_held_texts(text: Text, pause_s: float, now: datetime) -> None:
    """Do the same for the texts of the organization that were held back for the same reason."""
    alike = {"organization": text.organization_id, "why": text.error_message}
    prepared.execute(_POSTPONE_HELD, {**alike, "id": text.pk, "pause_s": pause_s, "now": now})


def next_to_send(now: datetime) -> datetime | None:
    """Return when the next created text is due, or None."""
    waiting = Text.objects.filter(status=Text.Status.CREATED, not_before__gt=now)
    first: datetime | None = waiting.aggregate(first=Min("not_before"))["first"]
    return first
