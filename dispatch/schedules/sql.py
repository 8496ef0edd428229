"""The hot path of the schedules in SQL: taking what is due, a worker's start, reports and what they change.

Order of locks: schedules by id, then runs by id; an executor skips what is locked and so never waits for it.
Leases run on the database's clock, so that the workers' machines need not agree. Every statement that changes a
status tells the event log in itself."""

from __future__ import annotations

from dispatch.core.statements import DB_NOW, EVENTS

# What every statement that tells the log says last: who did it.
_SYSTEM = "'system', NULL, 'Dispatch'"

# The shard is a hash of the id, which must be known before the row is written.
NEW_IDS = """
SELECT nextval(pg_get_serial_sequence('schedules_schedule', 'id')) FROM generate_series(1, %(count)s::int)
"""

# --- Executor ---------------------------------------------------------------------------

# Per shard, so that the index gives each shard's first ones in order whatever else is stored.
DUE = """
WITH due AS MATERIALIZED (
    SELECT r.id FROM unnest(%(shards)s::smallint[]) AS s(shard)
    CROSS JOIN LATERAL (
        SELECT id, due_at FROM schedules_run
        WHERE shard = s.shard AND status IN ('scheduled', 'retrying') AND due_at IS NOT NULL AND due_at <= %(now)s
        ORDER BY due_at LIMIT %(limit)s
    ) r
    ORDER BY r.due_at LIMIT %(limit)s
)
SELECT r.id, r.organization_id, r.schedule_id, r.kind, r.shard, r.number, r.trigger_at, r.status, r.due_at,
r.epoch,
       s.name, s.time_zone, s.trigger_at, s.every, s.unit, s.anchor, s.cron, s.starts_at, s.ends_at,
       s.max_occurrences, s.missed, s.missed_after_s, s.overlap, s.paused_until,
       s.overlap = 'skip' AND EXISTS (
           SELECT 1 FROM schedules_run o
           WHERE o.schedule_id = r.schedule_id AND o.id <> r.id
             AND o.status IN ('in_progress', 'running', 'retrying')
       )
FROM schedules_run r JOIN schedules_schedule s ON s.id = r.schedule_id
WHERE r.id = ANY(ARRAY(SELECT id FROM due)) AND COALESCE(r.status, '') IN ('scheduled', 'retrying')
  AND r.due_at <= %(now)s AND s.status <> 'deleted'
ORDER BY r.due_at, r.id
FOR NO KEY UPDATE OF s, r SKIP LOCKED
"""
NEXT_DUE = """
SELECT min(r.due_at) FROM unnest(%(shards)s::smallint[]) AS s(shard)
CROSS JOIN LATERAL (
    SELECT due_at FROM schedules_run
    WHERE shard = s.shard AND status IN ('scheduled', 'retrying') AND due_at IS NOT NULL
    ORDER BY due_at LIMIT 1
) r
"""
TAKE = f"""
WITH taken AS (
    UPDATE schedules_run SET status = 'in_progress', epoch = epoch + 1, taken_at = %(now)s, waiting_for = ''
    WHERE id = ANY(%(ids)s::bigint[])
    RETURNING id, organization_id, schedule_id, attempt
), told AS (
    {EVENTS}
    SELECT organization_id, 'run.in_progress', 'run', id, {_SYSTEM},
           jsonb_build_object('schedule_id', schedule_id, 'attempt', attempt), %(now)s
    FROM taken
)
SELECT count(*) FROM taken
"""
PASS_OVER = f"""
WITH passed AS (
    UPDATE schedules_run r SET status = v.status, error = v.reason, ended_at = %(now)s, waiting_for = ''
    FROM unnest(%(ids)s::bigint[], %(statuses)s::text[], %(reasons)s::text[]) AS v(id, status, reason)
    WHERE r.id = v.id
    RETURNING r.id, r.organization_id, r.schedule_id, r.status, r.error
), told AS (
    {EVENTS}
    SELECT organization_id, 'run.' || status, 'run', id, {_SYSTEM},
           jsonb_build_object('schedule_id', schedule_id, 'reason', error), %(now)s
    FROM passed
)
SELECT count(*) FROM passed
"""
LET_WAIT = """
UPDATE schedules_run SET due_at = %(until)s, waiting_for = 'earlier' WHERE id = ANY(%(ids)s::bigint[])
"""
_ADD = """
INSERT INTO schedules_run
    (organization_id, schedule_id, kind, shard, number, trigger_at, due_at, status, attempt, epoch, lapses,
     waiting_for, ended_at, error, created_at)
"""
# Occurrences that are not run get a row at once, and the run that is next.
ADD_PASSED = f"""
WITH added AS (
    {_ADD}
    SELECT v.organization_id, v.schedule_id, v.kind, v.shard, v.number, v.trigger_at, v.trigger_at, v.status, 1,
    0, 0,
           '', %(now)s, v.reason, %(now)s
    FROM unnest(%(organizations)s::bigint[], %(schedules)s::bigint[], %(kinds)s::text[], %(shards)s::smallint[],
                %(numbers)s::int[], %(triggers)s::timestamptz[], %(statuses)s::text[], %(reasons)s::text[])
         AS v(organization_id, schedule_id, kind, shard, number, trigger_at, status, reason)
    RETURNING id, organization_id, schedule_id, status, error
), told AS (
    {EVENTS}
    SELECT organization_id, 'run.' || status, 'run', id, {_SYSTEM},
           jsonb_build_object('schedule_id', schedule_id, 'reason', error), %(now)s
    FROM added
)
SELECT count(*) FROM added
"""
ADD_NEXT = f"""
{_ADD}
SELECT v.organization_id, v.schedule_id, v.kind, v.shard, v.number, v.trigger_at, v.trigger_at, 'scheduled', 1, 0,
0,
       '', NULL, '', %(now)s
FROM unnest(%(organizations)s::bigint[], %(schedules)s::bigint[], %(kinds)s::text[], %(shards)s::smallint[],
            %(numbers)s::int[], %(triggers)s::timestamptz[])
     AS v(organization_id, schedule_id, kind, shard, number, trigger_at)
"""
# Schedules whose next run is another now; without one they have ended.
MOVE_ON = f"""
WITH moved AS (
    UPDATE schedules_schedule s
    SET next_at = v.next_at, occurrences = v.number,
        status = CASE WHEN v.next_at IS NULL AND s.status = 'active' THEN 'ended' ELSE s.status END
    FROM unnest(%(ids)s::bigint[], %(numbers)s::int[], %(nexts)s::timestamptz[]) AS v(id, number, next_at)
    WHERE s.id = ANY(%(ids)s::bigint[]) AND s.id = v.id
    RETURNING s.id, s.organization_id, s.status, s.name, s.occurrences
), told AS (
    {EVENTS}
    SELECT organization_id, 'schedule.ended', 'schedule', id, {_SYSTEM},
           jsonb_build_object('name', name, 'occurrences', occurrences), %(now)s
    FROM moved WHERE status = 'ended'
)
SELECT count(*) FROM moved
"""

# Rows whose ids are known are to be found by their primary key. The planner thinks otherwise: it takes the partial
# indexes of what is open for nearly empty, which they are until very much is open at once, and reads all of them
# for each hundred. COALESCE(status, '') is a condition like any other, but none that such an index answers.

# --- Worker ---------------------------------------------------------------------------

START = f"""
WITH mine AS (
    SELECT r.id FROM schedules_run r
    JOIN unnest(%(ids)s::bigint[], %(epochs)s::int[]) AS v(id, epoch) ON v.id = r.id AND v.epoch = r.epoch
    WHERE r.id = ANY(%(ids)s::bigint[]) AND COALESCE(r.status, '') = 'in_progress'
    ORDER BY r.id FOR NO KEY UPDATE OF r
), started AS (
    UPDATE schedules_run r
    SET status = 'running', started_at = %(now)s, lease_until = {DB_NOW} + make_interval(secs => %(lease)s::float8)
    WHERE r.id = ANY(ARRAY(SELECT id FROM mine))
    RETURNING r.id, r.epoch, r.attempt, r.organization_id, r.schedule_id, r.trigger_at, r.number, r.due_at
), told AS (
    {EVENTS}
    SELECT organization_id, 'run.running', 'run', id, {_SYSTEM},
           jsonb_build_object('schedule_id', schedule_id, 'attempt', attempt), %(now)s
    FROM started
)
SELECT r.id, r.epoch, r.attempt, r.organization_id, r.schedule_id, r.trigger_at, r.number, r.due_at,
       s.name, s.payload, s.headers
FROM started r
CROSS JOIN LATERAL (SELECT name, payload, headers FROM schedules_schedule WHERE id = r.schedule_id OFFSET 0) s
ORDER BY r.id
"""
KEEP = f"""
UPDATE schedules_run r SET lease_until = {DB_NOW} + make_interval(secs => %(lease)s::float8)
FROM unnest(%(ids)s::bigint[], %(epochs)s::int[]) AS v(id, epoch)
WHERE r.id = v.id AND r.epoch = v.epoch AND COALESCE(r.status, '') = 'running'
RETURNING r.id
"""
# Not begun after all: another message carries them.
GIVE_BACK = f"""
WITH given AS (
    UPDATE schedules_run r
    SET status = 'in_progress', epoch = r.epoch + 1, taken_at = %(now)s, lease_until = NULL, started_at = NULL
    FROM unnest(%(ids)s::bigint[], %(epochs)s::int[]) AS v(id, epoch)
    WHERE r.id = v.id AND r.epoch = v.epoch AND COALESCE(r.status, '') = 'running'
    RETURNING r.id, r.epoch, r.kind, r.organization_id, r.schedule_id, r.attempt
), told AS (
    {EVENTS}
    SELECT organization_id, 'run.in_progress', 'run', id, {_SYSTEM},
           jsonb_build_object('schedule_id', schedule_id, 'attempt', attempt, 'reason', %(reason)s::text), %(now)s
    FROM given
)
SELECT id, epoch, kind FROM given ORDER BY id
"""
ADD_REPORTS = """
INSERT INTO schedules_runreport
    (organization_id, run_id, epoch, attempt, outcome, result, error, again_in_s, started_at, ended_at)
SELECT r.organization_id, v.run_id, v.epoch, r.attempt, v.outcome, v.result::jsonb, v.error, v.again_in_s,
       r.started_at, %(now)s
FROM unnest(%(ids)s::bigint[], %(epochs)s::int[], %(outcomes)s::text[], %(results)s::text[], %(errors)s::text[],
            %(agains)s::float8[])
     AS v(run_id, epoch, outcome, result, error, again_in_s)
JOIN schedules_run r ON r.id = v.run_id AND r.epoch = v.epoch
ON CONFLICT (run_id, epoch) DO NOTHING
"""

# --- Status worker ---------------------------------------------------------------------------

# The schedules whose count of failures these reports may change; their locks come before the runs'.
LOCK_SCHEDULES_OF_REPORTS = """
SELECT s.id, s.failures FROM schedules_schedule s
WHERE s.id = ANY(ARRAY(
    SELECT r.schedule_id FROM schedules_run r
    JOIN schedules_runreport p ON p.run_id = r.id AND p.epoch = r.epoch
    JOIN schedules_schedule f ON f.id = r.schedule_id
    WHERE r.id = ANY(%(ids)s::bigint[]) AND p.run_id = ANY(%(ids)s::bigint[])
      AND COALESCE(r.status, '') = 'running' AND (p.outcome <> 'succeeded' OR f.failures > 0)
))
ORDER BY s.id FOR NO KEY UPDATE
"""
# Only the report of the present epoch, and only while nobody has applied it.
REPORTED = """
SELECT r.id, r.epoch, r.attempt, r.organization_id, r.schedule_id, r.kind, p.outcome, p.error, p.again_in_s,
       s.retry_schedule_s, s.status, s.overlap, s.name, r.trigger_at
FROM schedules_run r
JOIN schedules_runreport p ON p.run_id = r.id AND p.epoch = r.epoch
JOIN schedules_schedule s ON s.id = r.schedule_id
WHERE r.id = ANY(%(ids)s::bigint[]) AND p.run_id = ANY(%(ids)s::bigint[]) AND COALESCE(r.status, '') = 'running'
ORDER BY r.id FOR NO KEY UPDATE OF r
"""
APPLY = f"""
WITH applied AS (
    UPDATE schedules_run r
    SET status = v.status, lease_until = NULL, lapses = 0, result = p.result, error = p.error,
        due_at = CASE WHEN v.status = 'retrying' THEN v.due_at ELSE r.due_at END,
        attempt = CASE WHEN v.status = 'retrying' THEN r.attempt + 1 ELSE r.attempt END,
        ended_at = CASE WHEN v.status = 'retrying' THEN NULL ELSE %(now)s END
    FROM unnest(%(ids)s::bigint[], %(statuses)s::text[], %(dues)s::timestamptz[]) AS v(id, status, due_at),
         schedules_runreport p
    WHERE r.id = ANY(%(ids)s::bigint[]) AND r.id = v.id AND p.run_id = r.id AND p.epoch = r.epoch
      AND p.run_id = ANY(%(ids)s::bigint[])
      AND COALESCE(r.status, '') = 'running'
    RETURNING r.id, r.organization_id, r.schedule_id, r.status, r.error, p.attempt, r.due_at, p.result
), told AS (
    {EVENTS}
    SELECT organization_id, 'run.' || status, 'run', id, {_SYSTEM},
           jsonb_strip_nulls(jsonb_build_object(
               'schedule_id', schedule_id, 'attempt', attempt, 'error', NULLIF(error, ''), 'result', result,
               'again_at', CASE WHEN status = 'retrying' THEN due_at END)), %(now)s
    FROM applied
)
SELECT count(*) FROM applied
"""
WAKE_WAITING = """
UPDATE schedules_run SET due_at = %(now)s, waiting_for = ''
WHERE schedule_id = ANY(%(schedules)s::bigint[]) AND waiting_for = 'earlier' AND status = 'scheduled'
RETURNING id
"""
COUNT_FAILURES = """
UPDATE schedules_schedule s SET failures = v.failures
FROM unnest(%(ids)s::bigint[], %(failures)s::int[]) AS v(id, failures)
WHERE s.id = v.id AND s.id = ANY(%(ids)s::bigint[])
"""

# --- Reconciler ---------------------------------------------------------------------------

# Of these kinds, sent before these moments: nobody took them, and their message is in no queue.
LOST = """
SELECT r.id, r.epoch, r.kind FROM schedules_run r
JOIN unnest(%(kinds)s::text[], %(befores)s::timestamptz[]) AS v(kind, before) ON v.kind = r.kind
WHERE r.status = 'in_progress' AND r.taken_at < v.before
ORDER BY r.taken_at LIMIT %(limit)s
"""
SENT_AGAIN = """
UPDATE schedules_run SET taken_at = %(now)s WHERE id = ANY(%(ids)s::bigint[]) AND status = 'in_progress'
"""
UNAPPLIED = """
SELECT r.id FROM schedules_run r JOIN schedules_runreport p ON p.run_id = r.id AND p.epoch = r.epoch
WHERE r.status = 'running' AND p.ended_at < %(before)s ORDER BY r.id LIMIT %(limit)s
"""
LAPSED = f"""
SELECT r.id, r.epoch, r.kind, r.organization_id, r.lapses, r.attempt FROM schedules_run r
WHERE r.status = 'running' AND r.lease_until < {DB_NOW}
  AND NOT EXISTS (SELECT 1 FROM schedules_runreport p WHERE p.run_id = r.id AND p.epoch = r.epoch)
ORDER BY r.lease_until LIMIT %(limit)s
"""
# Its worker died: once more in the same attempt.
ONCE_MORE = f"""
WITH again AS (
    UPDATE schedules_run r
    SET status = 'in_progress', epoch = r.epoch + 1, lapses = r.lapses + 1, taken_at = %(now)s, lease_until = NULL
    FROM unnest(%(ids)s::bigint[], %(epochs)s::int[]) AS v(id, epoch)
    WHERE r.id = v.id AND r.epoch = v.epoch AND COALESCE(r.status, '') = 'running' AND r.lease_until < {DB_NOW}
    RETURNING r.id, r.epoch, r.kind, r.organization_id, r.schedule_id, r.attempt
), told AS (
    {EVENTS}
    SELECT organization_id, 'run.in_progress', 'run', id, {_SYSTEM},
           jsonb_build_object('schedule_id', schedule_id, 'attempt', attempt, 'reason', %(reason)s::text), %(now)s
    FROM again
)
SELECT id, epoch, kind FROM again ORDER BY id
"""

# --- Shards ---------------------------------------------------------------------------

ALIVE = f"""
INSERT INTO schedules_executor (name, expires_at)
VALUES (%(name)s, {DB_NOW} + make_interval(secs => %(lease)s::float8))
ON CONFLICT (name) DO UPDATE SET expires_at = EXCLUDED.expires_at
"""
FORGET_DEAD = f"DELETE FROM schedules_executor WHERE expires_at < {DB_NOW} - interval '1 minute'"
COUNT_ALIVE = f"""
SELECT (SELECT count(*) FROM schedules_executor WHERE expires_at > {DB_NOW}),
       (SELECT count(*) FROM schedules_shardlease)
"""
ADD_SHARDS = """
INSERT INTO schedules_shardlease (shard, holder, expires_at)
SELECT n, '', to_timestamp(0) FROM generate_series(0, %(shards)s - 1) AS n ON CONFLICT (shard) DO NOTHING
"""
RENEW_SHARDS = f"""
UPDATE schedules_shardlease SET expires_at = {DB_NOW} + make_interval(secs => %(lease)s::float8)
WHERE holder = %(name)s AND expires_at > {DB_NOW} RETURNING shard
"""
LEAVE_SHARDS = """
UPDATE schedules_shardlease SET holder = '', expires_at = to_timestamp(0)
WHERE holder = %(name)s AND shard = ANY(%(shards)s::smallint[])
"""
TAKE_SHARDS = f"""
UPDATE schedules_shardlease SET holder = %(name)s, expires_at = {DB_NOW} + make_interval(secs => %(lease)s::float8)
WHERE shard IN (
    SELECT shard FROM schedules_shardlease WHERE expires_at <= {DB_NOW}
    ORDER BY shard LIMIT %(limit)s FOR UPDATE SKIP LOCKED
)
RETURNING shard
"""
DROP_EXECUTOR = "DELETE FROM schedules_executor WHERE name = %(name)s"

# --- Figures ---------------------------------------------------------------------------

OPEN_RUNS = """
SELECT kind, status, count(*) FROM schedules_run
WHERE status IN ('in_progress', 'running', 'retrying') GROUP BY kind, status
"""
UNHELD_SHARDS = f"""
SELECT %(shards)s - count(*) FROM schedules_shardlease WHERE expires_at > {DB_NOW}
"""
