"""Find groups, their heads, waiting messages and headroom, and claim messages."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from dispatch.core.db.prepared import DB_NOW, EVENTS, integers

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
# Only the groups that no other transaction has locked.
TRY_LOCK_GROUPS = LOCK_GROUPS + " SKIP LOCKED"
# For unordered messages, which only need their group not to be deleted.
KEEP_GROUPS = "SELECT id FROM outbox_messagegroup WHERE id = ANY(%(ids)s::bigint[]) ORDER BY id FOR KEY SHARE"

# Decide the next message of each group (`rules.ordering` is the same decision in Python). The groups must be
# locked by an earlier statement, so that this statement's snapshot is newer than every change to them. Per group:
# the message in flight; the first ERROR of each mode; the first waiting message of each mode. The head is the
# earlier of the two waiting messages, if no error holds it. Since errors hold by position, a mode's first message
# is held if and only if all messages of that mode are held. The order is by sequence and id: ids are assigned
# under the group's lock, so they are the order of acceptance whatever the clocks of the machines say.
HEADS = """
SELECT g.id, g.wake_at, g.blocked_by, g.blocked_since, flight.id, head.id, head.due_at, head.target_id,
       CASE WHEN flight.id IS NULL AND head.id IS NULL THEN held.by_id END,
       CASE WHEN held.by_id = block_error.id THEN block_error.ended_at ELSE next_error.ended_at END
FROM outbox_messagegroup g
LEFT JOIN LATERAL (
    SELECT f.id FROM outbox_message f
    WHERE f.group_id = g.id AND f.in_flight AND f.mode <> 'IMMEDIATE' LIMIT 1
) flight ON true
LEFT JOIN LATERAL (
    SELECT e.sequence, e.id, e.ended_at FROM outbox_message e
    WHERE e.group_id = g.id AND e.status IN ('PENDING', 'ERROR') AND e.status = %(error)s::text
      AND e.mode = 'BLOCK_ON_ERROR'
    ORDER BY e.sequence, e.id LIMIT 1
) block_error ON true
LEFT JOIN LATERAL (
    SELECT e.sequence, e.id, e.ended_at FROM outbox_message e
    WHERE e.group_id = g.id AND e.status IN ('PENDING', 'ERROR') AND e.status = %(error)s::text
      AND e.mode = 'NEXT_ON_ERROR'
    ORDER BY e.sequence, e.id LIMIT 1
) next_error ON true
LEFT JOIN LATERAL (
    SELECT m.sequence, m.id, m.due_at, m.target_id FROM outbox_message m
    WHERE m.group_id = g.id AND m.status = 'PENDING' AND m.mode = 'BLOCK_ON_ERROR'
      AND (m.expires_at IS NULL OR m.expires_at > %(now)s)
    ORDER BY m.sequence, m.id LIMIT 1
) blocking ON true
LEFT JOIN LATERAL (
    SELECT m.sequence, m.id, m.due_at, m.target_id FROM outbox_message m
    WHERE m.group_id = g.id AND m.status = 'PENDING' AND m.mode = 'NEXT_ON_ERROR'
      AND (m.expires_at IS NULL OR m.expires_at > %(now)s)
    ORDER BY m.sequence, m.id LIMIT 1
) passing ON true
LEFT JOIN LATERAL (
    SELECT c.* FROM (VALUES
        (blocking.sequence, blocking.id, blocking.due_at, blocking.target_id, true),
        (passing.sequence, passing.id, passing.due_at, passing.target_id, false)
    ) AS c(sequence, id, due_at, target_id, blocks)
    WHERE c.id IS NOT NULL AND flight.id IS NULL
      AND (block_error.id IS NULL OR (c.sequence, c.id) < (block_error.sequence, block_error.id))
      AND (NOT c.blocks OR next_error.id IS NULL
           OR (c.sequence, c.id) < (next_error.sequence, next_error.id))
    ORDER BY c.sequence, c.id LIMIT 1
) head ON true
LEFT JOIN LATERAL (
    SELECT CASE
        WHEN blocking.id IS NULL AND passing.id IS NULL THEN NULL
        WHEN next_error.id IS NULL THEN block_error.id
        WHEN block_error.id IS NULL THEN next_error.id
        -- The first message in order names its earliest holder: only BLOCK errors hold a NEXT message.
        WHEN blocking.id IS NULL OR (passing.id IS NOT NULL AND
             (passing.sequence, passing.id)
             < (blocking.sequence, blocking.id)) THEN block_error.id
        WHEN (block_error.sequence, block_error.id)
             < (next_error.sequence, next_error.id) THEN block_error.id
        ELSE next_error.id END AS by_id
) held ON true
WHERE g.id = ANY(%(ids)s::bigint[])
"""


def heads_of(group_ids: Sequence[int], now: datetime) -> dict[str, Any]:
    """Return the parameters of HEADS.

    ERROR is a parameter, not a literal, so that the planner can use only the index `message_order`: the index of
    all errors, few at planning time, may hold thousands at run time.
    """
    return {"ids": integers(group_ids), "now": now, "error": "ERROR"}


SAVE_GROUPS = """
UPDATE outbox_messagegroup g
SET wake_at = v.wake_at, target_id = COALESCE(v.target_id, g.target_id),
    blocked_by = v.blocked_by, blocked_since = v.blocked_since
FROM unnest(%(ids)s::bigint[], %(wakes)s::timestamptz[], %(targets)s::bigint[], %(blockers)s::bigint[],
            %(sinces)s::timestamptz[]) AS v(id, wake_at, target_id, blocked_by, blocked_since)
WHERE g.id = v.id
"""

# --- Queue: waiting groups and messages, and the headroom for them ---

# The targets for which groups or unordered messages wait, now or later, each with the earliest time, by skipping
# through two indexes: the cost depends on how many targets have something to wait for, not on how many there ever
# were, nor on how much waits for each. Of an organization, %(steps)s targets are read from the first on, and as
# many after %(afters)s, if it is one of %(turns)s: waiting targets of an organization cost others no more than
# that. `is_last`: there may be more. %(organizations)s: NULL for all. The order is that of all columns of the
# indexes, so that no other index serves it. Run it without sorting, see `prepared.index_order`.
_WALK = """
{name}_organization AS (
    (SELECT w.organization_id FROM {table} w WHERE {waits} AND %(organizations)s::bigint[] IS NULL
     ORDER BY w.organization_id, w.target_id, w.{at} LIMIT 1)
    UNION ALL
    SELECT later.organization_id FROM {name}_organization before CROSS JOIN LATERAL (
        SELECT w.organization_id FROM {table} w WHERE {waits} AND w.organization_id > before.organization_id
        ORDER BY w.organization_id, w.target_id, w.{at} LIMIT 1
    ) later
), {name}_start AS (
    SELECT organization_id, 0::bigint AS after FROM {name}_organization
    UNION ALL SELECT unnest(%(organizations)s::bigint[]), 0
    UNION ALL SELECT unnest(%(turns)s::bigint[]), unnest(%(afters)s::bigint[])
), {name}_target AS (
    SELECT first.*, 1 AS step
    FROM {name}_start start CROSS JOIN LATERAL (
        SELECT w.organization_id, w.target_id, w.{at} FROM {table} w
        WHERE {waits} AND (w.organization_id, w.target_id) > (start.organization_id, start.after)
        ORDER BY w.organization_id, w.target_id, w.{at} LIMIT 1
    ) first
    WHERE first.organization_id = start.organization_id
    UNION ALL
    SELECT later.*, before.step + 1
    FROM {name}_target before CROSS JOIN LATERAL (
        SELECT w.organization_id, w.target_id, w.{at} FROM {table} w
        WHERE {waits} AND (w.organization_id, w.target_id) > (before.organization_id, before.target_id)
        ORDER BY w.organization_id, w.target_id, w.{at} LIMIT 1
    ) later
    WHERE before.step < %(steps)s::int AND later.organization_id = before.organization_id
)"""
_WALK_GROUPS = _WALK.format(name="group", table="outbox_messagegroup", waits="w.wake_at IS NOT NULL", at="wake_at")
_WALK_IMMEDIATES = _WALK.format(
    name="immediate", table="outbox_message", waits="w.status = 'PENDING' AND w.mode = 'IMMEDIATE'", at="due_at"
)
_WAITING_TARGETS = f"""
WITH RECURSIVE {_WALK_GROUPS}, {_WALK_IMMEDIATES}, waiting AS MATERIALIZED (
    SELECT found.target_id, min(found.organization_id) AS organization_id, min(found.wake_at) AS wake_at,
           min(found.due_at) AS due_at, bool_or(found.step = %(steps)s::int) AS is_last
    FROM (
        SELECT organization_id, target_id, wake_at, NULL::timestamptz AS due_at, step FROM group_target
        UNION ALL SELECT organization_id, target_id, NULL, due_at, step FROM immediate_target
        UNION ALL SELECT NULL, unnest(%(targets)s::bigint[]), NULL, NULL, 0
    ) found
    GROUP BY found.target_id
)"""
TARGET_STATES = f"""{_WAITING_TARGETS}
, counts AS (
    SELECT held.pool_id, sum(held.in_flight)::bigint AS in_flight, sum(held.queued)::bigint AS queued
    FROM (
        SELECT m.pool_id, count(*) AS in_flight, count(*) FILTER (WHERE m.status = 'QUEUED') AS queued
        FROM outbox_message m
        WHERE m.in_flight AND m.pool_id IS NOT NULL
          AND (%(pools)s::bigint[] IS NULL OR m.pool_id = ANY(%(pools)s::bigint[]))
        GROUP BY m.pool_id
        UNION ALL
        SELECT d.pool_id, count(*), 0 FROM outbox_directrequest d
        WHERE d.lease_until > {DB_NOW}
          AND (%(pools)s::bigint[] IS NULL OR d.pool_id = ANY(%(pools)s::bigint[]))
        GROUP BY d.pool_id
    ) held
    GROUP BY held.pool_id
), target AS MATERIALIZED (
    SELECT t.*, COALESCE(e.pool_id, t.pool_id) AS its_pool_id,
           COALESCE(e.is_paused OR e.disabled_at IS NOT NULL, false)
               OR COALESCE(e.pool_id, t.pool_id) <> ALL(%(pools)s::bigint[]) IS TRUE AS is_held,
           due.is_last, COALESCE(due.wake_at <= %(now)s, false) AS has_groups,
           COALESCE(due.due_at <= %(now)s, false) AS has_immediates
    FROM (
        SELECT w.* FROM waiting w
        WHERE w.wake_at <= %(now)s OR w.due_at <= %(now)s OR w.is_last OR w.target_id = ANY(%(targets)s::bigint[])
    ) due
    -- LIMIT, so that no plan reads the whole table.
    CROSS JOIN LATERAL (SELECT * FROM outbox_target its WHERE its.id = due.target_id LIMIT 1) t
    LEFT JOIN outbox_endpoint e ON e.id = t.endpoint_id
    WHERE %(pools)s::bigint[] IS NULL OR COALESCE(e.pool_id, t.pool_id) = ANY(%(pools)s::bigint[]) OR due.is_last
)
SELECT target.id, target.is_held, target.has_groups, target.has_immediates,
       target.failures, target.openings, target.open_until, target.probe_until, target.failing_since,
       p.id, p.concurrency, p.rate_per_minute, p.is_paused, gate.full_at,
       COALESCE(counts.in_flight, 0), COALESCE(counts.queued, 0), {DB_NOW}, target.organization_id,
       target.is_last
FROM target
JOIN capacity_dispatchpool p ON p.id = target.its_pool_id
LEFT JOIN outbox_poolgate gate ON gate.pool_id = p.id
LEFT JOIN counts ON counts.pool_id = p.id
WHERE NOT (target.is_held OR p.is_paused) OR target.is_last OR target.id = ANY(%(targets)s::bigint[])
"""
POOLS_OF = """
SELECT DISTINCT COALESCE(e.pool_id, t.pool_id)
FROM outbox_target t LEFT JOIN outbox_endpoint e ON e.id = t.endpoint_id WHERE t.id = ANY(%(targets)s::bigint[])
"""
WAITING_GROUPS = """
SELECT g.id, g.wake_at
FROM unnest(%(organizations)s::bigint[], %(targets)s::bigint[], %(headrooms)s::bigint[])
     AS target(organization_id, target_id, headroom)
CROSS JOIN LATERAL (
    SELECT l.id, l.wake_at FROM outbox_messagegroup l
    WHERE l.organization_id = target.organization_id AND l.target_id = target.target_id AND l.wake_at <= %(now)s
    ORDER BY l.wake_at LIMIT target.headroom FOR UPDATE SKIP LOCKED
) g
ORDER BY g.wake_at, g.id
"""
WAITING_IMMEDIATES = """
SELECT i.id, i.due_at, target.target_id
FROM unnest(%(organizations)s::bigint[], %(targets)s::bigint[], %(headrooms)s::bigint[])
     AS target(organization_id, target_id, headroom)
CROSS JOIN LATERAL (
    SELECT m.id, m.due_at FROM outbox_message m
    WHERE m.organization_id = target.organization_id AND m.target_id = target.target_id
      AND m.status = 'PENDING' AND m.mode = 'IMMEDIATE' AND m.due_at <= %(now)s
      AND (m.expires_at IS NULL OR m.expires_at > %(now)s)
    ORDER BY m.due_at, m.id LIMIT target.headroom FOR UPDATE SKIP LOCKED
) i
ORDER BY i.due_at, i.id
"""
# The SQL condition that a group or an immediate message waits: the poller decides which of them may go.
IS_ANY_WAITING = """(
    EXISTS (SELECT FROM outbox_messagegroup WHERE wake_at IS NOT NULL)
    OR EXISTS (SELECT FROM outbox_message WHERE status = 'PENDING' AND mode = 'IMMEDIATE')
)"""
NEXT_WAKE = f"""{_WAITING_TARGETS}
SELECT min(least(line.wake_at, immediate.due_at, CASE WHEN t.wake_at > %(now)s THEN t.wake_at END,
                 CASE WHEN t.due_at > %(now)s THEN t.due_at END))
FROM waiting t
LEFT JOIN LATERAL (
    SELECT g.wake_at FROM outbox_messagegroup g
    WHERE t.wake_at <= %(now)s AND g.organization_id = t.organization_id AND g.target_id = t.target_id
      AND g.wake_at > %(now)s
    ORDER BY g.wake_at LIMIT 1
) line ON true
LEFT JOIN LATERAL (
    SELECT m.due_at FROM outbox_message m
    WHERE t.due_at <= %(now)s AND m.organization_id = t.organization_id AND m.target_id = t.target_id
      AND m.status = 'PENDING' AND m.mode = 'IMMEDIATE' AND m.due_at > %(now)s
    ORDER BY m.due_at LIMIT 1
) immediate ON true
"""
# When the most overdue group or unordered message was due, of those that nothing holds on purpose: a paused or
# disabled endpoint, a paused pool, an open circuit.
_OLDEST = """
SELECT min(least(w.wake_at, w.due_at))
FROM waiting w
CROSS JOIN LATERAL (SELECT * FROM outbox_target its WHERE its.id = w.target_id LIMIT 1) t
LEFT JOIN outbox_endpoint e ON e.id = t.endpoint_id
JOIN capacity_dispatchpool p ON p.id = COALESCE(e.pool_id, t.pool_id)
WHERE least(w.wake_at, w.due_at) <= %(now)s AND t.open_until IS NULL AND NOT p.is_paused
  AND (e.id IS NULL OR NOT e.is_paused AND e.disabled_at IS NULL)
"""
OLDEST_DUE = f"{_WAITING_TARGETS}{_OLDEST}"
OLDEST_DUE_OF = f"""
WITH waiting AS (
    SELECT own.id AS target_id, first_group.wake_at, first_immediate.due_at
    FROM outbox_target own
    LEFT JOIN LATERAL (
        SELECT g.wake_at FROM outbox_messagegroup g
        WHERE g.organization_id = %(organization)s AND g.target_id = own.id AND g.wake_at IS NOT NULL
        ORDER BY g.wake_at LIMIT 1
    ) first_group ON true
    LEFT JOIN LATERAL (
        SELECT m.due_at FROM outbox_message m
        WHERE m.organization_id = %(organization)s AND m.target_id = own.id
          AND m.status = 'PENDING' AND m.mode = 'IMMEDIATE'
        ORDER BY m.due_at LIMIT 1
    ) first_immediate ON true
    WHERE own.organization_id = %(organization)s
){_OLDEST}"""
# Groups whose chosen message could not be claimed stay in the queue.
KEEP_WAITING = "UPDATE outbox_messagegroup SET wake_at = %(now)s WHERE id = ANY(%(ids)s::bigint[])"
# PENDING → QUEUED by compare-and-set; the unique index guarantees one ordered message in flight per group. A
# locked message is skipped.
CLAIM = f"""
WITH free AS (
    SELECT c.id, given.pool_id
    FROM unnest(%(ids)s::bigint[], %(pools)s::bigint[]) AS given(id, pool_id)
    JOIN outbox_message c ON c.id = given.id
    WHERE c.status = 'PENDING' AND NOT c.in_flight
    FOR NO KEY UPDATE OF c SKIP LOCKED
), claimed AS (
    UPDATE outbox_message m
    SET status = 'QUEUED', in_flight = true, epoch = m.epoch + 1, queued_at = %(now)s, started_at = NULL,
        lease_until = NULL, pool_id = v.pool_id, waiting_for = ''
    FROM free v
    WHERE m.id = v.id AND m.status = 'PENDING' AND NOT m.in_flight
    RETURNING m.id, m.epoch, m.mode, m.pool_id, m.group_id, m.organization_id
), appended AS (
    {EVENTS}
    SELECT organization_id, 'message.queued', 'message', id, 'system', NULL, 'Dispatch',
           jsonb_build_object('epoch', epoch), %(now)s FROM claimed
)
SELECT c.id, c.epoch, c.mode, c.group_id, p.code, g.key
FROM claimed c JOIN capacity_dispatchpool p ON p.id = c.pool_id JOIN outbox_messagegroup g ON g.id = c.group_id
"""
