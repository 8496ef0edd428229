"""The gauges of leads at /metrics, read when they are scraped. What the engine counts is in `measures`."""

from __future__ import annotations

from contextlib import suppress

from django.db.models import Count, F

from dispatch.capacity.models import DispatchPool, OutboundNumber
from dispatch.core import clock
from dispatch.core.metrics import Samples, gauge
from dispatch.core.redis import REDIS_ERRORS
from dispatch.leads import figures
from dispatch.leads.models import Lead
from dispatch.telephony.models import Call


@gauge("dispatch_leads_backlog", "Leads that wait, by the reason (none: for their time).", ("reason",))
def backlog() -> Samples:
    rows = Lead.objects.filter(status="backlog").values_list("reason").annotate(count=Count("pk")).order_by()
    return [((reason or "due",), count) for reason, count in rows]


@gauge("dispatch_leads_overdue", "Leads that wait for nothing but their turn, and are due.")
def overdue() -> Samples:
    return [((), Lead.objects.filter(status="backlog", due_at__lte=clock.now()).count())]


@gauge("dispatch_leads_processing", "Leads that are being called.")
def processing() -> Samples:
    return [((), Lead.objects.filter(status="processing").count())]


@gauge("dispatch_leads_schedule_size", "Leads in the schedule.")
def schedule_size() -> Samples:
    return [((), figures.schedule_size())]


@gauge("dispatch_leads_schedule_overdue", "Leads in the schedule whose time has come, and that are not ready yet.")
def schedule_overdue() -> Samples:
    return [((), figures.schedule_overdue())]


@gauge("dispatch_leads_ready", "Ready leads by pool.", ("pool",))
def ready() -> Samples:
    pools = DispatchPool.objects.filter(kind="calls").values_list("pk", flat=True)
    return [((str(pk),), count) for pk, count in figures.ready(pools).items()]


@gauge("dispatch_leads_dialers", "Dialers whose heart beats.")
def dialers() -> Samples:
    return [((), len(figures.held()))]


@gauge("dispatch_leads_held", "Leads that a dialer has taken, by dialer.", ("worker",))
def held() -> Samples:
    return [((worker,), count) for worker, count in figures.held().items()]


@gauge(
    "dispatch_number_lines",
    "Lines of a number: those there are, those that open calls use or leave free, and those taken in Redis.",
    ("number", "what"),
)
def lines() -> Samples:
    used = dict(Call.objects.filter(ended_at=None).values_list("number_id").annotate(count=Count("pk")).order_by())
    channels = dict(OutboundNumber.objects.values_list("pk", F("max_channels")))
    for pk, there in channels.items():
        yield (str(pk), "there"), there
        yield (str(pk), "used"), used.get(pk, 0)
        yield (str(pk), "free"), max(0, there - used.get(pk, 0))
    with suppress(*REDIS_ERRORS):
        for pk, count in figures.leased(channels).items():
            yield (str(pk), "leased"), count
