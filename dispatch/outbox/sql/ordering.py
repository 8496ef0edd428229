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

# The earliest time at which a group, and an unordered message, of the target of `row` waits.
_FIRST_OF = """LEFT JOIN LATERAL (
    SELECT g.wake_at FROM outbox_messagegroup g
    WHERE g.target_id = {row} AND g.wake_at IS NOT NULL ORDER BY g.wake_at LIMIT 1
) first_group ON true
LEFT JOIN LATERAL (
    SELECT m.due_at FROM outbox_message m
    WHERE m.target_id = {row} AND m.status = 'PENDING' AND m.mode = 'IMMEDIATE' ORDER BY m.due_at LIMIT 1
) first_immediate ON true"""
# The targets for which groups or unordered messages wait, now or later, each with the earliest time, by skipping
# through two indexes: the cost depends on how many targets have something to wait for, not on how many there ever
# were, nor on how much waits for each.
_WAITING_TARGETS = """
WITH RECURSIVE group_target AS (
    (SELECT g.target_id, g.wake_at, 1 AS step FROM outbox_messagegroup g
     WHERE g.wake_at IS NOT NULL ORDER BY g.target_id, g.wake_at LIMIT 1)
    UNION ALL
    SELECT later.*, before.step + 1
    FROM group_target before CROSS JOIN LATERAL (
        SELECT g.target_id, g.wake_at FROM outbox_messagegroup g
        WHERE g.wake_at IS NOT NULL AND g.target_id > before.target_id ORDER BY g.target_id, g.wake_at LIMIT 1
    ) later {until}
), immediate_target AS (
    (SELECT m.target_id, m.due_at, 1 AS step FROM outbox_message m
     WHERE m.status = 'PENDING' AND m.mode = 'IMMEDIATE' ORDER BY m.target_id, m.due_at LIMIT 1)
    UNION ALL
    SELECT later.*, before.step + 1
    FROM immediate_target before CROSS JOIN LATERAL (
        SELECT m.target_id, m.due_at FROM outbox_message m
        WHERE m.status = 'PENDING' AND m.mode = 'IMMEDIATE' AND m.target_id > before.target_id
        ORDER BY m.target_id, m.due_at LIMIT 1
    ) later {until}
), {own} waiting AS MATERIALIZED (
    SELECT found.target_id, min(found.wake_at) AS wake_at, min(found.due_at) AS due_at
    FROM (
        SELECT target_id, wake_at, NULL::timestamptz AS due_at FROM group_target
        UNION ALL SELECT target_id, NULL, due_at FROM immediate_target
        {more}
    ) found
    GROUP BY found.target_id
)"""
# When messages of some pools are claimed, MAX_STEPS of all organizations' waiting targets are read. If there are
# more, all targets of these pools are read instead, if they are at most MAX_OWN_TARGETS. So waiting targets of
# another organization cost no more than these steps.
MAX_STEPS = 200
MAX_OWN_TARGETS = 2000
_OWN_TARGETS = f"""
own AS MATERIALIZED (
    SELECT t.id FROM outbox_target t WHERE t.pool_id = ANY(%(pools)s::bigint[])
    UNION ALL
    SELECT t.id FROM outbox_endpoint e
    CROSS JOIN LATERAL (SELECT its.id FROM outbox_target its WHERE its.endpoint_id = e.id LIMIT 1) t
    WHERE e.pool_id = ANY(%(pools)s::bigint[])
    LIMIT {MAX_OWN_TARGETS + 1}
), are_few AS MATERIALIZED (
    SELECT count(*) <= {MAX_OWN_TARGETS} AS so FROM own
),"""
# The pools' targets are counted only after this many steps.
_UNTIL = f"""
    WHERE %(pools)s::bigint[] IS NULL OR before.step < {MAX_STEPS} OR NOT (SELECT so FROM are_few)"""
_OWN_INSTEAD = f"""UNION ALL
        SELECT own.id, first_group.wake_at, first_immediate.due_at
        FROM own {_FIRST_OF.format(row="own.id")}
        WHERE CASE
            WHEN %(pools)s::bigint[] IS NULL THEN false
            WHEN (SELECT count(*) FROM group_target) < {MAX_STEPS}
                 AND (SELECT count(*) FROM immediate_target) < {MAX_STEPS} THEN false
            ELSE (SELECT so FROM are_few) END
        UNION ALL SELECT unnest(%(targets)s::bigint[]), NULL, NULL"""
TARGET_STATES = f"""{_WAITING_TARGETS.format(until=_UNTIL, own=_OWN_TARGETS, more=_OWN_INSTEAD)}
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
           COALESCE(e.is_paused OR e.disabled_at IS NOT NULL, false) AS is_held,
           COALESCE(due.wake_at <= %(now)s, false) AS has_groups,
           COALESCE(due.due_at <= %(now)s, false) AS has_immediates
    FROM (
        SELECT w.* FROM waiting w
        WHERE w.wake_at <= %(now)s OR w.due_at <= %(now)s OR w.target_id = ANY(%(targets)s::bigint[])
    ) due
    -- LIMIT, so that no plan reads the whole table.
    CROSS JOIN LATERAL (SELECT * FROM outbox_target its WHERE its.id = due.target_id LIMIT 1) t
    LEFT JOIN outbox_endpoint e ON e.id = t.endpoint_id
    WHERE %(pools)s::bigint[] IS NULL OR COALESCE(e.pool_id, t.pool_id) = ANY(%(pools)s::bigint[])
)
SELECT target.id, target.is_held, target.has_groups, target.has_immediates,
       target.failures, target.openings, target.open_until, target.probe_until, target.failing_since,
       p.id, p.concurrency, p.rate_per_minute, p.is_paused, gate.full_at,
       COALESCE(counts.in_flight, 0), COALESCE(counts.queued, 0), {DB_NOW}, target.organization_id
FROM target
JOIN capacity_dispatchpool p ON p.id = target.its_pool_id
LEFT JOIN outbox_poolgate gate ON gate.pool_id = p.id
LEFT JOIN counts ON counts.pool_id = p.id
WHERE NOT (target.is_held OR p.is_paused) OR target.id = ANY(%(targets)s::bigint[])
"""
POOLS_OF = """
SELECT DISTINCT COALESCE(e.pool_id, t.pool_id)
FROM outbox_target t LEFT JOIN outbox_endpoint e ON e.id = t.endpoint_id WHERE t.id = ANY(%(targets)s::bigint[])
"""
WAITING_GROUPS = """
SELECT g.id, g.wake_at
FROM unnest(%(targets)s::bigint[], %(headrooms)s::bigint[]) AS target(target_id, headroom)
CROSS JOIN LATERAL (
    SELECT l.id, l.wake_at FROM outbox_messagegroup l
    WHERE l.target_id = target.target_id AND l.wake_at <= %(now)s
    ORDER BY l.wake_at LIMIT target.headroom FOR UPDATE SKIP LOCKED
) g
ORDER BY g.wake_at, g.id
"""
WAITING_IMMEDIATES = """
SELECT i.id, i.due_at, target.target_id
FROM unnest(%(targets)s::bigint[], %(headrooms)s::bigint[]) AS target(target_id, headroom)
CROSS JOIN LATERAL (
    SELECT m.id, m.due_at FROM outbox_message m
    WHERE m.target_id = target.target_id AND m.status = 'PENDING' AND m.mode = 'IMMEDIATE' AND m.due_at <= %(now)s
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
NEXT_WAKE = f"""{_WAITING_TARGETS.format(until="", own="", more="")}
SELECT min(least(line.wake_at, immediate.due_at, CASE WHEN t.wake_at > %(now)s THEN t.wake_at END,
                 CASE WHEN t.due_at > %(now)s THEN t.due_at END))
FROM waiting t
LEFT JOIN LATERAL (
    SELECT g.wake_at FROM outbox_messagegroup g
    WHERE t.wake_at <= %(now)s AND g.target_id = t.target_id AND g.wake_at > %(now)s ORDER BY g.wake_at LIMIT 1
) line ON true
LEFT JOIN LATERAL (
    SELECT m.due_at FROM outbox_message m
    WHERE t.due_at <= %(now)s AND m.target_id = t.target_id
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
OLDEST_DUE = f"{_WAITING_TARGETS.format(until='', own='', more='')}{_OLDEST}"
OLDEST_DUE_OF = f"""
WITH waiting AS (
    SELECT own.id AS target_id, first_group.wake_at, first_immediate.due_at
    FROM outbox_target own {_FIRST_OF.format(row="own.id")}
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
