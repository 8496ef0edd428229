"""Accept messages, apply user actions, and count messages."""

from __future__ import annotations

from dispatch.core.db.prepared import EVENTS

# --- Intake ---------------------------------------------------------------------------

NEW_IDS = """
SELECT nextval(pg_get_serial_sequence('outbox_message', 'id')) FROM generate_series(1, %(count)s::int)
"""
# Two lists with the same keys are inserted in the same order: otherwise each would wait for the other.
ADD_MESSAGES = f"""
WITH added AS (
    INSERT INTO outbox_message
        (id, organization_id, endpoint_id, target_id, url, type, payload, group_id, sequence, mode, status,
         scheduled_for, expires_at, idempotency_key, event_id, created_at, due_at, epoch, attempts, calls, lapses,
         in_flight, last_error, waiting_for, resolution, webhook_id, replays)
    SELECT v.id, v.organization_id, v.endpoint_id, v.target_id, v.url, v.type, v.payload, v.group_id, v.sequence,
           v.mode, 'PENDING', v.scheduled_for, v.expires_at, v.idempotency_key, v.event_id, %(now)s,
           COALESCE(v.scheduled_for, %(now)s), 0, 0, 0, 0, false, '', '', '', v.webhook_id, 0
    FROM unnest(%(ids)s::bigint[], %(organizations)s::bigint[], %(endpoints)s::bigint[], %(targets)s::bigint[],
                %(urls)s::text[], %(types)s::text[], %(payloads)s::text[], %(groups)s::bigint[],
                %(sequences)s::int[], %(modes)s::text[], %(schedules)s::timestamptz[], %(expiries)s::timestamptz[],
                %(keys)s::text[], %(events)s::bigint[], %(webhook_ids)s::text[])
         AS v(id, organization_id, endpoint_id, target_id, url, type, payload, group_id, sequence, mode,
              scheduled_for, expires_at, idempotency_key, event_id, webhook_id)
    ORDER BY v.idempotency_key COLLATE "C", v.id
    ON CONFLICT DO NOTHING
    RETURNING id, organization_id, type, endpoint_id
), appended AS (
    {EVENTS}
    SELECT organization_id, 'message.created', 'message', id, a.actor_type, a.actor_id, a.actor_label,
           jsonb_strip_nulls(jsonb_build_object('type', type, 'endpoint_id', endpoint_id)), %(now)s
    FROM added
    JOIN unnest(%(ids)s::bigint[], %(actor_types)s::text[], %(actor_ids)s::bigint[], %(actor_labels)s::text[])
         AS a(id, actor_type, actor_id, actor_label) USING (id)
    ORDER BY id
)
SELECT id FROM added
"""

# --- User actions ---------------------------------------------------------------------

LOCK_MESSAGES = """
SELECT id, status FROM outbox_message WHERE id = ANY(%(ids)s::bigint[]) ORDER BY id FOR UPDATE
"""
APPLY_ACTION = f"""
WITH changed AS (
    UPDATE outbox_message
    SET status = %(status)s, resolution = %(resolution)s,
        attempts = CASE WHEN %(fresh)s THEN 0 ELSE attempts END, lapses = CASE WHEN %(fresh)s THEN 0 ELSE lapses
        END,
        deferred_since = CASE WHEN %(fresh)s THEN NULL ELSE deferred_since END,
        -- A message that has expired gets its lifetime again. Its new schedule is where that lifetime begins, so
        -- the lifetime stays the same however often it is renewed.
        expires_at = CASE WHEN %(fresh)s AND expires_at <= %(now)s
                          THEN %(now)s + (expires_at - COALESCE(scheduled_for, created_at)) ELSE expires_at END,
        scheduled_for = CASE WHEN %(fresh)s AND expires_at <= %(now)s THEN %(now)s ELSE scheduled_for END,
        due_at = CASE WHEN %(fresh)s THEN %(now)s ELSE due_at END,
        ended_at = CASE WHEN %(fresh)s THEN NULL ELSE %(now)s END,
        -- An attempt in progress keeps its group, slot and lease; an attempt that has not started never does.
        in_flight = (in_flight AND status = 'PROCESSING'), waiting_for = '',
        replays = replays + CASE WHEN %(replay)s THEN 1 ELSE 0 END,
        replayed_at = CASE WHEN %(replay)s THEN %(now)s ELSE replayed_at END
    WHERE id = ANY(%(ids)s::bigint[]) AND status = ANY(%(from)s::text[])
      -- An attempt of a canceled message may be in progress; what was erased must not be sent.
      AND (NOT %(replay)s OR NOT in_flight)
      -- An error without its text was erased before this was recorded.
      AND (NOT %(fresh)s OR erased_at IS NULL AND NOT (status = 'ERROR' AND payload = '{{}}' AND last_error = ''))
    RETURNING id, organization_id, endpoint_id, group_id, mode
), unblocked AS (
    -- Groups whose last BLOCK error this is.
    {EVENTS}
    SELECT DISTINCT u.organization_id, 'group.unblocked', 'group', u.group_id, %(actor_type)s,
           %(actor_id)s::bigint, %(actor_label)s,
           jsonb_strip_nulls(jsonb_build_object('endpoint_id', u.endpoint_id)), %(now)s
    FROM changed u
    WHERE u.mode = 'BLOCK_ON_ERROR' AND %(from)s::text[] = '{{ERROR}}'::text[]
      AND NOT EXISTS (SELECT FROM outbox_message o
                      WHERE o.group_id = u.group_id AND o.status IN ('PENDING', 'ERROR')
                        AND o.status = 'ERROR' AND o.mode = 'BLOCK_ON_ERROR'
                        AND o.id <> ALL(ARRAY(SELECT id FROM changed)))
), appended AS (
    {EVENTS}
    SELECT organization_id, %(kind)s, 'message', id, %(actor_type)s, %(actor_id)s::bigint, %(actor_label)s,
           jsonb_strip_nulls(jsonb_build_object('status', %(status)s::text, 'note', NULLIF(%(note)s, ''),
                                                'endpoint_id', endpoint_id)), %(now)s
    FROM changed
)
SELECT id FROM changed
"""

# --- Counts ---------------------------------------------------------------------------

# Each count stops at the limit: a disabled endpoint may gather millions, and this is read at every scrape.
OPEN_BY_STATUS = """
SELECT 'PENDING', count(*) FROM (
    SELECT FROM outbox_message WHERE status = 'PENDING' AND mode <> 'IMMEDIATE' LIMIT %(limit)s) p
UNION ALL
SELECT 'ERROR', count(*) FROM (SELECT FROM outbox_message WHERE status = 'ERROR' LIMIT %(limit)s) e
UNION ALL
SELECT 'PENDING without order', count(*) FROM (
    SELECT FROM outbox_message WHERE status = 'PENDING' AND mode = 'IMMEDIATE' LIMIT %(limit)s) i
UNION ALL
SELECT status, count(*) FROM outbox_message WHERE in_flight AND pool_id IS NOT NULL GROUP BY status
"""
