"""The whole life of a job: form, search, call through a provider over HTTP, its webhooks, key 1, end of the call.

Web, dispatcher, workers and servers are the real processes; the provider and the clients are other processes that
are not counted. CPU time per job is the figure to compare. The idle processes' CPU time is measured beside it, and
is part of the CPU time per job at the rate of the run.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator
from typing import Any

import requests

from dispatch.jobs.models import Job, Offer
from dispatch.telephony.models import Call
from tests.benchmarks import Result, jobs_ground, jobs_load
from tests.benchmarks.jobs_site import OURS, Site, running
from tests.benchmarks.measuring import median_and_spread, percentile
from tests.benchmarks.processes import kinds_of
from tests.benchmarks.table_statistics import ANALYZED, UNANALYZED, analyze, switch_autovacuum_off
from tests.benchmarks.whole_counts import counted, statements
from tests.benchmarks.whole_provider import asked_at
from tests.support.waiting import wait_until

RATE, OVER_S, RUNS = 5, 12.0, 3
FAST, FAST_S = 30, 8.0
COUNTED = 40
IDLE_S = 20.0
LONGEST_S = 90.0


def run() -> Iterator[Result]:
    tenants = jobs_ground.tenants(provider="twilio")
    switch_autovacuum_off()
    with running(workers=OURS, dispatcher=True, provider=True) as site:
        _live(site, tenants, 10, 3.0)  # every process has done its work before it is measured
        yield from idle(site)
        for state in (UNANALYZED, ANALYZED):
            if state == ANALYZED:
                analyze()
            yield from at_rate(site, tenants, RATE, OVER_S, state)
        yield from at_rate(site, tenants, FAST, FAST_S, ANALYZED)
        yield from counts(site, tenants)


def idle(site: Site) -> Iterator[Result]:
    """CPU of all processes while nothing happens, as a share of one core."""
    spent = []
    for _ in range(RUNS):
        with site.meter_ours() as meter:
            time.sleep(IDLE_S)
        spent.append({kind: 100 * seconds / IDLE_S for kind, seconds in kinds_of(meter.spent).items()})
    total = [sum(kinds.values()) for kinds in spent]
    yield from median_and_spread("idle, all processes", total, "% of a core", "<= 3")
    for kind in spent[0]:
        yield from median_and_spread(f"  of which {kind}", [one[kind] for one in spent], "% of a core")


def at_rate(
    site: Site, tenants: list[jobs_ground.Tenant], rate: int, seconds: float, state: str, runs: int = RUNS
) -> Iterator[Result]:
    """Whole lives at a steady rate: CPU per job, and the time from the form to the first call request."""
    spent, medians, late, per_second = [], [], [], []
    for _ in range(runs):
        with site.meter_ours() as meter:
            load, ended_after_s = _live(site, tenants, rate, seconds)
        spent.append({kind: 1000 * cpu / len(load.sent) for kind, cpu in kinds_of(meter.spent).items()})
        took = sorted(1000 * (moment - load.sent[pk]) for pk, moment in _asked(list(load.sent)).items())
        medians.append(percentile(took, 0.5))
        late.append(percentile(took, 0.99))
        per_second.append(len(load.sent) / ended_after_s)
    what = f"{rate}/s, {state}"
    yield from median_and_spread(
        f"{what}: CPU for a whole job", [sum(one.values()) for one in spent], "ms", "<= 50"
    )
    for kind in spent[0]:
        yield from median_and_spread(f"  of which {kind}", [one[kind] for one in spent], "ms")
    yield from median_and_spread(f"{what}: form to first call, median", medians, "ms", "<= 100")
    yield from median_and_spread(f"{what}: form to first call, p99", late, "ms", "<= 400")
    yield from median_and_spread(f"{what}: whole jobs, first form to last end", per_second, "jobs/s")


def counts(site: Site, tenants: list[jobs_ground.Tenant]) -> Iterator[Result]:
    """What a job takes from the servers. Idle loops count as well, at this rate."""
    with counted() as numbers:
        load, _ = _live(site, tenants, RATE, COUNTED / RATE)
    yield Result("commits for a whole job", numbers.commits / len(load.sent), "commits")
    yield Result("PostgreSQL's log for a whole job", numbers.wal_bytes / len(load.sent) / 1024, "KiB")
    yield Result("Redis commands for a whole job", numbers.redis_commands / len(load.sent), "commands")
    with statements() as found:
        load, _ = _live(site, tenants, RATE, COUNTED / RATE)
    yield from statements_per_unit(found, len(load.sent), "a whole job")


def statements_per_unit(found: Counter[tuple[str, str]], count: int, unit: str) -> Iterator[Result]:
    """Statements for a unit, by kind of process."""
    kinds: Counter[str] = Counter()
    for (who, _), times in found.items():
        if not who.startswith("dispatch-") and who not in ("", "dispatch"):
            kinds[who.rstrip(" 0123456789")] += times
    yield Result(f"SQL statements for {unit}", kinds.total() / count, "statements")
    for kind, times in kinds.most_common():
        yield Result(f"  of which {kind}", times / count, "statements")


def _live(
    site: Site, tenants: list[jobs_ground.Tenant], rate: int, seconds: float
) -> tuple[jobs_load.Load, float]:
    """Submit forms and wait until each job is assigned and its call over. Return the load and how long it took."""
    load = jobs_load.steadily(site.base_url, tenants, per_second=rate, seconds=seconds)
    assert not load.failures, load.refused
    wait_until(lambda: _ended(list(load.sent)) == len(load.sent), LONGEST_S, lambda: provider_state(site), 0.25)
    last = _calls(list(load.sent)).latest("ended_at").ended_at
    return load, last.timestamp() - load.began


def _ended(submission_ids: list[int]) -> int:
    assigned = Job.objects.filter(submission_id__in=submission_ids, status="assigned").count()
    return min(assigned, _calls(submission_ids).filter(ended_at__isnull=False).count())


def _calls(submission_ids: list[int]) -> Any:
    """Select the calls of the first offers. One query for each table: a join would be slow without statistics."""
    jobs = list(Job.objects.filter(submission_id__in=submission_ids).values_list("pk", flat=True))
    offers = list(Offer.objects.filter(job_id__in=jobs, attempt=1).values_list("pk", flat=True))
    return Call.objects.filter(purpose="offer", subject_id__in=offers)


def _asked(submission_ids: list[int]) -> dict[int, float]:
    """When the first call was requested (Unix seconds), by submission."""
    offers = Offer.objects.filter(job__submission_id__in=submission_ids, attempt=1)
    of = dict(offers.values_list("pk", "job__submission_id"))
    return {of[call.subject_id]: asked_at(call.sid) for call in _calls(submission_ids)}


def provider_state(site: Site) -> str:
    """What the provider has seen, for a message."""
    return requests.get(f"{site.provider_url}/control/state", timeout=10).text
