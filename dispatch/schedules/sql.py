"""Define the SQL of schedules: claim due runs, start them, store reports and apply them.

Lock order: schedules by id, then runs by id. An executor skips locked rows and never waits for them. Leases use
the database's clock, so workers' clocks need not agree. Every statement that changes a status also appends to the
event log.
"""

from __future__ import annotations

from dispatch.core.db.due_rows import DueIndex
from dispatch.core.db.prepared import DB_NOW, EVENTS

# The actor's columns in statements that append to the event log.
SYSTEM = "'system', NULL, 'Dispatch'"
# Whether the run r is one of a backfill: a manual run of a past occurrence.
_IS_BACKFILL = "r.number IS NULL AND r.trigger_at < r.created_at"
# Whether the run o was claimed and has not ended. A run that is retried manually is not open while it waits for
# others: two of them would wait for each other.
_IS_OPEN = "o.status IN ('in_progress', 'running', 'retrying') AND o.waiting_for <> 'earlier'"
# Since when the run r has been able to begin. The row of an occurrence is created long before that.
_WAITS_SINCE = "GREATEST(r.trigger_at, r.created_at)"

# The shard is a hash of the id, so the id must be known before the row is written.
NEW_IDS = """
SELECT nextval(pg_get_serial_sequence('schedules_schedule', 'id')) FROM generate_series(1, %(count)s::int)
"""

# --- Executor ---------------------------------------------------------------------------

# Reads per shard, so that the index returns the first rows of each shard in order, regardless of table size. Runs
# that have just become due come first: a quarter of the batch, and what they leave of it, is for late ones.
DUE_IDS = """
WITH fresh AS MATERIALIZED (
    SELECT r.id, r.due_at FROM unnest(%(shards)s::smallint[]) AS s(shard)
    CROSS JOIN LATERAL (
        SELECT id, due_at FROM schedules_run
        WHERE shard = s.shard AND status IN ('scheduled', 'retrying') AND due_at IS NOT NULL AND due_at <= %(now)s
          AND due_at > %(late)s AND kind = ANY(%(kinds)s::text[])
        ORDER BY due_at LIMIT %(limit)s
    ) r
    ORDER BY r.due_at LIMIT %(limit)s
), late AS MATERIALIZED (
    SELECT r.id, r.due_at FROM unnest(%(shards)s::smallint[]) AS s(shard)
    CROSS JOIN LATERAL (
        SELECT id, due_at FROM schedules_run
        WHERE shard = s.shard AND status IN ('scheduled', 'retrying') AND due_at IS NOT NULL AND due_at <= %(late)s
          AND kind = ANY(%(kinds)s::text[])
        ORDER BY due_at LIMIT %(limit)s
    ) r
    ORDER BY r.due_at LIMIT GREATEST(%(limit)s / 4, %(limit)s - (SELECT count(*) FROM fresh))
)
SELECT id FROM fresh UNION ALL SELECT id FROM late
"""
# With more due runs than a batch has places, organizations take turns. It reads only the given shards and kinds.
DUE_INDEX = DueIndex(
    "schedules_run",
    "due_at",
    "status IN ('scheduled', 'retrying') AND due_at IS NOT NULL AND shard = ANY(%(shards)s::smallint[])"
    " AND kind = ANY(%(kinds)s::text[])",
)
# The due time of a run that waits for an earlier one says only when it is checked again.
LOCK_DUE_RUNS = f"""
SELECT r.id, r.organization_id, r.schedule_id, r.kind, r.shard, r.number, r.trigger_at, r.status, r.due_at,
r.epoch,
       s.name, s.time_zone, s.trigger_at, s.every, s.unit, s.anchor, s.cron, s.starts_at, s.ends_at,
       s.max_occurrences, s.missed, s.missed_after_s, s.overlap, s.paused_until,
       s.jitter_s, s.rrule, s.exclude_calendars,
       CASE WHEN r.number IS NULL THEN r.concurrency_limit_id ELSE s.concurrency_limit_id END,
       r.waiting_for = 'earlier', {_IS_BACKFILL},
       s.overlap <> 'allow' AND EXISTS (
           SELECT 1 FROM schedules_run o WHERE o.schedule_id = r.schedule_id AND o.id <> r.id AND {_IS_OPEN}
       )
FROM schedules_run r JOIN schedules_schedule s ON s.id = r.schedule_id
WHERE r.id = ANY(%(ids)s::bigint[]) AND COALESCE(r.status, '') IN ('scheduled', 'retrying')
  AND r.due_at <= %(now)s AND s.status <> 'deleted'
ORDER BY r.waiting_for = 'earlier' AND {_IS_BACKFILL},
         CASE WHEN r.waiting_for = 'earlier' THEN {_WAITS_SINCE} ELSE r.due_at END, ({_IS_BACKFILL}), r.id
FOR NO KEY UPDATE OF s, r SKIP LOCKED
"""
NEXT_DUE = """
SELECT min(r.due_at) FROM unnest(%(shards)s::smallint[]) AS s(shard)
CROSS JOIN LATERAL (
    SELECT due_at FROM schedules_run
    WHERE shard = s.shard AND status IN ('scheduled', 'retrying') AND due_at IS NOT NULL
      AND kind = ANY(%(kinds)s::text[])
    ORDER BY due_at LIMIT 1
) r
"""
CLAIM = f"""
WITH taken AS (
    UPDATE schedules_run SET status = 'in_progress', epoch = epoch + 1, taken_at = %(now)s, waiting_for = '',
        concurrency_limit_id = CASE WHEN number IS NULL THEN concurrency_limit_id END,
        concurrency_slot = NULL, waits_since = NULL
    WHERE id = ANY(%(ids)s::bigint[])
    RETURNING id, organization_id, schedule_id, attempt, epoch
), appended AS (
    {EVENTS}
    SELECT organization_id, 'run.in_progress', 'run', id, {SYSTEM},
           jsonb_build_object('schedule_id', schedule_id, 'attempt', attempt, 'epoch', epoch), %(now)s
    FROM taken
)
SELECT count(*) FROM taken
"""
# A stretch of several occurrences says how many there are, and when the last one was.
_SKIPPED_DATA = """
           jsonb_strip_nulls(jsonb_build_object(
               'schedule_id', schedule_id, 'reason', error,
               'occurrences', CASE WHEN stretch_count > 1 THEN stretch_count END, 'last_at', stretch_last_at))
"""
SKIP_RUNS = f"""
WITH passed AS (
    UPDATE schedules_run r SET status = v.status, error = v.reason, ended_at = %(now)s, waiting_for = '',
        stretch_count = v.count, stretch_last_at = v.last_at
    FROM unnest(%(ids)s::bigint[], %(statuses)s::text[], %(reasons)s::text[], %(counts)s::int[],
                %(lasts)s::timestamptz[]) AS v(id, status, reason, count, last_at)
    WHERE r.id = v.id
    RETURNING r.id, r.organization_id, r.schedule_id, r.status, r.error, r.stretch_count, r.stretch_last_at
), appended AS (
    {EVENTS}
    SELECT organization_id, 'run.' || status, 'run', id, {SYSTEM}, {_SKIPPED_DATA}, %(now)s
    FROM passed
)
SELECT count(*) FROM passed
"""
DEFER_RUNS = """
UPDATE schedules_run SET due_at = %(until)s, waiting_for = 'earlier' WHERE id = ANY(%(ids)s::bigint[])
"""
# Cancel the open runs of these schedules, except the runs that are to follow them. Those in a worker are asked to
# stop. Locked ones are left for the next check. Returns the limits whose slots are free now.
CANCEL_OTHERS = f"""
WITH open AS (
    SELECT o.id, o.status FROM schedules_run o
    WHERE o.schedule_id = ANY(%(schedules)s::bigint[]) AND o.id <> ALL(%(ids)s::bigint[])
      AND {_IS_OPEN} AND o.cancel_requested_at IS NULL
    ORDER BY o.id FOR NO KEY UPDATE OF o SKIP LOCKED
), canceled AS (
    UPDATE schedules_run r
    SET status = CASE WHEN r.status = 'running' THEN r.status ELSE 'cancelled' END,
        ended_at = CASE WHEN r.status = 'running' THEN NULL ELSE %(now)s::timestamptz END,
        error = CASE WHEN r.status = 'running' THEN r.error ELSE %(reason)s END,
        cancel_requested_at = %(now)s, waiting_for = ''
    WHERE r.id = ANY(ARRAY(SELECT id FROM open))
    RETURNING r.id, r.organization_id, r.schedule_id, r.status, r.concurrency_limit_id
), appended AS (
    {EVENTS}
    SELECT organization_id, CASE WHEN status = 'cancelled' THEN 'run.cancelled' ELSE 'run.cancel_requested' END,
           'run', id, {SYSTEM},
           jsonb_build_object('schedule_id', schedule_id, 'reason', %(reason)s::text), %(now)s
    FROM canceled
)
SELECT DISTINCT concurrency_limit_id FROM canceled JOIN open USING (id)
WHERE open.status = 'in_progress' AND concurrency_limit_id IS NOT NULL
"""
STILL_OPEN = f"""
SELECT DISTINCT o.schedule_id FROM schedules_run o
WHERE o.schedule_id = ANY(%(schedules)s::bigint[]) AND {_IS_OPEN}
"""
# Skipped occurrences get a row at once, like the next run.
ADD_SKIPPED = f"""
WITH added AS (
    INSERT INTO schedules_run
        (organization_id, schedule_id, kind, shard, number, trigger_at, due_at, status, attempt, epoch, lapses,
         waiting_for, ended_at, error, created_at, stretch_count, stretch_last_at)
    SELECT v.organization_id, v.schedule_id, v.kind, v.shard, v.number, v.trigger_at, v.trigger_at, v.status, 1,
           0, 0, '', %(now)s, v.reason, %(now)s, v.count, v.last_at
    FROM unnest(%(organizations)s::bigint[], %(schedules)s::bigint[], %(kinds)s::text[], %(shards)s::smallint[],
                %(numbers)s::int[], %(triggers)s::timestamptz[], %(statuses)s::text[], %(reasons)s::text[],
                %(counts)s::int[], %(lasts)s::timestamptz[])
         AS v(organization_id, schedule_id, kind, shard, number, trigger_at, status, reason, count, last_at)
    RETURNING id, organization_id, schedule_id, status, error, stretch_count, stretch_last_at
), appended AS (
    {EVENTS}
    SELECT organization_id, 'run.' || status, 'run', id, {SYSTEM}, {_SKIPPED_DATA}, %(now)s
    FROM added
)
SELECT count(*) FROM added
"""
ADD_NEXT = """
INSERT INTO schedules_run
    (organization_id, schedule_id, kind, shard, number, trigger_at, due_at, status, attempt, epoch, lapses,
     waiting_for, ended_at, error, created_at)
SELECT v.organization_id, v.schedule_id, v.kind, v.shard, v.number, v.trigger_at, v.due_at, 'scheduled', 1, 0, 0,
       '', NULL, '', %(now)s
FROM unnest(%(organizations)s::bigint[], %(schedules)s::bigint[], %(kinds)s::text[], %(shards)s::smallint[],
            %(numbers)s::int[], %(triggers)s::timestamptz[], %(dues)s::timestamptz[])
     AS v(organization_id, schedule_id, kind, shard, number, trigger_at, due_at)
"""
# Store the new next run of each schedule. A schedule without one ends.
ADVANCE_SCHEDULES = f"""
WITH moved AS (
    UPDATE schedules_schedule s
    SET next_at = v.next_at, occurrences = v.number,
        status = CASE WHEN v.next_at IS NULL AND s.status = 'active' THEN 'ended' ELSE s.status END
    FROM unnest(%(ids)s::bigint[], %(numbers)s::int[], %(nexts)s::timestamptz[]) AS v(id, number, next_at)
    WHERE s.id = ANY(%(ids)s::bigint[]) AND s.id = v.id
    RETURNING s.id, s.organization_id, s.status, s.name, s.occurrences
), appended AS (
    {EVENTS}
    SELECT organization_id, 'schedule.ended', 'schedule', id, {SYSTEM},
           jsonb_build_object('name', name, 'occurrences', occurrences), %(now)s
    FROM moved WHERE status = 'ended'
)
SELECT count(*) FROM moved
"""

# `COALESCE(status, '')` forces PostgreSQL to find rows with known ids by primary key. The partial indexes of open
# rows are nearly empty until many rows are open at once; planning for that case, PostgreSQL would read a whole
# index for each batch.

# --- Worker ---------------------------------------------------------------------------

START = f"""
WITH mine AS (
    SELECT r.id FROM schedules_run r
    JOIN unnest(%(ids)s::bigint[], %(epochs)s::int[]) AS v(id, epoch) ON v.id = r.id AND v.epoch = r.epoch
    WHERE r.id = ANY(%(ids)s::bigint[]) AND COALESCE(r.status, '') = 'in_progress'
    ORDER BY r.id FOR NO KEY UPDATE OF r SKIP LOCKED
), started AS (
    UPDATE schedules_run r
    SET status = 'running', started_at = %(now)s, lease_until = {DB_NOW} + make_interval(secs => %(lease)s::float8)
    WHERE r.id = ANY(ARRAY(SELECT id FROM mine))
    RETURNING r.id, r.epoch, r.attempt, r.organization_id, r.schedule_id, r.trigger_at, r.number, r.due_at,
              r.deferred_since, r.payload
), appended AS (
    {EVENTS}
    SELECT organization_id, 'run.running', 'run', id, {SYSTEM},
           jsonb_build_object('schedule_id', schedule_id, 'attempt', attempt, 'epoch', epoch), %(now)s
    FROM started
)
SELECT r.id, r.epoch, r.attempt, r.organization_id, r.schedule_id, r.trigger_at, r.number, r.due_at,
       s.name, COALESCE(r.payload, s.payload), s.headers, r.deferred_since
FROM started r
CROSS JOIN LATERAL (SELECT name, payload, headers FROM schedules_schedule WHERE id = r.schedule_id OFFSET 0) s
ORDER BY r.id
"""
RENEW_LEASES = f"""
UPDATE schedules_run r SET lease_until = {DB_NOW} + make_interval(secs => %(lease)s::float8)
FROM unnest(%(ids)s::bigint[], %(epochs)s::int[]) AS v(id, epoch)
WHERE r.id = v.id AND r.epoch = v.epoch AND COALESCE(r.status, '') = 'running'
RETURNING r.id
"""
# Of these runs, those whose cancellation was requested.
CANCEL_REQUESTED = """
SELECT id FROM schedules_run WHERE id = ANY(%(ids)s::bigint[]) AND cancel_requested_at IS NOT NULL
"""
# running → in_progress in a new epoch, so that another message can be sent; or canceled, if the schedule was
# deleted or the cancellation requested. Runs that are locked, or whose schedule is, are left for a later pass.
# The kind may have changed while the run was running: what follows reads the new payload.
_REQUEUE = f"""
WITH mine AS (
    SELECT r.id, s.status = 'deleted' OR r.cancel_requested_at IS NOT NULL AS is_over,
           CASE s.status WHEN 'deleted' THEN 'Its schedule was deleted.' ELSE 'Canceled while running.' END AS why,
           CASE WHEN r.payload IS NULL THEN s.kind ELSE r.kind END AS kind
    FROM schedules_run r
    JOIN unnest(%(ids)s::bigint[], %(epochs)s::int[]) AS v(id, epoch) ON v.id = r.id AND v.epoch = r.epoch
    JOIN schedules_schedule s ON s.id = r.schedule_id
    WHERE r.id = ANY(%(ids)s::bigint[]) AND COALESCE(r.status, '') = 'running' {{condition}}
    ORDER BY s.id, r.id FOR NO KEY UPDATE OF r SKIP LOCKED FOR SHARE OF s SKIP LOCKED
), given AS (
    UPDATE schedules_run r
    SET status = CASE WHEN m.is_over THEN 'cancelled' ELSE 'in_progress' END, epoch = r.epoch + 1,
        lapses = r.lapses + {{lapses}}, taken_at = %(now)s, lease_until = NULL, started_at = {{started_at}},
        kind = m.kind,
        ended_at = CASE WHEN m.is_over THEN %(now)s::timestamptz END,
        error = CASE WHEN m.is_over THEN m.why ELSE r.error END
    FROM mine m
    WHERE r.id = ANY(%(ids)s::bigint[]) AND r.id = m.id
    RETURNING r.id, r.epoch, r.kind, r.organization_id, r.schedule_id, r.attempt, r.status, m.why,
              r.concurrency_limit_id
), appended AS (
    {EVENTS}
    SELECT organization_id, 'run.' || status, 'run', id, {SYSTEM},
           jsonb_build_object('schedule_id', schedule_id, 'attempt', attempt, 'epoch', epoch, 'reason',
               CASE WHEN status = 'cancelled' THEN why ELSE %(reason)s::text END), %(now)s
    FROM given
)
SELECT id, epoch, kind, organization_id, status, schedule_id, concurrency_limit_id FROM given ORDER BY id
"""
# Requeue runs that a worker claimed but did not begin.
RETURN_RUNS = _REQUEUE.format(condition="", lapses=0, started_at="NULL")
# Requeue runs whose worker died, in the same attempt.
REQUEUE_LAPSED = _REQUEUE.format(condition=f"AND r.lease_until < {DB_NOW}", lapses=1, started_at="r.started_at")
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

# Schedules whose failure count these reports may change. They are locked before the runs.
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
# Only the schedules that no other transaction has locked.
TRY_LOCK_SCHEDULES_OF_REPORTS = LOCK_SCHEDULES_OF_REPORTS.rstrip() + " SKIP LOCKED"
# The reports to apply: those of the current epoch that have not been applied.
REPORTED = """
SELECT r.id, r.epoch, r.attempt, r.organization_id, r.schedule_id, r.kind, p.outcome, p.error, p.again_in_s,
       s.retry_schedule_s, s.status, s.overlap, s.name, r.trigger_at, r.cancel_requested_at IS NOT NULL,
       CASE WHEN r.concurrency_slot IS NOT NULL THEN r.concurrency_limit_id END
FROM schedules_run r
JOIN schedules_runreport p ON p.run_id = r.id AND p.epoch = r.epoch
JOIN schedules_schedule s ON s.id = r.schedule_id
WHERE r.id = ANY(%(ids)s::bigint[]) AND p.run_id = ANY(%(ids)s::bigint[]) AND COALESCE(r.status, '') = 'running'
ORDER BY r.id FOR NO KEY UPDATE OF r
"""
# Only runs that no other transaction has locked, and whose schedule is locked here or need not be locked.
REPORTED_UNLOCKED = REPORTED.replace(
    "ORDER BY r.id FOR NO KEY UPDATE OF r",
    "AND ((p.outcome = 'succeeded' AND s.failures = 0) OR s.id = ANY(%(locked)s::bigint[])) "
    "ORDER BY r.id FOR NO KEY UPDATE OF r SKIP LOCKED",
)
# A retry reads the schedule's payload, and so has its kind, which may have changed.
APPLY = f"""
WITH applied AS (
    UPDATE schedules_run r
    SET status = v.status, lease_until = NULL, lapses = 0, error = p.error, concurrency_slot = NULL,
        result = CASE WHEN p.outcome = 'deferred' THEN NULL ELSE p.result END,
        due_at = CASE WHEN v.status = 'retrying' THEN v.due_at ELSE r.due_at END,
        kind = CASE WHEN v.status = 'retrying' AND r.payload IS NULL
                    THEN (SELECT s.kind FROM schedules_schedule s WHERE s.id = r.schedule_id) ELSE r.kind END,
        attempt = CASE WHEN v.status = 'retrying' AND p.outcome <> 'deferred' THEN r.attempt + 1
                       ELSE r.attempt END,
        waiting_for = CASE WHEN v.status = 'retrying' AND p.outcome = 'deferred' THEN p.result->>'waiting_for'
                           ELSE '' END,
        deferred_since = CASE WHEN v.status = 'retrying' AND p.outcome = 'deferred'
                              THEN COALESCE(r.deferred_since, %(now)s) END,
        ended_at = CASE WHEN v.status = 'retrying' THEN NULL ELSE %(now)s END
    FROM unnest(%(ids)s::bigint[], %(statuses)s::text[], %(dues)s::timestamptz[]) AS v(id, status, due_at),
         schedules_runreport p
    WHERE r.id = ANY(%(ids)s::bigint[]) AND r.id = v.id AND p.run_id = r.id AND p.epoch = r.epoch
      AND p.run_id = ANY(%(ids)s::bigint[])
      AND COALESCE(r.status, '') = 'running'
    RETURNING r.id, r.organization_id, r.schedule_id, r.status, r.error, p.attempt, r.epoch, r.due_at, r.result,
              r.waiting_for
), appended AS (
    {EVENTS}
    SELECT organization_id, 'run.' || status, 'run', id, {SYSTEM},
           jsonb_strip_nulls(jsonb_build_object(
               'schedule_id', schedule_id, 'attempt', attempt, 'epoch', epoch, 'error', NULLIF(error, ''),
               'result', result, 'waiting_for', NULLIF(waiting_for, ''),
               'again_at', CASE WHEN status = 'retrying' THEN due_at END)), %(now)s
    FROM applied
)
SELECT count(*) FROM applied
"""
# A deferred attempt was not made, so it leaves no report: a run may be deferred often.
DELETE_DEFERRALS = """
DELETE FROM schedules_runreport WHERE run_id = ANY(%(ids)s::bigint[]) AND outcome = 'deferred'
"""
# One run of each schedule, because the others would only wait again: the one that has waited longest, those of a
# backfill last. It waits until an executor claims it: another run may be open. If it does not begin after all, the
# others begin when they are checked again. Runs of paused schedules have no due time.
WAKE_WAITING = f"""
UPDATE schedules_run SET due_at = %(now)s
WHERE id = ANY(ARRAY(
    SELECT next.id FROM unnest(%(schedules)s::bigint[]) AS s(id)
    CROSS JOIN LATERAL (
        SELECT r.id FROM schedules_run r
        WHERE r.schedule_id = s.id AND r.waiting_for = 'earlier' AND r.status IN ('scheduled', 'retrying')
          AND r.due_at IS NOT NULL AND r.id <> ALL(%(without)s::bigint[])
        ORDER BY ({_IS_BACKFILL}), {_WAITS_SINCE}, r.id LIMIT 1
    ) next
)) AND waiting_for = 'earlier' AND status IN ('scheduled', 'retrying') AND due_at > %(now)s
RETURNING id
"""
# Runs that are held and have been tried. Those of paused schedules have no due time.
WAKE_HELD = """
UPDATE schedules_run SET due_at = %(now)s
WHERE id = ANY(ARRAY(
    SELECT r.id FROM schedules_run r JOIN schedules_schedule s ON s.id = r.schedule_id
    WHERE r.organization_id = %(organization)s AND r.status = 'retrying' AND r.waiting_for <> ''
      AND r.waiting_for = ANY(%(reasons)s::text[]) AND r.due_at > %(now)s
      AND (%(endpoint)s::text = '' OR COALESCE(r.payload, s.payload)->>'endpoint' = %(endpoint)s::text)
    ORDER BY r.id LIMIT %(most)s FOR NO KEY UPDATE OF r SKIP LOCKED
))
RETURNING id
"""
COUNT_FAILURES = """
UPDATE schedules_schedule s SET failures = v.failures
FROM unnest(%(ids)s::bigint[], %(failures)s::int[]) AS v(id, failures)
WHERE s.id = v.id AND s.id = ANY(%(ids)s::bigint[])
"""

# --- Reconciler ---------------------------------------------------------------------------

# Runs of these kinds that were sent before these times: no worker started them, and no queue has their message.
LOST = """
SELECT r.id, r.epoch, r.kind, r.organization_id, r.lapses FROM schedules_run r
JOIN unnest(%(kinds)s::text[], %(befores)s::timestamptz[]) AS v(kind, before) ON v.kind = r.kind
WHERE r.status = 'in_progress' AND r.taken_at < v.before
ORDER BY r.taken_at LIMIT %(limit)s
"""
# The SQL condition that a worker has a run, a run waits for a concurrency limit, or an import is not finished.
MAY_NEED_RECONCILIATION = """(
    EXISTS (SELECT FROM schedules_run WHERE status = 'in_progress')
    OR EXISTS (SELECT FROM schedules_run WHERE status = 'running')
    OR EXISTS (SELECT FROM schedules_run WHERE waiting_for = 'concurrency' AND status = 'retrying')
    OR EXISTS (SELECT FROM schedules_bulkimport WHERE status IN ('received', 'running'))
)"""
MARK_RESENT = """
UPDATE schedules_run SET taken_at = %(now)s WHERE id = ANY(%(ids)s::bigint[]) AND status = 'in_progress'
"""
UNAPPLIED = """
SELECT r.id FROM schedules_run r JOIN schedules_runreport p ON p.run_id = r.id AND p.epoch = r.epoch
WHERE r.status = 'running' AND p.ended_at < %(before)s ORDER BY r.id LIMIT %(limit)s
"""
LAPSED = f"""
SELECT r.id, r.epoch, r.kind, r.organization_id, r.lapses, r.attempt FROM schedules_run r
WHERE r.status = 'running' AND r.lease_until < {DB_NOW} AND r.kind = ANY(%(kinds)s::text[])
  AND NOT EXISTS (SELECT 1 FROM schedules_runreport p WHERE p.run_id = r.id AND p.epoch = r.epoch)
ORDER BY r.lease_until LIMIT %(limit)s
"""

# --- Shards ---------------------------------------------------------------------------

# Renew an executor and its shards, and delete dead executors. Returns the number of live executors, of all shards,
# and the shards held.
RENEW_EXECUTOR = f"""
WITH renewed AS (
    INSERT INTO schedules_executor (name, expires_at)
    VALUES (%(name)s, {DB_NOW} + make_interval(secs => %(lease)s::float8))
    ON CONFLICT (name) DO UPDATE SET expires_at = EXCLUDED.expires_at
), held AS (
    UPDATE schedules_shardlease SET expires_at = {DB_NOW} + make_interval(secs => %(lease)s::float8)
    WHERE holder = %(name)s AND expires_at > {DB_NOW} RETURNING shard
), deleted AS (
    DELETE FROM schedules_executor WHERE name <> %(name)s AND expires_at < {DB_NOW} - interval '1 minute'
)
SELECT 1 + (SELECT count(*) FROM schedules_executor WHERE name <> %(name)s AND expires_at > {DB_NOW}),
       (SELECT count(*) FROM schedules_shardlease), ARRAY(SELECT shard FROM held)
"""
COUNT_ALIVE = f"SELECT count(*) FROM schedules_executor WHERE expires_at > {DB_NOW}"
ADD_SHARDS = """
INSERT INTO schedules_shardlease (shard, holder, expires_at)
SELECT n, '', to_timestamp(0) FROM generate_series(0, %(shards)s - 1) AS n ON CONFLICT (shard) DO NOTHING
"""
RELEASE_SHARDS = """
UPDATE schedules_shardlease SET holder = '', expires_at = to_timestamp(0)
WHERE holder = %(name)s AND shard = ANY(%(shards)s::smallint[])
"""
TAKE_SHARDS = f"""
UPDATE schedules_shardlease SET holder = %(name)s, expires_at = {DB_NOW} + make_interval(secs => %(lease)s::float8)
WHERE shard = ANY(ARRAY(
    SELECT shard FROM schedules_shardlease WHERE expires_at <= {DB_NOW}
    ORDER BY shard LIMIT %(limit)s FOR UPDATE SKIP LOCKED
))
RETURNING shard
"""
DELETE_EXECUTOR = "DELETE FROM schedules_executor WHERE name = %(name)s"

# --- Metrics ---------------------------------------------------------------------------

OPEN_RUNS = """
SELECT kind, status, count(*) FROM schedules_run
WHERE status IN ('in_progress', 'running', 'retrying') GROUP BY kind, status
"""
UNHELD_SHARDS = f"""
SELECT %(shards)s - count(*) FROM schedules_shardlease WHERE expires_at > {DB_NOW}
"""
