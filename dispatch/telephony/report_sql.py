"""Hold the SQL that applies the provider's reports on calls in groups (`services.report_groups`).

No statement waits for a lock: rows that another session has locked are left out.
"""

from __future__ import annotations

# The accounts of calls, with the encrypted tokens, before anything is locked.
SIGNERS = """
SELECT c.id, a.provider, a.account_sid, a.auth_token, a.previous_auth_token
FROM telephony_call c JOIN capacity_provideraccount a ON a.id = c.account_id
WHERE c.id = ANY(%(ids)s::bigint[])
"""

# The columns of ReportedCall, then those of the call's account.
LOCK_CALLS = """
SELECT c.id, c.organization_id, c.purpose, c.subject_id, c.attempt, c.account_id, c.pool_id, c.status, c.sid,
       c.last_sequence, c.submitted_at IS NOT NULL, c.answered_at IS NOT NULL, c.ended_at IS NOT NULL,
       c.cancel_requested_at IS NOT NULL, c.answered_by, c.keys_pressed, c.error_code,
       c.context, a.provider, a.account_sid, a.auth_token, a.previous_auth_token
FROM telephony_call c JOIN capacity_provideraccount a ON a.id = c.account_id
WHERE c.id = ANY(%(ids)s::bigint[]) ORDER BY c.id FOR NO KEY UPDATE OF c SKIP LOCKED
"""

# Which of these (account, SID) pairs belong to a call.
KNOWN_SIDS = """
SELECT c.account_id, c.sid FROM unnest(%(accounts)s::bigint[], %(sids)s::text[]) AS w (account_id, sid)
JOIN telephony_call c ON c.account_id = w.account_id AND c.sid = w.sid AND c.sid IS NOT NULL
"""

# As `unheard_calls` reads them for one call.
DOCUMENTS = """
SELECT call_id, kind FROM telephony_callevent
WHERE call_id = ANY(%(ids)s::bigint[]) AND kind IN ('voice', %(fallback)s)
"""

# Which of these keys, as (call, key of its report), were recorded before. Their webhook may not have applied them.
RECORDED = """
SELECT e.call_id, e.key FROM unnest(%(calls)s::bigint[], %(keys)s::text[]) AS w (call_id, key)
JOIN telephony_callevent e ON e.call_id = w.call_id AND e.key = w.key
"""

# A repeated report is left out of the result. Keys are applied in the same transaction, so no loop has to.
RECORD = """
INSERT INTO telephony_callevent (organization_id, call_id, key, kind, payload, at)
SELECT * FROM unnest(%(organizations)s::bigint[], %(calls)s::bigint[], %(keys)s::text[], %(kinds)s::text[],
                     %(payloads)s::jsonb[], %(moments)s::timestamptz[])
ON CONFLICT DO NOTHING RETURNING call_id, key
"""

UPDATE_CALLS = """
UPDATE telephony_call c
SET status = v.status, last_sequence = v.sequence, sid = v.sid, answered_by = v.answered_by, keys_pressed = v.keys,
    submitted_at = CASE WHEN v.is_submitted THEN coalesce(c.submitted_at, %(now)s) ELSE c.submitted_at END,
    answered_at = CASE WHEN v.is_answered THEN coalesce(c.answered_at, %(now)s) ELSE c.answered_at END,
    ended_at = CASE WHEN v.has_ended THEN coalesce(c.ended_at, %(now)s) ELSE c.ended_at END,
    hang_up_at = CASE WHEN v.has_ended AND c.ended_at IS NULL THEN NULL ELSE c.hang_up_at END,
    duration_s = CASE WHEN v.has_ended AND c.ended_at IS NULL THEN v.duration ELSE c.duration_s END
FROM unnest(%(ids)s::bigint[], %(statuses)s::text[], %(sequences)s::int[], %(sids)s::text[], %(answerers)s::text[],
            %(keys)s::text[], %(submitted)s::boolean[], %(answered)s::boolean[], %(ended)s::boolean[],
            %(durations)s::int[])
     AS v (id, status, sequence, sid, answered_by, keys, is_submitted, is_answered, has_ended, duration)
WHERE c.id = v.id
"""
