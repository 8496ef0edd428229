"""Start and finish attempts, and update the health of targets."""

from __future__ import annotations

from dispatch.core.db.prepared import DB_NOW, EVENTS
from dispatch.outbox.rules.endpoint_failures import MAX_GAP

# Since when the receiver has deferred the message. A series ends if no attempt starts within MAX_GAP after the
# message was due, such as while its endpoint is paused.
_DEFERRED_SINCE = f"""CASE WHEN COALESCE(m.started_at, %(now)s) - m.due_at
                               <= make_interval(secs => {MAX_GAP.total_seconds():.0f}) THEN m.deferred_since END"""
# What an attempt is made of.
_ATTEMPT = f"""m.id, m.epoch, m.status, m.organization_id, m.group_id, m.mode, m.type, m.sequence, g.name,
       m.url, m.payload, m.attempts, m.calls, m.expires_at, m.endpoint_id, e.xmin::text,
       COALESCE(e.is_paused OR e.disabled_at IS NOT NULL, false),
       m.target_id, t.failures, t.openings, t.open_until, t.probe_until, t.failing_since,
       COALESCE(e.pool_id, t.pool_id), {_DEFERRED_SINCE}, m.webhook_id, m.replays"""
_ITS_ROWS = """JOIN outbox_messagegroup g ON g.id = m.group_id
JOIN outbox_target t ON t.id = m.target_id
LEFT JOIN outbox_endpoint e ON e.id = m.endpoint_id"""
START_READ = f"""
SELECT {_ATTEMPT}
FROM outbox_message m
{_ITS_ROWS}
WHERE m.id = ANY(%(ids)s::bigint[])
"""
# CLAIM, and for the messages that have a slot, START as well: one row version instead of two. An earlier statement
# of this transaction freed the slots, so nobody else can have them.
CLAIM_AND_START = f"""
WITH free AS (
    SELECT c.id, given.pool_id, given.slot
    FROM unnest(%(ids)s::bigint[], %(pools)s::bigint[], %(slots)s::int[]) AS given(id, pool_id, slot)
    JOIN outbox_message c ON c.id = given.id
    WHERE c.status = 'PENDING' AND NOT c.in_flight
    FOR NO KEY UPDATE OF c SKIP LOCKED
), claimed AS (
    UPDATE outbox_message m
    SET status = CASE WHEN v.slot IS NULL THEN 'QUEUED' ELSE 'PROCESSING' END,
        in_flight = true, epoch = m.epoch + 1, queued_at = %(now)s, waiting_for = '',
        pool_id = v.pool_id, pool_slot = v.slot, calls = m.calls + num_nonnulls(v.slot),
        started_at = CASE WHEN v.slot IS NOT NULL THEN %(now)s::timestamptz END,
        lease_until = CASE WHEN v.slot IS NOT NULL THEN {DB_NOW} + make_interval(secs => %(lease)s) END
    FROM free v
    WHERE m.id = v.id AND m.status = 'PENDING' AND NOT m.in_flight
    RETURNING m.*
), appended AS (
    {EVENTS}
    SELECT m.organization_id, CASE WHEN m.pool_slot IS NULL THEN 'message.queued' ELSE 'message.processing' END,
           'message', m.id, 'system', NULL, 'Dispatch',
           CASE WHEN m.pool_slot IS NULL THEN jsonb_build_object('epoch', m.epoch)
                ELSE jsonb_build_object('epoch', m.epoch, 'call', m.calls) END,
           %(now)s
    FROM claimed m
)
SELECT {_ATTEMPT}, p.code, g.key, m.pool_slot
FROM claimed m
JOIN capacity_dispatchpool p ON p.id = m.pool_id
{_ITS_ROWS}
"""
PROBE = f"""
UPDATE outbox_target SET probe_until = {DB_NOW} + make_interval(secs => %(lease)s)
WHERE id = %(id)s AND open_until <= %(now)s AND (probe_until IS NULL OR probe_until <= {DB_NOW})
RETURNING id
"""
# Undo a probe that was not made because there was no slot for it.
UNPROBE = """
UPDATE outbox_target SET probe_until = NULL WHERE id = ANY(%(ids)s::bigint[])
"""
ADD_GATES = """
INSERT INTO outbox_poolgate (pool_id, full_at) SELECT unnest(%(ids)s::bigint[]), %(now)s ON CONFLICT DO NOTHING
"""
LOCK_GATES = f"""
SELECT gate.pool_id, gate.full_at, p.concurrency, p.rate_per_minute, p.is_paused, {DB_NOW}
FROM outbox_poolgate gate JOIN capacity_dispatchpool p ON p.id = gate.pool_id
WHERE gate.pool_id = ANY(%(ids)s::bigint[]) ORDER BY gate.pool_id FOR UPDATE OF gate
"""
# Slots are held by messages, and by requests that belong to no message.
SLOTS_IN_USE = f"""
SELECT pool_id, pool_slot FROM outbox_message WHERE pool_slot IS NOT NULL AND pool_id = ANY(%(ids)s::bigint[])
UNION ALL
SELECT pool_id, slot FROM outbox_directrequest WHERE pool_id = ANY(%(ids)s::bigint[]) AND lease_until > {DB_NOW}
"""
SAVE_GATES = """
UPDATE outbox_poolgate gate SET full_at = v.full_at
FROM unnest(%(ids)s::bigint[], %(fulls)s::timestamptz[]) AS v(id, full_at) WHERE gate.pool_id = v.id
"""
# The old status is a parameter, so that the planner uses the primary key and not the index of all QUEUED.
START = f"""
WITH started AS (
    UPDATE outbox_message m
    SET status = 'PROCESSING', started_at = %(now)s, calls = m.calls + 1,
        lease_until = {DB_NOW} + make_interval(secs => %(lease)s), pool_id = v.pool_id, pool_slot = v.slot
    FROM unnest(%(ids)s::bigint[], %(epochs)s::int[], %(pools)s::bigint[], %(slots)s::int[])
         AS v(id, epoch, pool_id, slot)
    WHERE m.id = v.id AND m.epoch = v.epoch AND m.status = %(from)s::text
    RETURNING m.id, m.calls, m.epoch, m.organization_id, m.queued_at
), appended AS (
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
RETURNING m.id, m.epoch
"""
# The only statement that ends a flight: by an ended attempt, a lapsed lease or a requeued pointer. A message
# canceled in the meantime keeps its status. `verb` names the event.
END = f"""
WITH ended AS (
    UPDATE outbox_message m
    SET status = CASE WHEN m.status = 'CANCELLED' THEN m.status ELSE v.status END,
        in_flight = false, pool_slot = NULL, lease_until = NULL,
        due_at = CASE WHEN v.status = 'PENDING' THEN v.due_at ELSE m.due_at END,
        attempts = m.attempts + v.spent,
        -- In a row: an attempt that ended with a result begins the count again.
        lapses = CASE WHEN v.lapsed > 0 THEN m.lapses + v.lapsed WHEN m.status = 'QUEUED' THEN m.lapses ELSE 0 END,
        ended_at = CASE WHEN m.status = 'CANCELLED' THEN m.ended_at WHEN v.status <> 'PENDING' THEN %(now)s END,
        last_error = v.error, waiting_for = v.waiting_for,
        deferred_since = COALESCE({_DEFERRED_SINCE}, CASE WHEN v.is_deferral THEN %(now)s END)
    FROM unnest(%(ids)s::bigint[], %(epochs)s::int[], %(statuses)s::text[], %(dues)s::timestamptz[],
                %(spents)s::int[], %(lapses)s::int[], %(errors)s::text[], %(waits)s::text[], %(verbs)s::text[],
                %(deferrals)s::bool[])
         AS v(id, epoch, status, due_at, spent, lapsed, error, waiting_for, verb, is_deferral)
    WHERE m.id = v.id AND m.epoch = v.epoch AND m.in_flight AND m.status = ANY(%(from)s::text[])
    RETURNING m.id, m.status, m.epoch, m.organization_id, m.target_id, m.endpoint_id, m.attempts, m.group_id,
              m.mode, m.type, v.verb, v.error, v.waiting_for
), blocked AS (
    -- The first BLOCK error of its group; this snapshot does not contain it yet.
    {EVENTS}
    SELECT b.organization_id, 'group.blocked', 'group', b.group_id, 'system', NULL, 'Dispatch',
           jsonb_strip_nulls(jsonb_build_object('message_id', b.id, 'type', b.type, 'endpoint_id', b.endpoint_id,
               'error', NULLIF(b.error, ''))), %(now)s
    FROM ended b
    WHERE b.status = 'ERROR' AND b.mode = 'BLOCK_ON_ERROR'
      AND NOT EXISTS (SELECT FROM outbox_message o
                      WHERE o.group_id = b.group_id AND o.status IN ('PENDING', 'ERROR')
                        AND o.status = %(error)s::text AND o.mode = 'BLOCK_ON_ERROR')
), appended AS (
    {EVENTS}
    SELECT organization_id, 'message.' || verb, 'message', id, 'system', NULL, 'Dispatch',
           jsonb_strip_nulls(jsonb_build_object('epoch', epoch, 'status', status, 'attempts', attempts,
               'endpoint_id', endpoint_id, 'error', NULLIF(error, ''), 'waiting_for', NULLIF(waiting_for, ''),
               'type', CASE WHEN status = 'ERROR' THEN type END,
               'mode', CASE WHEN status = 'ERROR' THEN mode END)),
           %(now)s
    FROM ended WHERE status <> 'CANCELLED'
)
SELECT id, status FROM ended
"""
# Record results of attempts, and return how many are late: END did not end the flight of their message. A late one
# that is recorded already is not recorded again: the reply to its commit was lost.
ADD_ATTEMPTS = """
WITH added AS (
    INSERT INTO outbox_attempt (organization_id, message_id, number, epoch, url, started_at, ended_at, elapsed_s,
                                outcome, status_code, answer, error_class, error, is_spent, is_late)
    SELECT v.*
    FROM unnest(%(organizations)s::bigint[], %(ids)s::bigint[], %(numbers)s::int[], %(epochs)s::int[],
                %(urls)s::text[], %(starts)s::timestamptz[], %(ends)s::timestamptz[], %(elapsed)s::float8[],
                %(outcomes)s::text[], %(codes)s::int[], %(answers)s::text[], %(classes)s::text[],
                %(errors)s::text[], %(spents)s::bool[], %(lates)s::bool[])
         AS v(organization_id, message_id, number, epoch, url, started_at, ended_at, elapsed_s, outcome,
              status_code, answer, error_class, error, is_spent, is_late)
    WHERE NOT v.is_late OR NOT EXISTS (
        SELECT FROM outbox_attempt a
        WHERE a.message_id = v.message_id AND a.epoch = v.epoch AND a.started_at = v.started_at
          AND a.outcome <> 'lapsed'
    )
    RETURNING is_late
)
SELECT count(*) FILTER (WHERE is_late) FROM added
"""
# Before late results: whether the responses of the messages may be stored. An erasure waits for them, or has
# locked or erased the message already. Results in time need no such lock, since a message in flight is not erased.
# A message that another transaction has locked is left out, so that it delays no results of others.
LOCK_LATE = """
SELECT id, erased_at IS NULL FROM outbox_message
WHERE id = ANY(%(ids)s::bigint[]) ORDER BY id FOR NO KEY UPDATE SKIP LOCKED
"""
# For the last try to record a late result: the messages to which an attempt can be added without waiting.
LOCK_LATE_KEYS = """
SELECT id FROM outbox_message WHERE id = ANY(%(ids)s::bigint[]) ORDER BY id FOR KEY SHARE SKIP LOCKED
"""

# --- Health of targets ---------------------------------------------------------------------------

LOCK_TARGETS = """
SELECT id, failures, openings, open_until, probe_until, failing_since, organization_id, endpoint_id, last_error,
       failed_attempts, failed_messages, failed_message_id, first_failed_at, last_failed_at,
       deferring_since, last_deferred_at, is_deferral_reported
FROM outbox_target WHERE id = ANY(%(ids)s::bigint[]) ORDER BY id FOR UPDATE
"""
SAVE_TARGETS = """
UPDATE outbox_target t
SET failures = v.failures, openings = v.openings, open_until = v.open_until, probe_until = v.probe_until,
    failing_since = v.failing_since, last_error = v.last_error, failed_attempts = v.failed_attempts,
    failed_messages = v.failed_messages, failed_message_id = v.failed_message_id,
    first_failed_at = v.first_failed_at, last_failed_at = v.last_failed_at,
    deferring_since = v.deferring_since, last_deferred_at = v.last_deferred_at,
    is_deferral_reported = v.is_deferral_reported
FROM unnest(%(ids)s::bigint[], %(failures)s::int[], %(openings)s::int[], %(opens)s::timestamptz[],
            %(probes)s::timestamptz[], %(sinces)s::timestamptz[], %(errors)s::text[], %(attempts)s::int[],
            %(messages)s::int[], %(message_ids)s::bigint[], %(firsts)s::timestamptz[], %(lasts)s::timestamptz[],
            %(deferrings)s::timestamptz[], %(deferreds)s::timestamptz[], %(reports)s::bool[])
     AS v(id, failures, openings, open_until, probe_until, failing_since, last_error, failed_attempts,
          failed_messages, failed_message_id, first_failed_at, last_failed_at,
          deferring_since, last_deferred_at, is_deferral_reported)
WHERE t.id = v.id
"""
# Clear targets that delivered after their failures or deferrals began. An open circuit stays open until its probe.
# A target whose deferrals were reported may have none since: its health was reset.
CLEAR_FAILURES = f"""
WITH mine AS (
    SELECT f.id, f.is_deferral_reported AND COALESCE(f.deferring_since < v.ended_at, true) AS accepts_again
    FROM outbox_target f
    JOIN unnest(%(ids)s::bigint[], %(ends)s::timestamptz[]) AS v(id, ended_at) ON v.id = f.id
    WHERE f.id = ANY(%(ids)s::bigint[])
      AND (f.failing_since < v.ended_at OR f.deferring_since < v.ended_at
           OR f.deferring_since IS NULL AND f.is_deferral_reported)
    ORDER BY f.id FOR NO KEY UPDATE OF f SKIP LOCKED
), cleared AS (
    UPDATE outbox_target t
    SET failing_since = NULL, failures = CASE WHEN t.open_until IS NULL THEN 0 ELSE t.failures END,
        failed_attempts = 0, failed_messages = 0, failed_message_id = NULL, first_failed_at = NULL,
        last_failed_at = NULL, deferring_since = NULL, last_deferred_at = NULL, is_deferral_reported = false
    FROM mine WHERE t.id = ANY(%(ids)s::bigint[]) AND t.id = mine.id
    RETURNING t.id, t.organization_id, t.endpoint_id, mine.accepts_again
), appended AS (
    {EVENTS}
    SELECT organization_id, 'endpoint.accepting', 'endpoint', endpoint_id, 'system', NULL, 'Dispatch',
           '{{}}'::jsonb, %(now)s
    FROM cleared WHERE accepts_again AND endpoint_id IS NOT NULL
)
SELECT count(*) FROM cleared
"""
