"""Run hand-written SQL for notifications."""

from __future__ import annotations

from dispatch.core.db import prepared
from dispatch.core.models import Event

_OPEN_PROBLEM = """
SELECT EXISTS (SELECT FROM notifications_alert
               WHERE organization_id = %(organization)s AND subject_type = %(type)s AND subject_id = %(id)s
                 AND status <> 'settled')
    OR EXISTS (SELECT FROM notifications_notification
               WHERE organization_id = %(organization)s AND subject_type = %(type)s AND subject_id = %(id)s
                 AND settled_at IS NULL)
    OR EXISTS (SELECT FROM notifications_claim
               WHERE organization_id = %(organization)s AND subject_type = %(type)s AND subject_id = %(id)s)
"""


def has_open_problem(event: Event) -> bool:
    """Return whether the event's subject has an open alert, an unresolved notification or an owner."""
    about = {"organization": event.organization_id, "type": event.subject_type, "id": event.subject_id}
    return bool(prepared.fetch_all(_OPEN_PROBLEM, about)[0][0])
