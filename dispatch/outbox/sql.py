"""The outbox's hot path in SQL. Every statement takes its time as %(now)s, but leases, which run on the database's
own clock, so that routers on several machines need not agree.

Order of locks: group rows by id, then messages, then targets by id; a start takes targets, gates by pool, then its
messages. The poller skips locked groups and so never waits for one."""

from __future__ import annotations

from dispatch.core.statements import DB_NOW, EVENTS, ask, columns, do, pipelined, rows

__all__ = ["DB_NOW", "EVENTS", "ask", "columns", "do", "pipelined", "rows"]

# --- Groups ---------------------------------------------------------------------------

ADD_GROUPS = """
INSERT INTO outbox_messagegroup (organization_id, endpoint_id, name, key, created_at)
SELECT v.organization_id, v.endpoint_id, v.name, v.key, %(now)s
FROM unnest(%(organizations)s::bigint[], %(endpoints)s::bigint[], %(names)s::text[], %(keys)s::text[])
     AS v(organization_id, endpoint_id, name, key)
ORDER BY v.key
ON CONFLICT (key) DO NOTHING
"""
GROUP_IDS = "SELECT key, id FROM outbox_messagegroup WHERE key = ANY(%(keys)s::text[])"
LOCK_GROUPS = "SELECT id FROM outbox_messagegroup WHERE id = ANY(%(ids)s::bigint[]) ORDER BY id FOR UPDATE"

# Which message of each group is next: the one place that knows (rules.heads says the same in Python). The groups
# must be locked by an earlier statement, so that this one's snapshot is younger than every change of theirs.
# Per group: what is in flight; the first ERROR of each mode; the first waiting message of each mode, of which the
# earlier one that no error holds is the head. Since errors hold by position, a mode's first message is held if
# and only if all of that mode are.
HEADS = """
SELECT g.id, g.wake_at, g.blocked_by, g.blocked_since, flight.id, head.id, head.due_at, head.target_id,
       CASE WHEN flight.id IS NULL AND head.id IS NULL THEN held.by_id END
FROM outbox_messagegroup g
LEFT JOIN LATERAL (
    SELECT f.id FROM outbox_message f
    WHERE f.group_id = g.id AND f.in_flight AND f.mode <> 'IMMEDIATE' LIMIT 1
) flight ON true
LEFT JOIN LATERAL (
    SELECT e.sequence, e.created_at, e.id FROM outbox_message e
    WHERE e.group_id = g.id AND e.status = 'ERROR' AND e.mode = 'BLOCK_ON_ERROR'
    ORDER BY e.sequence, e.created_at, e.id LIMIT 1
) block_error ON true
LEFT JOIN LATERAL (
    SELECT e.sequence, e.created_at, e.id FROM outbox_message e
    WHERE e.group_id = g.id AND e.status = 'ERROR' AND e.mode = 'NEXT_ON_ERROR'
    ORDER BY e.sequence, e.created_at, e.id LIMIT 1
) next_error ON true
LEFT JOIN LATERAL (
    SELECT m.sequence, m.created_at, m.id, m.due_at, m.target_id FROM outbox_message m
    WHERE m.group_id = g.id AND m.status = 'PENDING' AND m.mode = 'BLOCK_ON_ERROR'
      AND (m.expires_at IS NULL OR m.expires_at > %(now)s)
    ORDER BY m.sequence, m.created_at, m.id LIMIT 1
) blocking ON true
LEFT JOIN LATERAL (
    SELECT m.sequence, m.created_at, m.id, m.due_at, m.target_id FROM outbox_message m
    WHERE m.group_id = g.id AND m.status = 'PENDING' AND m.mode = 'NEXT_ON_ERROR'
      AND (m.expires_at IS NULL OR m.expires_at > %(now)s)
    ORDER BY m.sequence, m.created_at, m.id LIMIT 1
) passing ON true
LEFT JOIN LATERAL (
    SELECT c.* FROM (VALUES
        (blocking.sequence, blocking.created_at, blocking.id, blocking.due_at, blocking.target_id, true),
        (passing.sequence, passing.created_at, passing.id, passing.due_at, passing.target_id, false)
    ) AS c(sequence, created_at, id, due_at, target_id, blocks)
    WHERE c.id IS NOT NULL AND flight.id IS NULL
      AND (block_error.id IS NULL
           OR (c.sequence, c.created_at, c.id)
              < (block_error.sequence, block_error.created_at, block_error.id))
      AND (NOT c.blocks OR next_error.id IS NULL
           OR (c.sequence, c.created_at, c.id) < (next_error.sequence, next_error.created_at, next_error.id))
    ORDER BY c.sequence, c.created_at, c.id LIMIT 1
) head ON true
LEFT JOIN LATERAL (
    SELECT CASE
        WHEN blocking.id IS NULL AND passing.id IS NULL THEN NULL
        WHEN next_error.id IS NULL THEN block_error.id
        WHEN block_error.id IS NULL THEN next_error.id
        -- The first message in order names its earliest holder: a NEXT message only knows BLOCK errors.
        WHEN blocking.id IS NULL OR (passing.id IS NOT NULL AND
             (passing.sequence, passing.created_at, passing.id)
             < (blocking.sequence, blocking.created_at, blocking.id)) THEN block_error.id
        WHEN (block_error.sequence, block_error.created_at, block_error.id)
             < (next_error.sequence, next_error.created_at, next_error.id) THEN block_error.id
        ELSE next_error.id END AS by_id
) held ON true
WHERE g.id = ANY(%(ids)s::bigint[])
"""
SAVE_GROUPS = """
UPDATE outbox_messagegroup g
SET wake_at = v.wake_at, target_id = COALESCE(v.target_id, g.target_id),
    blocked_by = v.blocked_by, blocked_since = v.blocked_since
FROM unnest(%(ids)s::bigint[], %(wakes)s::timestamptz[], %(targets)s::bigint[], %(blockers)s::bigint[],
            %(sinces)s::timestamptz[]) AS v(id, wake_at, target_id, blocked_by, blocked_since)
WHERE g.id = v.id
"""

# --- Lines: who waits, and for what there is room ---

LANES = """
WITH counts AS (
    SELECT m.pool_id, count(*) AS in_flight, count(*) FILTER (WHERE m.status = 'QUEUED') AS queued
    FROM outbox_message m
    WHERE m.in_flight AND (%(pools)s::bigint[] IS NULL OR m.pool_id = ANY(%(pools)s::bigint[]))
    GROUP BY m.pool_id
), lane AS (
    SELECT t.*, COALESCE(e.pool_id, t.pool_id) AS its_pool_id,
           COALESCE(e.is_paused OR e.disabled_at IS NOT NULL, false) AS is_held,
           EXISTS (SELECT FROM outbox_messagegroup g WHERE g.target_id = t.id AND g.wake_at <= %(now)s)
               AS has_groups,
           EXISTS (SELECT FROM outbox_message i
                   WHERE i.target_id = t.id AND i.status = 'PENDING' AND i.mode = 'IMMEDIATE'
                     AND i.due_at <= %(now)s) AS has_immediates
    FROM outbox_target t LEFT JOIN outbox_endpoint e ON e.id = t.endpoint_id
    WHERE %(pools)s::bigint[] IS NULL OR COALESCE(e.pool_id, t.pool_id) = ANY(%(pools)s::bigint[])
)
SELECT lane.id, lane.is_held, lane.has_groups, lane.has_immediates,
       lane.failures, lane.openings, lane.open_until, lane.probe_until, lane.failing_since,
       p.id, p.concurrency, p.rate_per_minute, p.is_paused, gate.full_at,
       COALESCE(counts.in_flight, 0), COALESCE(counts.queued, 0)
FROM lane
JOIN capacity_dispatchpool p ON p.id = lane.its_pool_id
LEFT JOIN outbox_poolgate gate ON gate.pool_id = p.id
LEFT JOIN counts ON counts.pool_id = p.id
WHERE lane.has_groups OR lane.has_immediates OR lane.id = ANY(%(targets)s::bigint[])
"""
POOLS_OF = """
SELECT DISTINCT COALESCE(e.pool_id, t.pool_id)
FROM outbox_target t LEFT JOIN outbox_endpoint e ON e.id = t.endpoint_id WHERE t.id = ANY(%(targets)s::bigint[])
"""
GROUP_LINE = """
SELECT g.id, g.wake_at
FROM unnest(%(targets)s::bigint[], %(rooms)s::bigint[]) AS lane(target_id, room)
CROSS JOIN LATERAL (
    SELECT l.id, l.wake_at FROM outbox_messagegroup l
    WHERE l.target_id = lane.target_id AND l.wake_at <= %(now)s
    ORDER BY l.wake_at LIMIT lane.room FOR UPDATE SKIP LOCKED
) g
ORDER BY g.wake_at, g.id
"""
IMMEDIATE_LINE = """
SELECT i.id, i.due_at, lane.target_id
FROM unnest(%(targets)s::bigint[], %(rooms)s::bigint[]) AS lane(target_id, room)
CROSS JOIN LATERAL (
    SELECT m.id, m.due_at FROM outbox_message m
    WHERE m.target_id = lane.target_id AND m.status = 'PENDING' AND m.mode = 'IMMEDIATE' AND m.due_at <= %(now)s
      AND (m.expires_at IS NULL OR m.expires_at > %(now)s)
    ORDER BY m.due_at, m.id LIMIT lane.room FOR UPDATE SKIP LOCKED
) i
ORDER BY i.due_at, i.id
"""
NEXT_WAKE = """
SELECT least(
    (SELECT min(wake_at) FROM outbox_messagegroup WHERE wake_at > %(now)s),
    (SELECT min(due_at) FROM outbox_message
     WHERE status = 'PENDING' AND mode = 'IMMEDIATE' AND due_at > %(now)s))
"""
# PENDING → QUEUED, the compare-and-set that everything hangs on; the unique index has the last word.
CLAIM = f"""
WITH claimed AS (
    UPDATE outbox_message m
    SET status = 'QUEUED', in_flight = true, epoch = m.epoch + 1, queued_at = %(now)s, started_at = NULL,
        lease_until = NULL, pool_id = v.pool_id, waiting_for = ''
    FROM unnest(%(ids)s::bigint[], %(pools)s::bigint[]) AS v(id, pool_id)
    WHERE m.id = v.id AND m.status = 'PENDING' AND NOT m.in_flight
    RETURNING m.id, m.epoch, m.mode, m.pool_id, m.group_id, m.organization_id
), told AS (
    {EVENTS}
    SELECT organization_id, 'message.queued', 'message', id, 'system', NULL, 'Dispatch',
           jsonb_build_object('epoch', epoch), %(now)s FROM claimed
)
SELECT c.id, c.epoch, c.mode, c.group_id, p.code, g.key
FROM claimed c JOIN capacity_dispatchpool p ON p.id = c.pool_id JOIN outbox_messagegroup g ON g.id = c.group_id
"""

# --- Calls ---------------------------------------------------------------------------

START_READ = """
SELECT m.id, m.epoch, m.status, m.organization_id, m.group_id, m.mode, m.type, m.sequence, g.name,
       m.url, m.payload, m.attempts, m.calls, m.expires_at, m.endpoint_id, e.xmin::text,
       COALESCE(e.is_paused OR e.disabled_at IS NOT NULL, false),
       m.target_id, t.failures, t.openings, t.open_until, t.probe_until, t.failing_since,
       COALESCE(e.pool_id, t.pool_id)
FROM outbox_message m
JOIN outbox_messagegroup g ON g.id = m.group_id
JOIN outbox_target t ON t.id = m.target_id
LEFT JOIN outbox_endpoint e ON e.id = m.endpoint_id
WHERE m.id = ANY(%(ids)s::bigint[])
"""
PROBE = f"""
UPDATE outbox_target SET probe_until = {DB_NOW} + make_interval(secs => %(lease)s)
WHERE id = %(id)s AND open_until <= %(now)s AND (probe_until IS NULL OR probe_until <= {DB_NOW})
RETURNING id
"""
ADD_GATES = """
INSERT INTO outbox_poolgate (pool_id, full_at) SELECT unnest(%(ids)s::bigint[]), %(now)s ON CONFLICT DO NOTHING
"""
LOCK_GATES = f"""
SELECT gate.pool_id, gate.full_at, p.concurrency, p.rate_per_minute, p.is_paused, {DB_NOW}
FROM outbox_poolgate gate JOIN capacity_dispatchpool p ON p.id = gate.pool_id
WHERE gate.pool_id = ANY(%(ids)s::bigint[]) ORDER BY gate.pool_id FOR UPDATE OF gate
"""
SLOTS_IN_USE = """
SELECT pool_id, pool_slot FROM outbox_message WHERE pool_slot IS NOT NULL AND pool_id = ANY(%(ids)s::bigint[])
"""
SAVE_GATES = """
UPDATE outbox_poolgate gate SET full_at = v.full_at
FROM unnest(%(ids)s::bigint[], %(fulls)s::timestamptz[]) AS v(id, full_at) WHERE gate.pool_id = v.id
"""
START = f"""
WITH started AS (
    UPDATE outbox_message m
    SET status = 'PROCESSING', started_at = %(now)s, calls = m.calls + 1,
        lease_until = {DB_NOW} + make_interval(secs => %(lease)s), pool_id = v.pool_id, pool_slot = v.slot
    FROM unnest(%(ids)s::bigint[], %(epochs)s::int[], %(pools)s::bigint[], %(slots)s::int[])
         AS v(id, epoch, pool_id, slot)
    WHERE m.id = v.id AND m.epoch = v.epoch AND m.status = 'QUEUED'
    RETURNING m.id, m.calls, m.epoch, m.organization_id, m.queued_at
), told AS (
    {EVENTS}
    SELECT organization_id, 'message.processing', 'message', id, 'system', NULL, 'Dispatch',
           jsonb_build_object('epoch', epoch, 'call', calls), %(now)s FROM started
)
SELECT id, calls, queued_at FROM started
"""
RENEW = f"""
UPDATE outbox_message m SET lease_until = {DB_NOW} + make_interval(secs => %(lease)s)
FROM unnest(%(ids)s::bigint[], %(epochs)s::int[]) AS v(id, epoch)
WHERE m.id = v.id AND m.epoch = v.epoch AND m.in_flight AND m.status IN ('PROCESSING', 'CANCELLED')
  AND m.lease_until > {DB_NOW}
RETURNING m.id
"""
# The one way out of flight: of a call that ended, of one whose lease lapsed, of a pointer that was put back. One
# that was cancelled meanwhile keeps its status. `verb` names the event.
END = f"""
WITH ended AS (
    UPDATE outbox_message m
    SET status = CASE WHEN m.status = 'CANCELLED' THEN m.status ELSE v.status END,
        in_flight = false, pool_slot = NULL, lease_until = NULL,
        due_at = CASE WHEN v.status = 'PENDING' THEN v.due_at ELSE m.due_at END,
        attempts = m.attempts + v.spent, lapses = m.lapses + v.lapsed,
        ended_at = CASE WHEN m.status = 'CANCELLED' THEN m.ended_at WHEN v.status <> 'PENDING' THEN %(now)s END,
        last_error = v.error, waiting_for = v.waiting_for
    FROM unnest(%(ids)s::bigint[], %(epochs)s::int[], %(statuses)s::text[], %(dues)s::timestamptz[],
                %(spents)s::int[], %(lapses)s::int[], %(errors)s::text[], %(waits)s::text[], %(verbs)s::text[])
         AS v(id, epoch, status, due_at, spent, lapsed, error, waiting_for, verb)
    WHERE m.id = v.id AND m.epoch = v.epoch AND m.in_flight AND m.status = ANY(%(from)s::text[])
    RETURNING m.id, m.status, m.epoch, m.organization_id, m.target_id, m.endpoint_id, m.attempts,
              v.verb, v.error, v.waiting_for
), told AS (
    {EVENTS}
    SELECT organization_id, 'message.' || verb, 'message', id, 'system', NULL, 'Dispatch',
           jsonb_strip_nulls(jsonb_build_object('epoch', epoch, 'status', status, 'attempts', attempts,
               'endpoint_id', endpoint_id, 'error', NULLIF(error, ''), 'waiting_for', NULLIF(waiting_for, ''))),
           %(now)s
    FROM ended WHERE status <> 'CANCELLED'
)
SELECT id, status FROM ended
"""
# What came of calls. One that END did not take out of flight came too late: recorded, and nothing else.
ADD_ATTEMPTS = """
INSERT INTO outbox_attempt (organization_id, message_id, number, epoch, url, started_at, ended_at, elapsed_s,
                            outcome, status_code, answer, error_class, error, is_spent, is_late)
SELECT * FROM unnest(%(organizations)s::bigint[], %(ids)s::bigint[], %(numbers)s::int[], %(epochs)s::int[],
                     %(urls)s::text[], %(starts)s::timestamptz[], %(ends)s::timestamptz[], %(elapsed)s::float8[],
                     %(outcomes)s::text[], %(codes)s::int[], %(answers)s::text[], %(classes)s::text[],
                     %(errors)s::text[], %(spents)s::bool[], %(lates)s::bool[])
"""

# --- Recovery ---------------------------------------------------------------------------

STALE = """
SELECT id, epoch, group_id, mode FROM outbox_message
WHERE status = 'QUEUED' AND queued_at <= %(before)s ORDER BY queued_at LIMIT %(limit)s
"""
LAPSED = f"""
SELECT id, group_id, mode FROM outbox_message
WHERE in_flight AND lease_until IS NOT NULL AND lease_until <= {DB_NOW} ORDER BY lease_until LIMIT %(limit)s
"""
LOCK_LAPSED = f"""
SELECT id, epoch, status, calls, lapses, organization_id, started_at FROM outbox_message
WHERE id = ANY(%(ids)s::bigint[]) AND in_flight AND lease_until <= {DB_NOW} ORDER BY id FOR UPDATE
"""
EXPIRED = """
SELECT id, group_id, mode FROM outbox_message
WHERE status = 'PENDING' AND expires_at IS NOT NULL AND expires_at <= %(now)s ORDER BY expires_at LIMIT %(limit)s
"""
EXPIRE = f"""
WITH ended AS (
    UPDATE outbox_message SET status = 'EXPIRED', ended_at = %(now)s
    WHERE id = ANY(%(ids)s::bigint[]) AND status = 'PENDING' AND expires_at <= %(now)s
    RETURNING id, organization_id
), told AS (
    {EVENTS}
    SELECT organization_id, 'message.expired', 'message', id, 'system', NULL, 'Dispatch', '{{}}'::jsonb, %(now)s
    FROM ended
)
SELECT id FROM ended
"""
# Groups that should be in a line and are not: there should be none (a bug's, or an edit by hand); looked for
# among those that have something waiting.
FORGOTTEN = """
SELECT DISTINCT m.group_id FROM outbox_message m JOIN outbox_messagegroup g ON g.id = m.group_id
WHERE m.status = 'PENDING' AND m.mode <> 'IMMEDIATE'
  AND g.wake_at IS NULL AND g.blocked_by IS NULL
  AND NOT EXISTS (SELECT FROM outbox_message f
                  WHERE f.group_id = g.id AND f.in_flight AND f.mode <> 'IMMEDIATE')
LIMIT %(limit)s
"""
QUEUED_NOW = """
SELECT m.id, m.epoch, m.mode, m.group_id, p.code, g.key, m.queued_at
FROM outbox_message m JOIN capacity_dispatchpool p ON p.id = m.pool_id
JOIN outbox_messagegroup g ON g.id = m.group_id
WHERE m.status = 'QUEUED' AND m.id > %(after)s ORDER BY m.id LIMIT %(limit)s
"""

# --- Health of targets ---------------------------------------------------------------------------

LOCK_TARGETS = """
SELECT id, failures, openings, open_until, probe_until, failing_since, organization_id, endpoint_id, last_error
FROM outbox_target WHERE id = ANY(%(ids)s::bigint[]) ORDER BY id FOR UPDATE
"""
SAVE_TARGETS = """
UPDATE outbox_target t
SET failures = v.failures, openings = v.openings, open_until = v.open_until, probe_until = v.probe_until,
    failing_since = v.failing_since, last_error = v.last_error
FROM unnest(%(ids)s::bigint[], %(failures)s::int[], %(openings)s::int[], %(opens)s::timestamptz[],
            %(probes)s::timestamptz[], %(sinces)s::timestamptz[], %(errors)s::text[])
     AS v(id, failures, openings, open_until, probe_until, failing_since, last_error)
WHERE t.id = v.id
"""

# --- Intake ---------------------------------------------------------------------------

NEW_IDS = """
SELECT nextval(pg_get_serial_sequence('outbox_message', 'id')) FROM generate_series(1, %(count)s::int)
"""
ADD_MESSAGES = f"""
WITH added AS (
    INSERT INTO outbox_message
        (id, organization_id, endpoint_id, target_id, url, type, payload, group_id, sequence, mode, status,
         scheduled_for, expires_at, idempotency_key, event_id, created_at, due_at, epoch, attempts, calls, lapses,
         in_flight, last_error, waiting_for, resolution)
    SELECT v.id, v.organization_id, v.endpoint_id, v.target_id, v.url, v.type, v.payload, v.group_id, v.sequence,
           v.mode, 'PENDING', v.scheduled_for, v.expires_at, v.idempotency_key, v.event_id, %(now)s,
           COALESCE(v.scheduled_for, %(now)s), 0, 0, 0, 0, false, '', '', ''
    FROM unnest(%(ids)s::bigint[], %(organizations)s::bigint[], %(endpoints)s::bigint[], %(targets)s::bigint[],
                %(urls)s::text[], %(types)s::text[], %(payloads)s::text[], %(groups)s::bigint[],
                %(sequences)s::int[], %(modes)s::text[], %(schedules)s::timestamptz[], %(expiries)s::timestamptz[],
                %(keys)s::text[], %(events)s::bigint[])
         AS v(id, organization_id, endpoint_id, target_id, url, type, payload, group_id, sequence, mode,
              scheduled_for, expires_at, idempotency_key, event_id)
    ON CONFLICT DO NOTHING
    RETURNING id, organization_id, type, endpoint_id
), told AS (
    {EVENTS}
    SELECT organization_id, 'message.created', 'message', id, %(actor_type)s, %(actor_id)s::bigint,
    %(actor_label)s,
           jsonb_strip_nulls(jsonb_build_object('type', type, 'endpoint_id', endpoint_id)), %(now)s
    FROM added
)
SELECT id FROM added
"""

# --- By hand ---------------------------------------------------------------------------

LOCK_MESSAGES = """
SELECT id, status FROM outbox_message WHERE id = ANY(%(ids)s::bigint[]) ORDER BY id FOR UPDATE
"""
BY_HAND = f"""
WITH changed AS (
    UPDATE outbox_message
    SET status = %(status)s, resolution = %(resolution)s,
        attempts = CASE WHEN %(fresh)s THEN 0 ELSE attempts END, lapses = CASE WHEN %(fresh)s THEN 0 ELSE lapses
        END,
        due_at = CASE WHEN %(fresh)s THEN %(now)s ELSE due_at END,
        ended_at = CASE WHEN %(fresh)s THEN NULL ELSE %(now)s END,
        -- A call that is on its way keeps its group, its slot and its lease; one that has not begun never will.
        in_flight = (in_flight AND status = 'PROCESSING'), waiting_for = ''
    WHERE id = ANY(%(ids)s::bigint[]) AND status = ANY(%(from)s::text[])
    RETURNING id, organization_id, endpoint_id
), told AS (
    {EVENTS}
    SELECT organization_id, %(kind)s, 'message', id, %(actor_type)s, %(actor_id)s::bigint, %(actor_label)s,
           jsonb_strip_nulls(jsonb_build_object('status', %(status)s::text, 'note', NULLIF(%(note)s, ''),
                                                'endpoint_id', endpoint_id)), %(now)s
    FROM changed
)
SELECT id FROM changed
"""

# --- Figures ---------------------------------------------------------------------------

OPEN_BY_STATUS = """
SELECT status, count(*) FROM outbox_message
WHERE status IN ('PENDING', 'ERROR') AND mode <> 'IMMEDIATE' GROUP BY status
UNION ALL
SELECT status || ' without order', count(*) FROM outbox_message
WHERE status = 'PENDING' AND mode = 'IMMEDIATE' GROUP BY status
UNION ALL
SELECT status, count(*) FROM outbox_message WHERE in_flight GROUP BY status
"""
