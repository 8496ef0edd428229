"""The main job from the form to the first phone call: near search, HTTP, queue, workers, provider.

Web, dispatcher and workers are the real processes that `make up` runs. "First call asked for" is counted from the
moment the client begins to send the form; with the no-op provider to the moment the provider is asked, through the
simulator to the moment its answer is in the database. `forking RQ` is the same functions on as many plain
`rq.Worker`s, each forking for every job.
"""

from __future__ import annotations

import random
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from django.db import connection

from dispatch.core.redis.client import client
from dispatch.jobs.models import Offer
from dispatch.telephony.models import Call
from tests.benchmarks import Result, jobs_ground, jobs_load, noop_provider, technicians
from tests.benchmarks.jobs_site import FORKING, OURS, Site, running
from tests.benchmarks.measuring import median_and_spread, percentile
from tests.benchmarks.processes import kinds_of
from tests.support.waiting import wait_until

CLIENTS, ACCEPT_S = 8, 10.0
RATE, STEADY_S = 50, 30.0
SIMULATED_RATE, SIMULATED_S = 10, 20.0
RUNS = 3
LONGEST_S = 90.0  # what has not been called by then is counted as not called
PEERS = {OURS: "", FORKING: "forking RQ"}


def run() -> Iterator[Result]:
    yield from near()
    yield from from_full_queue(OURS, with_http=True)
    yield from from_full_queue(FORKING)
    for workers, runs in ((OURS, RUNS), (FORKING, 1)):
        yield from to_first_call(workers, RATE, STEADY_S, provider=noop_provider.NAME, runs=runs)
    for workers in (OURS, FORKING):
        yield from to_first_call(workers, SIMULATED_RATE, SIMULATED_S, provider="twilio")


def near() -> Iterator[Result]:
    """One organization among many, 100,000 technicians in one metropolis (more in the suite `technicians`)."""
    chance = random.Random(5)
    small, _ = technicians.people(chance)
    who = "one of 200 organizations, 400 technicians"
    yield from technicians.near(who, lambda: chance.choice(small), 400, chance, ("<= 5", ""))


def from_full_queue(workers: str, *, with_http: bool = False) -> Iterator[Result]:
    """Submissions as fast as the web process takes them with nobody working them off; then workers alone."""
    _forget_earlier_jobs()
    peer, tenants = PEERS[workers], _tenants(noop_provider.NAME)
    with running(dispatcher=False) as site:
        jobs_load.flat_out(site.base_url, tenants, clients=CLIENTS, seconds=1)  # warm
        loads, spent = [], []
        for _ in range(RUNS if with_http else 1):
            with site.meter() as meter:
                loads.append(jobs_load.flat_out(site.base_url, tenants, clients=CLIENTS, seconds=ACCEPT_S))
            spent.append({kind: 1000 * cpu / len(loads[-1].sent) for kind, cpu in kinds_of(meter.spent).items()})
    if with_http:
        rates = [load.per_second for load in loads]
        yield from median_and_spread(f"submissions accepted, {CLIENTS} clients", rates, "submissions/s", ">= 400")
        took = [sorted(load.answer_times_ms()) for load in loads]
        for title, share in (("median", 0.5), ("99th percentile", 0.99)):
            yield from median_and_spread(
                f"  answered 202, {title}", [percentile(one, share) for one in took], "ms"
            )
        yield Result("  refused or failed", sum(load.failures for load in loads), "submissions", "<= 0")
        for kind in spent[0]:
            yield from median_and_spread(f"  CPU for one submission, {kind}", [one[kind] for one in spent], "ms")
    sent = [pk for load in loads for pk in load.sent]
    with running(dispatcher=False, workers=workers) as site, site.meter() as meter:
        moments = sorted(_calls(_wait_for_calls(sent), simulated=False).values())
    yield Result("first calls asked for, from a full queue", _rate(moments), "calls/s", peer=peer)
    yield from _cost(meter.spent, len(sent), peer)


def _forget_earlier_jobs() -> None:
    """Delete what an earlier measurement left.

    Its offers would time out during the next one, whose dispatcher would first read the events of the one without.
    """
    with connection.cursor() as cursor:
        cursor.execute("TRUNCATE jobs_submission, telephony_call, core_event CASCADE")
    client().flushdb()


@dataclass(frozen=True)
class _Stream:
    """One stream of submissions: the milliseconds to each first call, sorted, and what else was counted.

    `first_ms`: the same of the first submission after the start of all processes, which does not count otherwise.
    `answered_ms`: the 99th percentile of the responses. `cost`: CPU for one submission in ms, by kind of process.
    """

    took_ms: list[float]
    first_ms: float
    lost: int
    answered_ms: float
    cost: dict[str, float]


def to_first_call(workers: str, rate: int, seconds: float, *, provider: str, runs: int = 1) -> Iterator[Result]:
    """A steady stream of submissions through the whole site; the medians of several runs, with their spread."""
    peer, is_simulated = PEERS[workers], provider != noop_provider.NAME
    streams = [_stream(workers, rate, seconds, provider) for _ in range(runs)]
    what = f"{rate}/s through the simulator" if is_simulated else f"{rate}/s"
    targets = ("", "", "") if peer or is_simulated else ("<= 60", "<= 300", "<= 20")
    name = f"{what}: form sent to first call asked for"
    for title, share, target in ((", median", 0.5, targets[0]), (", 99th percentile", 0.99, targets[1])):
        values = [percentile(one.took_ms, share) for one in streams]
        yield from median_and_spread(f"{name}{title}", values, "ms", target, peer)
    yield from median_and_spread(
        "  the first after the start of all processes", [one.first_ms for one in streams], "ms", peer=peer
    )
    lost = max(one.lost for one in streams)
    yield Result(f"  not called within {LONGEST_S:.0f} s", lost, "submissions", "" if peer else "<= 0", peer)
    answered = [one.answered_ms for one in streams]
    yield from median_and_spread("  answered 202, 99th percentile", answered, "ms", peer=peer)
    costs = [sum(one.cost.values()) for one in streams]
    yield from median_and_spread("  CPU for one submission", costs, "ms", targets[2], peer)
    for kind in streams[0].cost:
        yield from median_and_spread(f"    of which {kind}", [one.cost[kind] for one in streams], "ms", peer=peer)


def _stream(workers: str, rate: int, seconds: float, provider: str) -> _Stream:
    _forget_earlier_jobs()
    is_simulated = provider != noop_provider.NAME
    # Before the processes start: the simulator knows the accounts that exist then.
    for_warming_up = jobs_ground.tenants(provider=provider, count=1, technicians=60)
    tenants = _tenants(provider)
    with running(workers=workers, dispatcher=True, simulator=is_simulated) as site:
        first_ms = _warm(site, for_warming_up, is_simulated=is_simulated)
        with site.meter_ours() as meter:
            load = jobs_load.steadily(site.base_url, tenants, per_second=rate, seconds=seconds)
            asked = _calls(_wait_for_calls(list(load.sent)), simulated=is_simulated)
    count = max(len(load.sent), 1)
    return _Stream(
        sorted(1000 * (moment - load.sent[pk]) for pk, moment in asked.items()),
        first_ms,
        len(load.sent) - len(asked) + load.failures,
        percentile(sorted(load.answer_times_ms()), 0.99),
        {kind: 1000 * seconds / count for kind, seconds in kinds_of(meter.spent).items()},
    )


def _tenants(provider: str) -> list[jobs_ground.Tenant]:
    made = jobs_ground.tenants(provider=provider)
    with connection.cursor() as cursor:
        cursor.execute("ANALYZE")
    return made


def _warm(site: Site, tenants: list[jobs_ground.Tenant], *, is_simulated: bool) -> float:
    """Every process has done its work before it is measured: connections, statements, caches.

    Return the milliseconds to the first call of the first submission.
    """
    load = jobs_load.steadily(site.base_url, tenants, per_second=10, seconds=2)
    asked = _calls(_wait_for_calls(list(load.sent)), simulated=is_simulated)
    first = min(load.sent, key=load.sent.__getitem__)
    return 1000 * (asked[first] - load.sent[first])


def _wait_for_calls(submission_ids: Sequence[int]) -> list[int]:
    """The same ids, when each has been called for, or LONGEST_S after."""
    deadline = time.monotonic() + LONGEST_S
    wait_until(
        lambda: time.monotonic() > deadline or _called(submission_ids) >= len(submission_ids),
        LONGEST_S + 5,
        interval=0.5,
    )
    return list(submission_ids)


def _called(submission_ids: Sequence[int]) -> int:
    offers = Offer.objects.filter(job__submission_id__in=submission_ids, attempt=1)
    with_call = Call.objects.filter(purpose="offer", sid__isnull=False, subject_id__in=offers.values("pk"))
    return with_call.count()


def _calls(submission_ids: Sequence[int], *, simulated: bool) -> dict[int, float]:
    """When the first call was asked for (Unix seconds), by submission."""
    offers = dict(
        Offer.objects.filter(job__submission_id__in=submission_ids, attempt=1).values_list(
            "pk", "job__submission_id"
        )
    )
    calls = Call.objects.filter(purpose="offer", subject_id__in=list(offers), sid__isnull=False)
    return {
        offers[call.subject_id]: call.submitted_at.timestamp() if simulated else noop_provider.asked_at(call.sid)
        for call in calls
    }


def _rate(moments: Sequence[float]) -> float:
    return (len(moments) - 1) / (moments[-1] - moments[0]) if len(moments) > 1 else 0.0


def _cost(spent: dict[str, float], count: int, peer: str = "") -> Iterator[Result]:
    """CPU of each kind of process for one submission, idle loops included."""
    kinds = {kind: 1000 * seconds / max(count, 1) for kind, seconds in kinds_of(spent).items()}
    yield Result("  CPU for one submission, all processes", sum(kinds.values()), "ms", peer=peer)
    for kind, cost in kinds.items():
        yield Result(f"    of which {kind}", cost, "ms", peer=peer)
