"""The health bar: whether the system behind the board works.

Read for each organization at most every two seconds per process, regardless of the number of pages.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from datetime import datetime

from django.conf import settings
from django.db.models import Min, Q, Sum
from rq import Worker

from accounts.models import Organization
from dispatch.capacity.models import OutboundNumber, ProviderAccount
from dispatch.core import clock
from dispatch.core.db import write_probe
from dispatch.core.events import horizon, quarantine, readers
from dispatch.core.languages import gettext as _
from dispatch.core.languages import mark
from dispatch.core.redis import state
from dispatch.core.redis.client import QUEUES, REDIS_ERRORS, client
from dispatch.core.runtime import leader_election, reachability
from dispatch.core.runtime.loops import all_loops
from dispatch.core.runtime.queues import rq_queue
from dispatch.jobs.models import OVERDUE, Job, Submission
from dispatch.telephony import services as telephony
from dispatch.telephony.models import Call
from notifications.services import push_health

CACHED_S = 2.0
# Reader of the event log → the name of its deliveries.
READERS = {"notifications": mark("notifications"), "outbox": mark("messages to endpoints")}
OUTAGES = {
    ProviderAccount.Outage.REFUSED: mark("Phone provider refuses the account: its calls and texts wait"),
    ProviderAccount.Outage.NO_ANSWER: mark("Phone provider doesn't respond: its calls and texts wait"),
}
MAX_HEALTHY_QUEUE = 100
MAX_NAMED = 2
_cached: dict[int, tuple[float, Health]] = {}


@dataclass(frozen=True)
class Health:
    """The state of the system.

    `workers` and `queued` are None if Redis is unavailable. `overdue_since`: when the oldest overdue step was
    due, None if nothing is late. `queues_without_worker`: their names. `lagging`: the readers that have not
    handled all events of the organization, in words, and `lag_s` by how many seconds they are late. `holder`:
    the database session that blocks them, or empty. `quarantined`: how many of the organization's events could
    not be processed. `given_up`: loops whose leader gave up, with the reasons. `redis_fault`: what is wrong
    with Redis, in words, or empty. `database_fault`: why PostgreSQL rejects writes, in words, or empty.
    `spend_hold`: why calls and texts wait for the spending cap, or empty. `cut_off`: the hosts that do not
    reach the phone provider although others do. `outages`: what is wrong with the provider accounts that fail, in
    words. `push_fault`: why no browser gets push notifications, or empty.
    """

    workers: int | None
    queued: int | None
    queues_without_worker: tuple[str, ...]
    overdue_since: datetime | None
    overdue_s: int
    lines: int
    free_lines: int
    lagging: tuple[str, ...] = ()
    lag_s: int = 0
    holder: str = ""
    quarantined: int = 0
    given_up: dict[str, str] = field(default_factory=dict)
    redis_fault: str = ""
    database_fault: str = ""
    spend_hold: str = ""
    cut_off: tuple[str, ...] = ()
    outages: tuple[str, ...] = ()
    push_fault: str = ""
    at: datetime = field(default_factory=clock.now)

    @property
    def workers_tone(self) -> str:
        return "bad" if not self.workers or self.queues_without_worker else ""

    @property
    def delayed(self) -> str:
        """Return what is behind the event log, in the active language."""
        return ", ".join(_(name) for name in self.lagging)

    @property
    def unserved(self) -> str:
        """Return the names of the first few queues without a worker, and the number of the others."""
        more = len(self.queues_without_worker) - MAX_NAMED
        return ", ".join(self.queues_without_worker[:MAX_NAMED]) + (
            _(" and {count} more").format(count=more) if more > 0 else ""
        )

    @property
    def queue_tone(self) -> str:
        if self.queued is None:
            return "bad"
        return "warn" if self.queued > MAX_HEALTHY_QUEUE else ""

    @property
    def lines_tone(self) -> str:
        if not self.lines:
            return "bad"
        return "warn" if self.free_lines == 0 else ""


def current_health(organization: Organization) -> Health:
    """Return the current health, at most `KEPT_S` old."""
    cached = _cached.get(organization.pk)
    if cached and time.monotonic() - cached[0] < CACHED_S:
        return cached[1]
    fresh = _read_health(organization)
    _cached[organization.pk] = (time.monotonic(), fresh)
    return fresh


def reset() -> None:
    """Clear the cache (tests)."""
    _cached.clear()


def _read_health(organization: Organization) -> Health:
    workers, queued, without = _queues()
    since = _overdue_since(organization)
    late_s = int((clock.now() - since).total_seconds()) if since else 0
    lines, in_use = count_lines(organization)
    failed = quarantine.quarantined(organization.pk)
    hold = str(telephony.spend_hold(organization.pk, "offer") or "")
    return Health(
        workers, queued, without, since, late_s, lines, max(0, lines - in_use), *_lag(organization),
        quarantined=failed, given_up=_given_up(), redis_fault=_redis_fault(), spend_hold=hold,
        database_fault=_database_fault(),
        cut_off=tuple(reachability.cut_off_hosts()), outages=_outages(organization),
        push_fault=push_health.find_fault(organization.pk),
    )  # fmt: skip


def _outages(organization: Organization) -> tuple[str, ...]:
    """Return what is wrong with the organization's provider accounts: marked texts, each once."""
    failing = ProviderAccount.objects.of(organization).filter(is_active=True).exclude(outage="")
    found = set(failing.values_list("outage", flat=True))
    return tuple(words for outage, words in OUTAGES.items() if outage in found)


def _redis_fault() -> str:
    """Return what is wrong with Redis, unless it does not respond, which `workers` shows."""
    return next((fault.words for fault in state.find_faults() if fault.words != state.AWAY), "")


def _database_fault() -> str:
    fault = write_probe.find_fault()
    return fault.words if fault else ""


def _given_up() -> dict[str, str]:
    return {name.removeprefix("loop:"): reason for name, reason in leader_election.given_up().items()}


def _lag(organization: Organization) -> tuple[tuple[str, ...], int, str]:
    all_loops()  # imports the modules that register readers
    lags = readers.lagging(organization.pk)
    behind = {name: lags[name] for name in READERS if name in lags}
    is_held = any(readers.readers[name].waits_for_horizon() for name in behind)
    holder = horizon.find_holder() if is_held else None
    return (
        tuple(READERS[name] for name in behind),
        int(max(behind.values(), default=0)),
        str(holder) if holder else "",
    )


def _queues() -> tuple[int | None, int | None, tuple[str, ...]]:
    """Return the number of live workers, the number of waiting tasks, and the queues without a worker.

    RQ's workers renew their keys. A dead worker disappears when its key expires.
    """
    try:
        alive = Worker.all(connection=client(QUEUES))
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
    oldest = [
        jobs.aggregate(oldest=Min("next_action_at"))["oldest"],
        forms.aggregate(oldest=Min("next_start_at"))["oldest"],
    ]
    return min((moment for moment in oldest if moment is not None), default=None)


def count_lines(organization: Organization) -> tuple[int, int]:
    """Return how many lines the usable numbers have, and how many of these are in use."""
    usable = OutboundNumber.objects.of(organization).filter(
        is_paused=False, account__is_active=True, pool__is_paused=False
    )
    lines = usable.aggregate(all=Sum("max_channels"))["all"] or 0
    in_use = Call.objects.of(organization).filter(Q(ended_at=None), number__in=usable.values("pk")).count()
    return lines, in_use
