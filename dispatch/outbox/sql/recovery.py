"""Find stuck, lapsed and expired messages, and delete old ones."""

from __future__ import annotations

from dispatch.core.db.prepared import DB_NOW, EVENTS

# Find the messages to recover and lock their groups; groups that are locked already are left for a later pass.
STALE = f"""
SELECT m.id, m.epoch, m.group_id, m.mode FROM outbox_message m JOIN outbox_messagegroup g ON g.id = m.group_id
WHERE m.status = 'QUEUED' AND m.queued_at <= %(before)s AND (m.held_until IS NULL OR m.held_until <= {DB_NOW})
ORDER BY m.queued_at LIMIT %(limit)s FOR UPDATE OF g SKIP LOCKED
"""
LAPSED = f"""
SELECT m.id, m.group_id, m.mode FROM outbox_message m JOIN outbox_messagegroup g ON g.id = m.group_id
WHERE m.in_flight AND m.lease_until IS NOT NULL AND m.lease_until <= {DB_NOW}
ORDER BY m.lease_until LIMIT %(limit)s FOR UPDATE OF g SKIP LOCKED
"""
LOCK_LAPSED = f"""
SELECT id, epoch, status, calls, lapses, organization_id, started_at FROM outbox_message
WHERE id = ANY(%(ids)s::bigint[]) AND in_flight AND lease_until <= {DB_NOW}
ORDER BY id FOR UPDATE SKIP LOCKED
"""
# The SQL condition that a pointer may be lost, a lease has lapsed or a message expires.
MAY_NEED_RECOVERY = f"""(
    EXISTS (SELECT FROM outbox_message WHERE status = 'QUEUED')
    OR EXISTS (
        SELECT FROM outbox_message WHERE in_flight AND lease_until IS NOT NULL AND lease_until <= {DB_NOW}
    )
    OR EXISTS (
        SELECT FROM outbox_message WHERE status = 'PENDING' AND expires_at IS NOT NULL AND expires_at <= %(now)s
    )
)"""
EXPIRED = """
SELECT m.id, m.group_id, m.mode FROM outbox_message m JOIN outbox_messagegroup g ON g.id = m.group_id
WHERE m.status = 'PENDING' AND m.expires_at IS NOT NULL AND m.expires_at <= %(now)s
ORDER BY m.expires_at LIMIT %(limit)s FOR UPDATE OF g SKIP LOCKED
"""
EXPIRE = f"""
WITH ended AS (
    UPDATE outbox_message SET status = 'EXPIRED', ended_at = %(now)s
    WHERE id = ANY(%(ids)s::bigint[]) AND status = 'PENDING' AND expires_at <= %(now)s
    RETURNING id, organization_id
), appended AS (
    {EVENTS}
    SELECT organization_id, 'message.expired', 'message', id, 'system', NULL, 'Dispatch', '{{}}'::jsonb, %(now)s
    FROM ended
)
SELECT id FROM ended
"""
# The next groups with waiting messages, and whether each should be queued but is not. None is expected: only a bug
# or a manual edit causes it. Skipping through an index finds the groups, a limited number at a time, so that
# the cost does not depend on how many messages wait.
OPEN_GROUPS = """
WITH RECURSIVE waiting AS (
    (SELECT m.group_id, 1 AS number FROM outbox_message m
     WHERE m.group_id > %(after)s AND m.status = 'PENDING' AND m.mode <> 'IMMEDIATE'
     ORDER BY m.group_id LIMIT 1)
    UNION ALL
    SELECT (SELECT m.group_id FROM outbox_message m
            WHERE m.group_id > before.group_id AND m.status = 'PENDING' AND m.mode <> 'IMMEDIATE'
            ORDER BY m.group_id LIMIT 1), before.number + 1
    FROM waiting before WHERE before.group_id IS NOT NULL AND before.number < %(limit)s
)
SELECT g.id, g.wake_at IS NULL AND g.blocked_by IS NULL
             AND NOT EXISTS (SELECT FROM outbox_message f
                             WHERE f.group_id = g.id AND f.in_flight AND f.mode <> 'IMMEDIATE')
FROM waiting JOIN outbox_messagegroup g ON g.id = waiting.group_id
ORDER BY g.id
"""
QUEUED_NOW = """
SELECT m.id, m.epoch, m.mode, m.group_id, p.code, g.key, m.queued_at
FROM outbox_message m JOIN capacity_dispatchpool p ON p.id = m.pool_id
JOIN outbox_messagegroup g ON g.id = m.group_id
WHERE m.status = 'QUEUED' AND m.id > %(after)s ORDER BY m.id LIMIT %(limit)s
"""

QUEUED_BEFORE = f"""
SELECT m.id, m.epoch, m.mode, m.group_id, p.code, g.key, m.queued_at
FROM outbox_message m JOIN capacity_dispatchpool p ON p.id = m.pool_id
JOIN outbox_messagegroup g ON g.id = m.group_id
WHERE m.status = 'QUEUED' AND m.queued_at <= %(before)s AND m.id > %(after)s
  AND (m.held_until IS NULL OR m.held_until <= {DB_NOW})
ORDER BY m.id LIMIT %(limit)s
"""
# Record that this router has the pointers of these messages, which wait for the share of their organization.
HOLD_QUEUED = f"""
UPDATE outbox_message SET held_until = {DB_NOW} + make_interval(secs => %(seconds)s::float8)
WHERE id = ANY(ARRAY(
    SELECT m.id FROM outbox_message m
    JOIN unnest(%(ids)s::bigint[], %(epochs)s::int[]) AS v(id, epoch) ON v.id = m.id AND v.epoch = m.epoch
    WHERE m.id = ANY(%(ids)s::bigint[]) AND COALESCE(m.status, '') = 'QUEUED'
    ORDER BY m.id FOR NO KEY UPDATE OF m SKIP LOCKED
))
"""
# The shortest time that a message spent on the queue, in seconds, among recently started attempts in progress.
# Those that started when they were claimed passed no queue.
QUEUE_LAG = """
SELECT min(extract(epoch FROM started_at - queued_at))::float8 FROM outbox_message
WHERE in_flight AND pool_id IS NOT NULL AND status = 'PROCESSING' AND started_at > %(since)s
  AND started_at <> queued_at
"""

# --- Retention ---

# Messages that have ended and are not in flight: order, blocks and retries never depend on these.
DELETE_ENDED = """
WITH old AS (
    SELECT id, group_id FROM outbox_message
    WHERE organization_id = %(organization)s AND ended_at < %(before)s
      AND status IN ('COMPLETED', 'CANCELLED', 'EXPIRED') AND NOT in_flight
    ORDER BY ended_at LIMIT %(limit)s FOR UPDATE SKIP LOCKED
), attempts AS (
    DELETE FROM outbox_attempt WHERE message_id = ANY(ARRAY(SELECT id FROM old))
), gone AS (
    DELETE FROM outbox_message WHERE id = ANY(ARRAY(SELECT id FROM old))
)
SELECT id, group_id FROM old
"""
# A group is deleted with its last message. Intake locks the group, so a group that is locked here, and then
# found empty by a later statement, stays empty.
LOCK_IDLE_GROUPS = """
SELECT id FROM outbox_messagegroup
WHERE id = ANY(%(ids)s::bigint[]) AND wake_at IS NULL AND blocked_by IS NULL
ORDER BY id FOR UPDATE SKIP LOCKED
"""
DELETE_EMPTY_GROUPS = """
DELETE FROM outbox_messagegroup g
WHERE g.id = ANY(%(ids)s::bigint[]) AND NOT EXISTS (SELECT FROM outbox_message m WHERE m.group_id = g.id)
"""
