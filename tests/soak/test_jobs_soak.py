"""Stream submissions while everything except PostgreSQL is killed, flushed and disconnected at random.

Nothing is lost, nobody is called twice for one offer, no job is assigned twice, and no line carries two calls.

Run by `make soak`; `SOAK_SEED=…` repeats the random choices of a run, but not its timing.
"""

from __future__ import annotations

import random
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from typing import Any

import pytest
from django.db.models import Min

from dispatch.capacity.models import DispatchPool, OutboundNumber
from dispatch.core import clock
from dispatch.core.models import Event
from dispatch.jobs.models import DispatchPolicy, Job, Offer, Submission
from dispatch.technicians.models import Technician
from dispatch.telephony.models import Call
from notifications.models import Notification
from tests.phones import Simulator, answer, busy, decline, ignore, mix
from tests.soak.clients import Clients
from tests.soak.site import Site, site
from tests.soak.troubles import Troubles
from tests.support import factories as make
from tests.support.histories import history_is_legal
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.soak, pytest.mark.django_db(transaction=True)]

SUBMISSIONS = 300
EVERY_S = 0.28
TROUBLES_S = 100  # then they are over, on a machine that is slower too
CALM_WITHIN_S = 240  # a call whose end was never reported is asked about after its longest time and a minute
SENT_WITHIN_S = 900  # two minutes, unless the machine is overloaded
# Nothing may stay overdue for longer: 30 s is the promise, the rest is for a machine on which all is killed.
LONGEST_OVERDUE_S = 60
PHONES = mix(
    (6, answer(press="1")),
    (1, answer(press="2")),
    (1, answer(hang_up_after=3)),
    (1, ignore()),
    (1, busy()),
    (1, decline()),
)


@pytest.fixture
def organization(sim: Simulator) -> Any:
    made = make.organization("Copper State Plumbing")
    account = make.account(made, account_sid=sim.account_sid, auth_token=sim.auth_token, calls_per_second=30.0)
    pool = make.pool(made, concurrency=22)
    for _ in range(5):
        make.number(made, account=account, pool=pool, max_channels=5)
    make.service_type(made, "plumbing")
    DispatchPolicy.objects.create(
        organization=made, answer_timeout_s=15, ring_timeout_s=14, max_candidates=3, line_wait_s=600,
        technician_wait_s=600,
    )  # fmt: skip
    make.dispatcher(made, "Dora")
    return made


@pytest.fixture
def sim(seed: int) -> Iterator[Simulator]:
    """One of this test's own: slower than that of the other tests, so that kills meet calls under way."""
    with Simulator.start(speed=4.0, seed=seed) as simulator:
        yield simulator


def test_everything_is_killed_at_random_while_submissions_stream_in(organization, sim, seed, tmp_path):
    rng = random.Random(seed)

    def somewhere() -> make.Place:
        return make.PHOENIX._replace(
            lat=make.PHOENIX.lat + rng.uniform(-0.15, 0.15), lng=make.PHOENIX.lng + rng.uniform(-0.15, 0.15)
        )

    for n in range(60):
        make.technician(organization, f"Technician {n}", at=somewhere(), max_open_jobs=20)
    sim.others_will(PHONES)
    forms = [(f"form-{n}", make.form("plumbing", at=somewhere())) for n in range(SUBMISSIONS)]
    with site(sim, tmp_path) as here:
        clients = Clients(f"{here.base_url}/api/v1/submissions/", make.api_key(organization), forms, EVERY_S, seed)
        watch = Watch()
        troubles = Troubles(here, sim, rng)
        clients.start()
        try:
            until = time.monotonic() + TROUBLES_S
            while time.monotonic() < until and not clients.done:
                troubles.happen()
                watch.look()
            sim.heal()
            wait_until(lambda: clients.done, SENT_WITHIN_S, here.logs)
        finally:
            clients.stop()
        print(dict(troubles.seen), f"{here.restarts} restarts")  # noqa: T201
        everything_settles(here, sim, watch)
    assert not clients.refused
    every_submission_is_accounted_for(clients)
    nobody_is_called_twice(sim)
    nobody_is_assigned_twice(sim)
    lines_are_never_exceeded(sim)
    nothing_is_held(organization)
    assert watch.longest_s <= LONGEST_OVERDUE_S, watch.what
    sim.assert_no_complaints()
    print(history_is_legal())  # noqa: T201


class Watch:
    """How late the latest thing ever was, as seen when looked."""

    longest_s = 0.0
    what = ""

    def look(self) -> None:
        dues = {
            "submission": Submission.objects.filter(status="received").aggregate(due=Min("next_start_at")),
            "job": Job.objects.filter(status="dispatching").aggregate(due=Min("next_action_at")),
        }
        for what, row in dues.items():
            late_s = (clock.now() - row["due"]).total_seconds() if row["due"] else 0.0
            if late_s > self.longest_s:
                self.longest_s, self.what = late_s, f"a {what} was overdue for {late_s:.1f} s"


def everything_settles(here: Site, sim: Simulator, watch: Watch) -> None:
    """Stop the kills: all jobs end, and all calls too."""
    moment = threading.Event()

    def settled() -> bool:
        here.revive()
        watch.look()
        moment.wait(0.5)
        return not (
            Submission.objects.filter(status="received").exists()
            or Job.objects.filter(status="dispatching").exists()
            or Call.objects.filter(ended_at=None).exists()
            or sim.open_calls()
        )

    def left() -> str:
        jobs = Job.objects.filter(status="dispatching").values_list("pk", "waiting_for", "next_action_at")
        calls = Call.objects.filter(ended_at=None).values_list("pk", "status", "sid", "requested_at", "to_phone")
        return f"jobs {list(jobs)}\ncalls {list(calls)}\n{here.logs()}"

    wait_until(settled, CALM_WITHIN_S, left)


def every_submission_is_accounted_for(clients: Clients) -> None:
    """Each key was answered with one submission, which became one job, which is with somebody."""
    assert len(clients.answered) == SUBMISSIONS
    assert all(len(ids) == 1 for ids in clients.answered.values()), "one key, two submissions"
    answered = {next(iter(ids)) for ids in clients.answered.values()}
    assert set(Submission.objects.values_list("pk", flat=True)) == answered
    assert Job.objects.count() == SUBMISSIONS
    assert set(Job.objects.values_list("submission_id", flat=True)) == answered
    ends = Counter(Job.objects.values_list("status", "pending_reason"))
    print(dict(ends))  # noqa: T201
    assert set(ends) <= {("assigned", ""), ("pending", "exhausted")}, ends
    alerted = Notification.objects.filter(kind="job.pending").values_list("subject_id", flat=True)
    assert set(alerted) == set(Job.objects.filter(status="pending").values_list("pk", flat=True))


def nobody_is_called_twice(sim: Simulator) -> None:
    """What the provider really made, against our calls: every one is known, and is the only one of its offer."""
    made = [call["sid"] for call in sim.calls(limit="100000")]
    assert set(made) == set(Call.objects.filter(sid__isnull=False).values_list("sid", flat=True))
    offers = Counter(Call.objects.values_list("subject_id", flat=True))
    assert max(offers.values()) == 1, "an offer with two calls"
    for technician in Technician.objects.all():
        offered = Offer.objects.filter(technician=technician).count()
        assert sim.creates_to(str(technician.phone)) <= offered, technician


def nobody_is_assigned_twice(sim: Simulator) -> None:
    assigned = Counter(Event.objects.filter(kind="job.assigned").values_list("subject_id", flat=True))
    assert set(assigned) == set(Job.objects.filter(status="assigned").values_list("pk", flat=True))
    assert max(assigned.values()) == 1
    told: dict[int, set[str]] = defaultdict(set)
    calls = dict(Call.objects.filter(sid__isnull=False).values_list("sid", "subject_id"))
    jobs = dict(Offer.objects.values_list("pk", "job_id"))
    for call in sim.calls(limit="100000"):
        if any("job is yours" in words["text"].lower() for words in call["said"]):
            told[jobs[calls[call["sid"]]]].add(call["to"])
    assert all(len(phones) == 1 for phones in told.values()), "two heard that the job is theirs"
    owners = {
        job.pk: str(job.technician.phone) for job in Job.objects.filter(pk__in=told).select_related("technician")
    }
    assert {job: {phone} for job, phone in owners.items()} == told


def lines_are_never_exceeded(sim: Simulator) -> None:
    for number in OutboundNumber.objects.all():
        assert 0 < sim.max_simultaneous(str(number.phone)) <= number.max_channels


def nothing_is_held(organization: Any) -> None:
    """Counts and leases are what they are when nobody is called."""
    assert not Offer.objects.filter(status="pending").exists()
    for technician in Technician.objects.all():
        assert technician.live_offer_id is None
        assert technician.open_jobs == Job.objects.filter(technician=technician, status="assigned").count()
    assert DispatchPool.objects.of(organization).count() == 1
