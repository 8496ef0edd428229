"""What got stuck, lapsed or expired, and what is old."""

from __future__ import annotations

from dispatch.core.statements import DB_NOW, EVENTS

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

# --- What is old ---

# Ended, settled and not in flight: what order, blocks and retries look at is never among them.
FORGET = """
WITH old AS (
    SELECT id, group_id FROM outbox_message
    WHERE organization_id = %(organization)s AND ended_at < %(before)s
      AND status IN ('COMPLETED', 'CANCELLED', 'EXPIRED') AND NOT in_flight
    ORDER BY ended_at LIMIT %(limit)s FOR UPDATE SKIP LOCKED
), attempts AS (
    DELETE FROM outbox_attempt a USING old WHERE a.message_id = old.id
), gone AS (
    DELETE FROM outbox_message m USING old WHERE m.id = old.id
)
SELECT id, group_id FROM old
"""
# A group goes with its last message. Who takes a message in holds the lock of its group, so that a group that is
# locked here, and then found empty by a later statement, stays empty.
LOCK_IDLE_GROUPS = """
SELECT id FROM outbox_messagegroup
WHERE id = ANY(%(ids)s::bigint[]) AND wake_at IS NULL AND blocked_by IS NULL
ORDER BY id FOR UPDATE SKIP LOCKED
"""
FORGET_GROUPS = """
DELETE FROM outbox_messagegroup g
WHERE g.id = ANY(%(ids)s::bigint[]) AND NOT EXISTS (SELECT FROM outbox_message m WHERE m.group_id = g.id)
"""
