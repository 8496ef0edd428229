"""Define the gauges of leads, which are read at scrape. `counters` has the counters and histograms."""

from __future__ import annotations

import time
from contextlib import suppress

from django.db.models import Count, F, Q

from dispatch.capacity.models import DispatchPool, OutboundNumber
from dispatch.core import clock
from dispatch.core.observability.metrics import Samples, gauge
from dispatch.core.redis.client import REDIS_ERRORS
from dispatch.leads import queue_stats
from dispatch.leads.models import Lead
from dispatch.telephony.models import Call

# Counting a large backlog takes long, so its result is cached for CACHE_FACTOR times as long as it took.
CACHE_FACTOR, CACHE_FROM_S = 20, 0.05
_counted: tuple[float, list[tuple[str, int, int]]] = (0.0, [])


def _count_backlog() -> list[tuple[str, int, int]]:
    """Return (reason, waiting leads, those of them that are due), counted once for all gauges."""
    global _counted
    if time.monotonic() < _counted[0]:
        return _counted[1]
    began = time.monotonic()
    waiting = Lead.objects.filter(status="backlog").values_list("reason").order_by()
    is_due = Q(due_at__lte=clock.now())
    rows = list(waiting.annotate(count=Count("pk"), due=Count("pk", filter=is_due)))
    took_s = time.monotonic() - began
    if took_s > CACHE_FROM_S:
        _counted = time.monotonic() + CACHE_FACTOR * took_s, rows
    return rows


@gauge("dispatch_leads_backlog", "Waiting leads by reason (none: until their due time).", ("reason",))
def backlog() -> Samples:
    """Count the waiting leads, by reason."""
    return [((reason or "due",), count) for reason, count, _ in _count_backlog()]


@gauge("dispatch_leads_overdue", "Leads that are due and wait only for a line.")
def overdue() -> Samples:
    """Count the leads that are due and wait only for a line."""
    return [((), sum(due for _, _, due in _count_backlog()))]


@gauge("dispatch_leads_processing", "Leads that are being called.")
def processing() -> Samples:
    """Count the leads that are being called."""
    return [((), Lead.objects.filter(status="processing").count())]


@gauge("dispatch_leads_schedule_size", "Leads in the schedule.")
def schedule_size() -> Samples:
    """Count the leads in the schedule."""
    return [((), queue_stats.schedule_size())]


@gauge("dispatch_leads_schedule_overdue", "Leads in the schedule that are due but not ready yet.")
def schedule_overdue() -> Samples:
    """Count the leads in the schedule that are due but not ready yet."""
    return [((), queue_stats.schedule_overdue())]


@gauge("dispatch_leads_ready", "Ready leads by pool.", ("pool",))
def ready() -> Samples:
    """Count the ready leads, by pool."""
    pools = DispatchPool.objects.filter(kind="calls").values_list("pk", flat=True)
    return [((str(pk),), count) for pk, count in queue_stats.ready_leads(pools).items()]


@gauge("dispatch_leads_dialers", "Dialers with a heartbeat.")
def dialers() -> Samples:
    """Count the dialers with a heartbeat."""
    return [((), len(queue_stats.held_leads()))]


@gauge("dispatch_leads_held", "Leads claimed by a dialer, by dialer.", ("worker",))
def held() -> Samples:
    """Count the leads that dialers hold, by dialer."""
    return [((worker,), count) for worker, count in queue_stats.held_leads().items()]


@gauge(
    "dispatch_number_lines",
    "Lines of a number: all, used by open calls, free, and leased in Redis.",
    ("number", "what"),
)
def lines() -> Samples:
    """Count the lines of each number: all, used by open calls, free, and leased in Redis."""
    used = dict(Call.objects.filter(ended_at=None).values_list("number_id").annotate(count=Count("pk")).order_by())
    channels = dict(OutboundNumber.objects.values_list("pk", F("max_channels")))
    for pk, there in channels.items():
        yield (str(pk), "there"), there
        yield (str(pk), "used"), used.get(pk, 0)
        yield (str(pk), "free"), max(0, there - used.get(pk, 0))
    with suppress(*REDIS_ERRORS):
        for pk, count in queue_stats.leased_lines(channels).items():
            yield (str(pk), "leased"), count
