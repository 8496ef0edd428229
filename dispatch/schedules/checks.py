"""Settings of the schedules that contradict each other are refused at start, each with an id and a hint."""

from __future__ import annotations

from typing import Any

from django.conf import settings
from django.core.checks import CheckMessage, Error, register

# Between the end of the longest call and the end of the lease.
LEASE_MARGIN_S = 5.0


@register()
def contradictions(app_configs: Any = None, **kwargs: Any) -> list[CheckMessage]:
    """What cannot be, with the settings as they are."""
    s = settings
    job_timeout_s = s.RQ_QUEUES[s.SCHEDULE_STATUS_QUEUE]["DEFAULT_TIMEOUT"]
    wrong = [
        (
            min(s.SCHEDULE_POLL_INTERVAL_S, s.SCHEDULE_RECONCILE_INTERVAL_S) <= 0,
            "An interval of the schedules is not above 0.",
            "Set SCHEDULE_POLL_INTERVAL_S and SCHEDULE_RECONCILE_INTERVAL_S to seconds above 0.",
        ),
        (
            min(s.SCHEDULE_BATCH_SIZE, s.SCHEDULE_CHUNK_SIZE) < 1,
            "SCHEDULE_BATCH_SIZE or SCHEDULE_CHUNK_SIZE is below 1: nothing would run.",
            "Set them to 1000 and 100.",
        ),
        (
            s.OUTBOX_MAX_TIMEOUT_S + LEASE_MARGIN_S > s.SCHEDULE_LEASE_S,
            "SCHEDULE_LEASE_S is too short for OUTBOX_MAX_TIMEOUT_S: a call could be made twice.",
            f"The lease must be at least the longest call and {LEASE_MARGIN_S:g} s.",
        ),
        (
            job_timeout_s < s.OUTBOX_MAX_TIMEOUT_S + LEASE_MARGIN_S,
            "RQ_JOB_TIMEOUT_S is too short for OUTBOX_MAX_TIMEOUT_S: a worker would be stopped in a call.",
            f"It must be at least the longest call and {LEASE_MARGIN_S:g} s.",
        ),
        (
            job_timeout_s >= s.SCHEDULE_LEASE_S,
            "SCHEDULE_LEASE_S is not longer than RQ_JOB_TIMEOUT_S: runs would lapse under a living worker.",
            "Set it half as long again.",
        ),
        (
            s.SCHEDULE_STALE_AFTER_S <= 0 or s.SCHEDULE_MISSED_AFTER_S < 1,
            "SCHEDULE_STALE_AFTER_S or SCHEDULE_MISSED_AFTER_S is not above 0.",
            "Set them to 30 and 300.",
        ),
        (
            any(delay < 0 for delay in s.SCHEDULE_RETRY_SCHEDULE_S),
            "SCHEDULE_RETRY_SCHEDULE_S has a negative delay.",
            "Give seconds, as 60,300,1800.",
        ),
        (
            s.SCHEDULE_SHORTEST_INTERVAL_S < 1,
            "SCHEDULE_SHORTEST_INTERVAL_S is below 1.",
            "Set it to 10.",
        ),
    ]
    return [
        Error(what, hint=hint, id=f"dispatch.E{700 + number}")
        for number, (is_wrong, what, hint) in enumerate(wrong)
        if is_wrong
    ]
