"""Hold the SQL of the leads' hot path, run with `core.db.prepared`. Statements take the time as %(now)s.

Lock order: leads by id, then calls.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

from dispatch.core.db.prepared import execute, fetch_all, integers, texts
from dispatch.leads.rules.retries import LeadFacts
from dispatch.leads.rules.voice_agents import UNREACHABLE

__all__ = ["execute", "facts_of", "fetch_all", "integers", "texts"]

# The columns of LeadFacts (`facts_of`), with times as Unix seconds, because the driver is slow with timestamps.
_FACTS = """id, organization_id, campaign_id, phone, lat, lng, customer, external_id, attempts, token,
       extract(epoch FROM wanted_at)::float8, extract(epoch FROM due_at)::float8, reason, refusals, sent_back,
       cancel_requested_at IS NOT NULL, extract(epoch FROM call_back_at)::float8, disposition,
       contact_from, contact_until"""


def facts_of(row: Sequence[Any]) -> LeadFacts:
    """Build LeadFacts from a row of LOCK, without its status."""
    wanted_at, due_at = (datetime.fromtimestamp(moment, UTC) for moment in row[10:12])
    call_back_at = None if row[16] is None else datetime.fromtimestamp(row[16], UTC)
    return LeadFacts(*row[:10], wanted_at, due_at, *row[12:16], call_back_at, *row[17:20])  # type: ignore[call-arg]


# The same as in the condition of the index `lead_held`.
_HELD = "('stopped', 'organization_off', 'organization_paused', 'campaign_paused', 'no_script', 'dry_run')"

# Rows locked by other sessions are skipped: the dialer tries them again later.
LOCK = f"""
SELECT {_FACTS}, status FROM leads_lead WHERE id = ANY(%(ids)s::bigint[]) ORDER BY id FOR NO KEY UPDATE SKIP LOCKED
"""
LOCK_AND_WAIT = f"""
SELECT {_FACTS}, status FROM leads_lead WHERE id = ANY(%(ids)s::bigint[]) ORDER BY id FOR NO KEY UPDATE
"""
# The leads of these calls.
LOCK_OF_CALLS = f"""
SELECT {_FACTS}, status FROM leads_lead
WHERE id IN (SELECT c.subject_id FROM telephony_call c WHERE c.id = ANY(%(ids)s::bigint[]) AND c.purpose = 'lead')
ORDER BY id FOR NO KEY UPDATE SKIP LOCKED
"""
EXISTING = "SELECT id FROM leads_lead WHERE id = ANY(%(ids)s::bigint[])"

# backlog → processing. The caller holds the rows' locks and has read their status. An outcome with a rule, or that
# the voice agent failed, belongs to the earlier call, and decides nothing about this one.
CLAIM = f"""
UPDATE leads_lead l
SET status = 'processing', token = v.token, attempts = l.attempts + 1, claimed_at = %(now)s, worker = %(worker)s,
    reason = '',
    disposition = CASE WHEN l.disposition <> '' AND (l.disposition = '{UNREACHABLE}' OR EXISTS (
        SELECT FROM leads_dispositionrule r
        WHERE r.campaign_id = l.campaign_id AND r.disposition = l.disposition
    )) THEN '' ELSE l.disposition END
FROM unnest(%(ids)s::bigint[], %(tokens)s::int[]) AS v(id, token)
WHERE l.id = v.id AND l.status = 'backlog'
"""
# The time for which a lead was due does not count against its patience (`rules.retries.end_of_patience`). After
# "Call now", a lead may be due before it is wanted. If a switch holds it, its due time becomes the time at which
# it is wanted, so that RELEASE makes it due again.
DEFER = f"""
UPDATE leads_lead l
SET due_at = v.due_at, reason = v.reason,
    wanted_at = CASE WHEN v.reason IN {_HELD} THEN least(l.wanted_at, l.due_at)
                     ELSE l.wanted_at + greatest(%(now)s - l.due_at, interval '0') END
FROM unnest(%(ids)s::bigint[], %(dues)s::timestamptz[], %(reasons)s::text[]) AS v(id, due_at, reason)
WHERE l.id = v.id AND l.status = 'backlog'
"""
# Records what a dry run would have done with a lead. The lead stays in the backlog, as after DEFER.
SIMULATE = """
UPDATE leads_lead l
SET due_at = %(until)s, reason = 'dry_run', wanted_at = least(l.wanted_at, l.due_at), simulated_at = %(now)s,
    simulated_outcome = v.outcome
FROM unnest(%(ids)s::bigint[], %(outcomes)s::text[]) AS v(id, outcome)
WHERE l.id = v.id AND l.status = 'backlog'
"""
FINISH = """
UPDATE leads_lead l
SET status = 'finished', outcome = v.outcome, reason = v.reason, finished_at = %(now)s,
    last_outcome = CASE WHEN v.last = '' THEN l.last_outcome ELSE v.last END, attempts = l.attempts - v.uncounted
FROM unnest(%(ids)s::bigint[], %(outcomes)s::text[], %(reasons)s::text[], %(lasts)s::text[], %(uncounted)s::int[])
     AS v(id, outcome, reason, last, uncounted)
WHERE l.id = v.id AND l.status <> 'finished'
"""
# processing → backlog, for another attempt. As in DEFER, the time for which the lead was due does not count.
AGAIN = """
UPDATE leads_lead l
SET status = 'backlog', due_at = v.due_at, reason = v.reason, last_outcome = v.last,
    wanted_at = l.wanted_at + greatest(l.claimed_at - l.due_at, interval '0'),
    attempts = l.attempts - v.uncounted, claimed_at = NULL, worker = '', refusals = v.refusals,
    sent_back = v.sent_back
FROM unnest(%(ids)s::bigint[], %(dues)s::timestamptz[], %(reasons)s::text[], %(lasts)s::text[],
            %(uncounted)s::int[], %(refusals)s::int[], %(sent_back)s::int[])
     AS v(id, due_at, reason, last, uncounted, refusals, sent_back)
WHERE l.id = v.id AND l.status = 'processing'
"""

# What a key has recorded about leads in a call. The caller holds the rows' locks.
RECORD_OUTCOMES = """
UPDATE leads_lead l SET disposition = v.disposition, call_back_at = v.call_back_at
FROM unnest(%(ids)s::bigint[], %(dispositions)s::text[], %(call_backs)s::timestamptz[])
     AS v(id, disposition, call_back_at)
WHERE l.id = v.id
"""
# Which of these leads get a text for their outcome, or had one.
WITH_FOLLOW_UPS = """
SELECT v.id FROM unnest(%(ids)s::bigint[], %(campaigns)s::bigint[], %(dispositions)s::text[])
    AS v(id, campaign_id, disposition)
WHERE EXISTS (SELECT FROM leads_dispositionrule r
              WHERE r.campaign_id = v.campaign_id AND r.disposition = v.disposition AND r.text <> '')
   OR EXISTS (SELECT FROM telephony_text t
              WHERE t.direction = 'out' AND t.purpose = 'lead' AND t.subject_id = v.id)
"""

# For leads whose next time a recorded outcome or the person chose: their patience begins then.
RESTART_PATIENCE = """
UPDATE leads_lead SET wanted_at = due_at, call_back_at = NULL WHERE id = ANY(%(ids)s::bigint[])
"""

# --- Intake

NEXT_IDS = """
SELECT nextval(pg_get_serial_sequence('leads_lead', 'id')) FROM generate_series(1, %(count)s::int)
"""
# Skips leads whose external_id exists in the campaign and, with %(one_per_phone)s, leads to whose phone the
# campaign has an open lead. The constraints decide between concurrent requests; the condition finds leads that are
# older than the constraints. Requests that LOCK_INTAKE does not serialize insert in one order, so that two with
# the same external ids do not deadlock.
INSERT = """
INSERT INTO leads_lead
    (id, organization_id, campaign_id, phone, lat, lng, customer, external_id, data, status, outcome, reason,
     wanted_at, due_at, attempts, token, worker, last_outcome, created_at, is_only_of_phone, contact_from,
     contact_until)
SELECT v.id, %(organization)s, %(campaign)s, v.phone, v.lat, v.lng, v.customer, v.external_id, v.data::jsonb,
       'backlog', '', '', to_timestamp(v.due / 1000.0), to_timestamp(v.due / 1000.0), 0, 0, '', '', %(now)s,
       CASE WHEN %(one_per_phone)s THEN true END, v.contact_from, v.contact_until
FROM unnest(%(ids)s::bigint[], %(phones)s::text[], %(lats)s::float8[], %(lngs)s::float8[], %(customers)s::text[],
            %(externals)s::text[], %(data)s::text[], %(dues)s::float8[], %(contact_from)s::time[],
            %(contact_until)s::time[])
     AS v(id, phone, lat, lng, customer, external_id, data, due, contact_from, contact_until)
WHERE NOT (%(one_per_phone)s AND EXISTS (
    SELECT FROM leads_lead o
    WHERE o.organization_id = %(organization)s AND o.phone = v.phone AND o.campaign_id = %(campaign)s
      AND o.status <> 'finished'
))
ORDER BY CASE WHEN %(one_per_phone)s THEN '' ELSE v.external_id END COLLATE "C", v.id
ON CONFLICT DO NOTHING
RETURNING id
"""
# Without this lock, two requests with the same phones in a different order would deadlock.
LOCK_INTAKE = "SELECT pg_advisory_xact_lock(hashtextextended('lead intake:' || %(campaign)s::text, 0))"
BY_EXTERNAL_ID = """
SELECT external_id, id FROM leads_lead
WHERE campaign_id = %(campaign)s AND external_id = ANY(%(externals)s::text[]) AND external_id <> ''
"""

OPEN_BY_PHONE = """
SELECT phone, max(id) FROM leads_lead
WHERE organization_id = %(organization)s AND phone = ANY(%(phones)s::text[]) AND campaign_id = %(campaign)s
  AND status <> 'finished'
GROUP BY phone
"""

# --- The leads that the schedule should contain: (pool, lead, next attempt, due time in Unix ms, due time in Unix
# µs), ordered by (due_at, id). Times are numbers, because the driver is slow with timestamps.

DUE = """
SELECT c.pool_id, l.id, l.token + 1, ceil(extract(epoch FROM l.due_at) * 1000)::bigint,
       (extract(epoch FROM l.due_at) * 1000000)::bigint
FROM leads_lead l JOIN leads_campaign c ON c.id = l.campaign_id
WHERE l.status = 'backlog' AND (l.due_at, l.id) > (%(after)s::timestamptz, %(after_id)s) AND l.due_at <= %(until)s
ORDER BY l.due_at, l.id LIMIT %(limit)s
"""
# The same as one text, for the comparison with the schedule: due time in Unix ms and <pool>:<lead>:<attempt>
# alternately, separated by blanks; then the number of leads, and the position of the last. Leads due up to
# %(overdue_ms)s are scheduled at %(floor_ms)s.
PAGE_OF_DUE = f"""
SELECT string_agg(CASE WHEN due_ms <= %(overdue_ms)s::bigint THEN %(floor_ms)s::bigint ELSE due_ms END || ' '
                  || pool_id || ':' || id || ':' || attempt, ' '), count(*),
       (array_agg(due_us ORDER BY due_us DESC, id DESC))[1], (array_agg(id ORDER BY due_us DESC, id DESC))[1]
FROM ({DUE}) page (pool_id, id, attempt, due_ms, due_us)
"""
# The SQL condition that a lead waits, for the sweep, which compares all that do with Redis.
IS_ANY_WAITING = "EXISTS (SELECT FROM leads_lead WHERE status = 'backlog')"
OVERDUE = "SELECT count(*) FROM leads_lead WHERE status = 'backlog' AND due_at <= %(now)s"

# Counts an organization's leads in one pass. `hour`: for waiting leads, how many of %(hours)s precede the due
# time.
COUNTED = """
SELECT campaign_id, status, outcome, reason,
       CASE WHEN status = 'backlog' THEN width_bucket(due_at, %(hours)s::timestamptz[]) END AS hour,
       count(*), count(*) FILTER (WHERE status = 'backlog' AND reason = '' AND due_at <= %(now)s), min(due_at)
FROM leads_lead WHERE organization_id = %(organization)s GROUP BY 1, 2, 3, 4, 5
"""

# Returns the pairs of campaign and reason for which a lead is held. Reads one entry of the index `lead_held` per
# pair, however many campaigns and leads there are.
HELD_PAIRS = f"""
WITH RECURSIVE pair AS (
    (SELECT campaign_id, reason FROM leads_lead
     WHERE status = 'backlog' AND reason IN {_HELD} ORDER BY campaign_id, reason LIMIT 1)
    UNION ALL
    SELECT next.campaign_id, next.reason FROM pair CROSS JOIN LATERAL (
        SELECT l.campaign_id, l.reason FROM leads_lead l
        WHERE l.status = 'backlog' AND l.reason IN {_HELD}
          AND (l.campaign_id, l.reason) > (pair.campaign_id, pair.reason)
        ORDER BY l.campaign_id, l.reason LIMIT 1
    ) next
)
SELECT campaign_id, reason FROM pair
"""

# Claims whose call has ended without an update of the lead, or that have no call at all. Claims that another
# session has locked, and claims that failed a moment ago, are excluded before LIMIT.
STALE = """
SELECT l.id, l.token, call.id
FROM leads_lead l
LEFT JOIN telephony_call call ON call.purpose = 'lead' AND call.subject_id = l.id AND call.attempt = l.token
WHERE l.status = 'processing'
  AND (call.ended_at <= %(ended_before)s OR call.id IS NULL AND l.claimed_at <= %(claimed_before)s)
  AND l.id <> ALL(%(but)s::bigint[])
ORDER BY l.claimed_at LIMIT %(limit)s FOR NO KEY UPDATE OF l SKIP LOCKED
"""

# --- Releasing leads that a switch had held back

# Their patience begins now, because no call was possible during the hold.
RELEASE = f"""
UPDATE leads_lead l
SET due_at = greatest(l.wanted_at, %(now)s), wanted_at = greatest(l.wanted_at, %(now)s), reason = ''
FROM leads_campaign c
WHERE c.id = l.campaign_id AND l.id = ANY(ARRAY(
    SELECT w.id FROM leads_lead w
    WHERE w.status = 'backlog' AND w.reason = ANY(%(reasons)s::text[])
      AND w.reason IN {_HELD}
      AND (%(organization)s::bigint IS NULL OR w.organization_id = %(organization)s)
      AND (%(campaign)s::bigint IS NULL OR w.campaign_id = %(campaign)s)
    ORDER BY w.id LIMIT %(limit)s FOR NO KEY UPDATE SKIP LOCKED
))
RETURNING c.pool_id, l.id, l.token + 1, ceil(extract(epoch FROM l.due_at) * 1000)::bigint
"""
