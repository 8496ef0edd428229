"""How late leads are asked for, beside many that are due later; and what those cost while nothing is due."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from typing import Any

from django.db import connection

from dispatch.core.redis import generation
from dispatch.core.redis.client import client
from dispatch.leads import redis_queue
from dispatch.leads.models import Lead
from dispatch.telephony.models import Call
from tests.benchmarks import Result, leads_ground, noop_provider
from tests.benchmarks.leads_site import LONGEST_S, finished, running
from tests.benchmarks.measuring import percentile
from tests.benchmarks.table_statistics import (
    ANALYZED,
    UNANALYZED,
    switch_autovacuum_off,
    switch_autovacuum_on,
)
from tests.conftest import forget_redis
from tests.support.waiting import wait_until

FAR_S = 30 * 86_400.0
# How many far ones; BENCH_FAR names one or both, for a machine that is only free for minutes at a time.
FAR = [int(count) for count in os.environ.get("BENCH_FAR", "200000,1000000").split(",")]
# Each window is measured by itself: what disturbs the machine for a moment spoils one of them.
LAGGING, OVER_S, WINDOWS = 500, 10.0, 3
IDLE_S = 20.0
TARGETS = "<= 0.6", "<= 3"  # ms: median and 99th percentile
LOOPS = "redis_generation,leads_promoter,leads_dialer,leads_near,leads_sweep,leads_workers,leads_stale"


def run() -> Iterator[Result]:
    found = []
    switch_autovacuum_off()
    yield from lag(FAR[0], *TARGETS, UNANALYZED)
    with connection.cursor() as cursor:
        cursor.execute("TRUNCATE leads_lead CASCADE")
    switch_autovacuum_on()
    for far in FAR:
        found.append((yield from lag(far, *TARGETS)))
    if len(found) == 2:
        (median, late), (more, later) = found
        name = f"{FAR[1]:,} far ones against {FAR[0]:,}"
        yield Result(f"due lag, median: {name}", more / median, "times", "<= 1.5")
        yield Result("due lag, 99th percentile: the same", later / late, "times", "<= 1.5")


def lag(far: int, median_target: str, late_target: str, state: str = ANALYZED) -> Any:
    """Measure the time from the due time of leads to the call request, among `far` leads that are due later.

    Also the Redis memory per scheduled lead and the cost of idling. The leads are spread over ten seconds. Returns
    (median, 99th percentile) in ms, each of the middle window.
    """
    (tenant,) = leads_ground.tenants("noop-ends", 1)
    forget_redis()
    generation.ensure_generation()
    before = client().info("memory")["used_memory"]  # type: ignore[index]
    for start in range(0, far, 100_000):
        leads_ground.put(leads_ground.add_leads(tenant, min(100_000, far - start), due_in_s=FAR_S, step_s=0.1))
    used = client().info("memory")["used_memory"] - before  # type: ignore[index]
    leads_ground.settle_down(state)
    yield Result(f"Redis for a scheduled lead, {far:,}, {state}", used / far, "bytes", "<= 120")
    with running(1, LOOPS) as meter:
        warm = leads_ground.add_leads(tenant, 50, due_in_s=0.5, step_s=0.02)
        leads_ground.put(warm)
        wait_until(lambda: finished([entry.lead_id for entry in warm]) == len(warm), LONGEST_S)
        # The whole backlog is compared once; from then on slowly.
        wait_until(
            lambda: redis_queue.swept_generation() == generation.current_generation(), LONGEST_S, interval=0.5
        )
        threading.Event().wait(2)
        with meter:
            threading.Event().wait(IDLE_S)
        idle = sum(spent for name, spent in meter.spent.items() if name.startswith("dialer")) / IDLE_S
        yield Result(f"CPU of an idle dispatcher, {far:,} scheduled, {state}", idle * 100, "% of a core", "< 2")
        windows = [_window(tenant) for _ in range(WINDOWS)]
    median, late = (percentile(sorted(percentile(lags, share) for lags in windows), 0.5) for share in (0.5, 0.99))
    yield Result(f"due lag, median, {far:,} far ones, {state}", median, "ms", median_target)
    yield Result(f"due lag, 99th percentile, {far:,} far ones, {state}", late, "ms", late_target)
    for which, pick in (("best", min), ("worst", max)):
        one = pick(percentile(lags, 0.99) for lags in windows)
        yield Result(f"  of the {which} of {WINDOWS} windows", one, "ms")
    yield Result("  called early", sum(one < 0 for lags in windows for one in lags), "leads", "<= 0")
    return median, late


def _window(tenant: leads_ground.Tenant) -> list[float]:
    """How late each was asked for (ms), the least first, of leads that are due one after another."""
    entries = leads_ground.add_leads(tenant, LAGGING, due_in_s=2.0, step_s=OVER_S / LAGGING)
    leads_ground.put(entries)
    ids = [entry.lead_id for entry in entries]
    wait_until(lambda: finished(ids) == len(ids), LONGEST_S, interval=0.5)
    due = {pk: moment.timestamp() for pk, moment in Lead.objects.filter(pk__in=ids).values_list("pk", "due_at")}
    asked = Call.objects.filter(purpose="lead", subject_id__in=ids).values_list("subject_id", "sid")
    return sorted((noop_provider.asked_at(sid) - due[lead]) * 1000 for lead, sid in asked)
