"""Define the SQL of concurrency limits: queue due runs by key, and give free slots to those that wait.

A run holds its slot while it is in progress or running, so a change to another status frees the slot. Lock
order: schedules, runs, then limits by id. A transaction that frees slots or adds waiting runs locks the limit
before it looks for the next run, so that no free slot goes unnoticed. If another transaction keeps the limit
locked, the reconciler finds the free slot later.
"""

from __future__ import annotations

from dispatch.core.db.prepared import EVENTS
from dispatch.schedules.sql import SYSTEM

LOCK_LIMITS = """
SELECT id FROM schedules_concurrencylimit WHERE id = ANY(%(limits)s::bigint[]) ORDER BY id FOR NO KEY UPDATE
"""
# Only the limits that no other transaction has locked.
TRY_LOCK_LIMITS = LOCK_LIMITS.rstrip() + " SKIP LOCKED"
# The place in the queue is the time at which the run became due. Without a due time, no executor finds the run.
QUEUE_RUNS = """
UPDATE schedules_run r
SET status = 'retrying', waiting_for = 'concurrency', due_at = NULL, concurrency_limit_id = v.limit_id,
    concurrency_slot = NULL, waits_since = COALESCE(r.waits_since, r.due_at)
FROM unnest(%(ids)s::bigint[], %(limits)s::bigint[]) AS v(id, limit_id)
WHERE r.id = ANY(%(ids)s::bigint[]) AND r.id = v.id
"""
# Give the free slots of these limits, which are locked, to the runs that have waited longest. A lowered limit
# gives none until enough runs have ended. `entered` are the runs that were queued in this transaction.
ADMIT_RUNS = f"""
WITH used AS (
    SELECT concurrency_limit_id AS limit_id, concurrency_slot AS slot FROM schedules_run
    WHERE concurrency_limit_id = ANY(%(limits)s::bigint[]) AND status IN ('in_progress', 'running')
      AND concurrency_slot IS NOT NULL
), headroom AS (
    SELECT l.id AS limit_id, l.max_runs, l.max_runs - (SELECT count(*) FROM used u WHERE u.limit_id = l.id) AS free
    FROM schedules_concurrencylimit l WHERE l.id = ANY(%(limits)s::bigint[])
), waiting AS MATERIALIZED (
    SELECT h.limit_id, w.id, w.waits_since FROM headroom h
    CROSS JOIN LATERAL (
        SELECT r.id, r.waits_since FROM schedules_run r
        WHERE r.concurrency_limit_id = h.limit_id AND r.waiting_for = 'concurrency' AND r.status = 'retrying'
          AND r.kind = ANY(%(kinds)s::text[])
        ORDER BY r.waits_since, r.id LIMIT GREATEST(h.free, 0) FOR NO KEY UPDATE OF r SKIP LOCKED
    ) w
), placed AS (
    SELECT limit_id, id, row_number() OVER (PARTITION BY limit_id ORDER BY waits_since, id) AS place FROM waiting
), free AS (
    SELECT h.limit_id, n AS slot, row_number() OVER (PARTITION BY h.limit_id ORDER BY n) AS place
    FROM headroom h CROSS JOIN LATERAL generate_series(0, h.max_runs - 1) AS n
    WHERE h.limit_id IN (SELECT limit_id FROM waiting)
      AND NOT EXISTS (SELECT 1 FROM used u WHERE u.limit_id = h.limit_id AND u.slot = n)
), admitted AS (
    UPDATE schedules_run r
    SET status = 'in_progress', epoch = r.epoch + 1, taken_at = %(now)s, waiting_for = '',
        concurrency_slot = f.slot,
        due_at = CASE WHEN r.id = ANY(%(entered)s::bigint[]) THEN r.waits_since ELSE %(now)s::timestamptz END,
        waits_since = NULL
    FROM placed p JOIN free f ON f.limit_id = p.limit_id AND f.place = p.place
    WHERE r.id = ANY(ARRAY(SELECT id FROM waiting)) AND r.id = p.id
    RETURNING r.id, r.epoch, r.kind, r.organization_id, r.schedule_id, r.attempt
), appended AS (
    {EVENTS}
    SELECT organization_id, 'run.in_progress', 'run', id, {SYSTEM},
           jsonb_build_object('schedule_id', schedule_id, 'attempt', attempt, 'epoch', epoch), %(now)s
    FROM admitted
)
SELECT id, epoch, kind, organization_id FROM admitted ORDER BY id
"""
# The runs that were queued in this transaction and got no slot.
APPEND_WAITS = f"""
WITH appended AS (
    {EVENTS}
    SELECT r.organization_id, 'run.retrying', 'run', r.id, {SYSTEM},
           jsonb_build_object('schedule_id', r.schedule_id, 'attempt', r.attempt, 'waiting_for', r.waiting_for,
                              'concurrency_key', l.key), %(now)s
    FROM schedules_run r JOIN schedules_concurrencylimit l ON l.id = r.concurrency_limit_id
    WHERE r.id = ANY(%(ids)s::bigint[]) AND r.waiting_for = 'concurrency' AND r.status = 'retrying'
    RETURNING 1
)
SELECT count(*) FROM appended
"""
# Limits with waiting runs and free slots, in case a process died or a run was locked.
LIMITS_WITH_HEADROOM = """
SELECT l.id FROM schedules_concurrencylimit l
WHERE EXISTS (
    SELECT 1 FROM schedules_run r
    WHERE r.concurrency_limit_id = l.id AND r.waiting_for = 'concurrency' AND r.status = 'retrying'
) AND l.max_runs > (
    SELECT count(*) FROM schedules_run r
    WHERE r.concurrency_limit_id = l.id AND r.status IN ('in_progress', 'running')
      AND r.concurrency_slot IS NOT NULL
)
ORDER BY l.id LIMIT %(limit)s
"""
# One look into the index for each limit, however many runs wait.
OLDEST_WAIT = """
SELECT min(w.waits_since) FROM schedules_concurrencylimit l CROSS JOIN LATERAL (
    SELECT r.waits_since FROM schedules_run r
    WHERE r.concurrency_limit_id = l.id AND r.waiting_for = 'concurrency' AND r.status = 'retrying'
    ORDER BY r.waits_since, r.id LIMIT 1
) w
"""
# Runs of these limits that hold a slot, and those that wait for one, of which at most `most` are counted.
LIMIT_USE = """
SELECT l.id, l.key, l.max_runs,
       (SELECT count(*) FROM schedules_run r
        WHERE r.concurrency_limit_id = l.id AND r.status IN ('in_progress', 'running')
          AND r.concurrency_slot IS NOT NULL),
       (SELECT count(*) FROM (
            SELECT 1 FROM schedules_run r
            WHERE r.concurrency_limit_id = l.id AND r.waiting_for = 'concurrency' AND r.status = 'retrying'
            LIMIT %(most)s
        ) w)
FROM schedules_concurrencylimit l WHERE l.id = ANY(%(limits)s::bigint[])
"""
