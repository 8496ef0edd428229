"""Hand-written SQL for the answers to offers, which callers wait for."""

from __future__ import annotations

from datetime import datetime

from dispatch.core.db import fast_rows, prepared
from dispatch.jobs.models import Offer
from dispatch.telephony.models import Call

_JOB = """
SELECT o.job_id, EXISTS (
    SELECT FROM telephony_call c WHERE c.id = %s AND c.purpose = 'offer' AND c.subject_id = o.id
) FROM jobs_offer o WHERE o.id = %s
"""
_HAS_OTHERS = "SELECT EXISTS (SELECT FROM jobs_offer WHERE job_id = %s AND id <> %s)"
_OTHER_CALLS = """
t.purpose = 'offer' AND t.subject_id = ANY(ARRAY(SELECT id FROM jobs_offer WHERE job_id = %s AND id <> %s))
"""
# Partial indexes on the status cannot be used (see `services.transitions`).
_CLOSE = """
UPDATE jobs_offer SET status = %s, outcome = %s, reason = %s, settled_at = %s WHERE id = %s AND status || '' = %s
"""


def find_job(offer_id: int, call_id: int | None) -> tuple[int, bool]:
    """Return the id of the offer's job, and whether the call is about the offer. Raises Offer.DoesNotExist."""
    rows = prepared.fetch_all(_JOB, [call_id or 0, offer_id])
    if not rows:
        raise Offer.DoesNotExist(f"Offer {offer_id} does not exist.")
    return rows[0][0], rows[0][1]


def has_other_offers(job_id: int, offer_id: int) -> bool:
    """Return whether the job has had offers besides this one."""
    return bool(prepared.fetch_all(_HAS_OTHERS, [job_id, offer_id])[0][0])


def other_open_calls(job_id: int, offer_id: int) -> list[Call]:
    """Return the open calls about the job's other offers, oldest first."""
    calls = fast_rows.fetch_many(Call, _OTHER_CALLS, [job_id, offer_id])
    return sorted((call for call in calls if call.ended_at is None), key=lambda call: call.pk)


def close_offer(offer_id: int, before: str, *, status: str, outcome: str, reason: str, now: datetime) -> bool:
    """Close the offer if its status is `before`. Return whether it was."""
    values = [str(status), str(outcome), reason, now, offer_id, str(before)]
    return prepared.execute_rowcount(_CLOSE, values) > 0
