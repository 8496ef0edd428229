"""The health bar: whether the machine behind the board works. Read for each organization at most every two
seconds per process, however many pages look."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from datetime import datetime

from django.conf import settings
from django.db.models import Min, Q, Sum
from rq import Worker

from accounts.models import Organization
from dispatch.capacity.models import OutboundNumber
from dispatch.core import clock
from dispatch.core.queues import rq_queue
from dispatch.core.redis import REDIS_ERRORS, client
from dispatch.jobs.models import OVERDUE, Job, Submission
from dispatch.telephony.models import Call

KEPT_S = 2.0
MANY_WAITING = 100
NAMED = 2
_kept: dict[int, tuple[float, Health]] = {}


@dataclass(frozen=True)
class Health:
    """`workers` and `queued` are None while Redis is away. `overdue_since`: when the oldest thing that has not
    been moved on should have been, None when nothing is late. `queues_without_worker` by name."""

    workers: int | None
    queued: int | None
    queues_without_worker: tuple[str, ...]
    overdue_since: datetime | None
    overdue_s: int
    lines: int
    free_lines: int
    at: datetime = field(default_factory=clock.now)

    @property
    def workers_tone(self) -> str:
        return "bad" if not self.workers or self.queues_without_worker else ""

    @property
    def unserved(self) -> str:
        """The queues that nobody works on, few of them by name."""
        more = len(self.queues_without_worker) - NAMED
        return ", ".join(self.queues_without_worker[:NAMED]) + (f" and {more} more" if more > 0 else "")

    @property
    def queue_tone(self) -> str:
        if self.queued is None:
            return "bad"
        return "warn" if self.queued > MANY_WAITING else ""

    @property
    def lines_tone(self) -> str:
        if not self.lines:
            return "bad"
        return "warn" if self.free_lines == 0 else ""


def of(organization: Organization) -> Health:
    """How things stand now, or stood up to `KEPT_S` ago."""
    found = _kept.get(organization.pk)
    if found and time.monotonic() - found[0] < KEPT_S:
        return found[1]
    fresh = _read(organization)
    _kept[organization.pk] = (time.monotonic(), fresh)
    return fresh


def forget() -> None:
    """Reads anew next time (tests)."""
    _kept.clear()


def _read(organization: Organization) -> Health:
    workers, queued, without = _queues()
    since = _overdue_since(organization)
    late_s = int((clock.now() - since).total_seconds()) if since else 0
    lines, free = _lines(organization)
    return Health(workers, queued, without, since, late_s, lines, free)


def _queues() -> tuple[int | None, int | None, tuple[str, ...]]:
    """Workers alive, jobs waiting on all queues, queues nobody works on. RQ's workers renew their keys; one that
    died is forgotten when its key ends."""
    try:
        alive = Worker.all(connection=client())
        served = {name for worker in alive for name in worker.queue_names()}
        waiting = sum(rq_queue(name).count for name in settings.RQ_QUEUES)
    except REDIS_ERRORS:
        return None, None, ()
    mine = [worker for worker in alive if set(worker.queue_names()) & set(settings.RQ_QUEUES)]
    needed = [name for name in settings.RQ_QUEUES if settings.WORKERS.get(name) or rq_queue(name).count]
    return len(mine), waiting, tuple(name for name in needed if name not in served)


def _overdue_since(organization: Organization) -> datetime | None:
    past = clock.now() - OVERDUE
    jobs = Job.objects.of(organization).filter(status=Job.Status.DISPATCHING, next_action_at__lt=past)
    forms = Submission.objects.of(organization).filter(status=Submission.Status.RECEIVED, next_start_at__lt=past)
    found = [
        jobs.aggregate(oldest=Min("next_action_at"))["oldest"],
        forms.aggregate(oldest=Min("next_start_at"))["oldest"],
    ]
    return min((one for one in found if one is not None), default=None)


def _lines(organization: Organization) -> tuple[int, int]:
    """All lines of numbers in use, and those without a call, as far as their pools let them."""
    usable = OutboundNumber.objects.of(organization).filter(
        is_paused=False, account__is_active=True, pool__is_paused=False
    )
    lines = usable.aggregate(all=Sum("max_channels"))["all"] or 0
    busy = Call.objects.of(organization).filter(Q(ended_at=None), number__in=usable.values("pk")).count()
    return lines, max(0, lines - busy)
