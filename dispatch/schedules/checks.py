"""Check the settings of schedules for contradictions; each check has an id and a hint."""

from __future__ import annotations

from typing import Any

from django.conf import settings
from django.core.checks import CheckMessage, Error, register

# Time between the end of the longest call and the end of the lease.
LEASE_MARGIN_S = 5.0


@register()
def contradictions(app_configs: Any = None, **kwargs: Any) -> list[CheckMessage]:
    """Return a check message for each contradiction in the settings."""
    s = settings
    job_timeout_s = s.RQ_QUEUES[s.SCHEDULE_STATUS_QUEUE]["DEFAULT_TIMEOUT"]
    rules = [
        (
            min(s.SCHEDULE_POLL_INTERVAL_S, s.SCHEDULE_RECONCILE_INTERVAL_S) <= 0,
            "SCHEDULE_POLL_INTERVAL_S or SCHEDULE_RECONCILE_INTERVAL_S is not greater than 0.",
            "Set both to more than 0.",
        ),
        (
            min(s.SCHEDULE_BATCH_SIZE, s.SCHEDULE_CHUNK_SIZE) < 1,
            "SCHEDULE_BATCH_SIZE or SCHEDULE_CHUNK_SIZE is below 1, so nothing would run.",
            "Set them to 1000 and 100.",
        ),
        (
            s.OUTBOX_MAX_TIMEOUT_S + LEASE_MARGIN_S > s.SCHEDULE_LEASE_S,
            "SCHEDULE_LEASE_S is too short for OUTBOX_MAX_TIMEOUT_S: a URL could be called twice.",
            f"Set it to at least {s.OUTBOX_MAX_TIMEOUT_S + LEASE_MARGIN_S:g}.",
        ),
        (
            job_timeout_s < s.OUTBOX_MAX_TIMEOUT_S + LEASE_MARGIN_S,
            "RQ_JOB_TIMEOUT_S is too short for OUTBOX_MAX_TIMEOUT_S: a worker could be stopped during a request.",
            f"Set it to at least {s.OUTBOX_MAX_TIMEOUT_S + LEASE_MARGIN_S:g}.",
        ),
        (
            job_timeout_s >= s.SCHEDULE_LEASE_S,
            "SCHEDULE_LEASE_S is not longer than RQ_JOB_TIMEOUT_S: leases would expire while a worker is running.",
            f"Set it to {1.5 * job_timeout_s:g}, 1.5 times RQ_JOB_TIMEOUT_S.",
        ),
        (
            s.SCHEDULE_STALE_AFTER_S <= 0 or s.SCHEDULE_MISSED_AFTER_S < 1,
            "SCHEDULE_STALE_AFTER_S or SCHEDULE_MISSED_AFTER_S is not greater than 0.",
            "Set them to 30 and 300.",
        ),
        (
            any(delay < 0 for delay in s.SCHEDULE_RETRY_SCHEDULE_S),
            "SCHEDULE_RETRY_SCHEDULE_S contains a negative delay.",
            "Use seconds, for example 60,300,1800.",
        ),
        (
            s.SCHEDULE_SHORTEST_INTERVAL_S < 1,
            "SCHEDULE_SHORTEST_INTERVAL_S is below 1.",
            "Set it to 10.",
        ),
    ]
    return [
        Error(problem, hint=hint, id=f"dispatch.E{700 + number}")
        for number, (is_wrong, problem, hint) in enumerate(rules)
        if is_wrong
    ]
