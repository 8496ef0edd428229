"""Admit and end requests that belong to no message. They share pools, gates and targets with messages."""

from __future__ import annotations

from dispatch.core.db.prepared import DB_NOW

DIRECT_TARGETS = """
SELECT t.id, t.failures, t.openings, t.open_until, t.probe_until, t.failing_since,
       COALESCE(e.pool_id, t.pool_id), COALESCE(e.is_paused, false), e.disabled_at IS NOT NULL
FROM outbox_target t LEFT JOIN outbox_endpoint e ON e.id = t.endpoint_id
WHERE t.id = ANY(%(ids)s::bigint[])
"""
# Requests whose process died. Their slots count as free already; the rows would prevent others from taking them.
DELETE_LAPSED_DIRECT = f"""
DELETE FROM outbox_directrequest WHERE pool_id = ANY(%(pools)s::bigint[]) AND lease_until <= {DB_NOW}
"""
ADD_DIRECT = f"""
INSERT INTO outbox_directrequest (organization_id, pool_id, slot, lease_until)
SELECT v.organization_id, v.pool_id, v.slot, {DB_NOW} + make_interval(secs => v.seconds)
FROM unnest(%(organizations)s::bigint[], %(pools)s::bigint[], %(slots)s::int[], %(seconds)s::float8[])
     AS v(organization_id, pool_id, slot, seconds)
RETURNING id, pool_id, slot
"""
END_DIRECT = "DELETE FROM outbox_directrequest WHERE id = ANY(%(ids)s::bigint[])"
