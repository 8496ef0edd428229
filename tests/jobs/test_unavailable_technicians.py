"""A technician who can't be called for a moment costs few tries, and is not passed over."""

from __future__ import annotations

import pytest

from dispatch.core import clock
from dispatch.core.db.lock_waits import RecentlyBlocked
from dispatch.jobs import services
from dispatch.jobs.models import Job
from dispatch.jobs.services import auditor, dispatching
from dispatch.technicians.models import Technician
from dispatch.telephony.models import Call
from tests.harness.jobs import MARIA, Floor, started_job
from tests.phones import manual
from tests.support.row_locks import ends_while_held, held


@pytest.fixture
def tried(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The jobs that the auditor's loops have tried."""
    found: list[int] = []
    real = auditor._advance_job

    def noted(pk: int, *args: object) -> None:
        found.append(pk)
        real(pk, *args)

    monkeypatch.setattr(auditor, "_advance_job", noted)
    return found


@pytest.fixture
def memory(monkeypatch: pytest.MonkeyPatch) -> RecentlyBlocked:
    """What the process remembers of technicians, for as long as the test needs it."""
    made = RecentlyBlocked(3600.0)
    monkeypatch.setattr(dispatching, "_unavailable", made)
    return made


def waiting_jobs(floor: Floor, count: int) -> list[Job]:
    jobs = [started_job(floor.organization, floor.service) for _ in range(count)]
    assert {floor.job(job).waiting_for for job in jobs} == {"technician"}
    return jobs


def on_another_call(floor: Floor) -> Technician:
    """Ann, whose phone rings because of a job that a dispatcher has assigned to her."""
    ann = floor.technician("Ann", max_open_jobs=50)
    floor.phone(ann).will(manual(), manual())
    job = started_job(floor.organization, floor.service)
    services.assign(job.pk, ann.pk, actor=MARIA, confirm_unfit=True)
    services.advance_due_notices()
    floor.tick()
    assert Call.objects.filter(purpose="job_news", ended_at=None).exists()
    return ann


def test_phone_on_another_call_costs_a_try_of_one_waiting_job(
    floor: Floor, tried: list[int], memory: RecentlyBlocked
) -> None:
    ann = on_another_call(floor)
    jobs = waiting_jobs(floor, 4)
    memory.clear()
    services.move_on_waiting()
    assert tried == [jobs[0].pk]
    services.move_on_waiting()
    assert tried == [jobs[0].pk]
    clock.travel(11)  # the jobs are due
    services.move_on_waiting()
    assert sorted(tried[1:]) == [job.pk for job in jobs]
    floor.rings(ann).answer().press("1").hears("Thank you").ended()
    clock.travel(11)
    services.move_on_waiting()
    assert floor.offers(jobs[0]) == [("Ann", "pending")]


def test_locked_technician_costs_a_try_of_one_waiting_job(
    floor: Floor, tried: list[int], memory: RecentlyBlocked
) -> None:
    ann = on_another_call(floor)
    jobs = waiting_jobs(floor, 4)
    floor.rings(ann).answer().press("1").hears("Thank you").ended()
    memory.clear()
    with held(ann):
        for _ in range(2):
            services.move_on_waiting()
        assert tried == [jobs[0].pk]
    memory.clear()
    services.move_on_waiting()
    assert floor.offers(jobs[0]) == [("Ann", "pending")]


# --- A row that is locked when the cascade would end -------------------------------------------------------------
def alone_after_ann(floor: Floor, **policy: object) -> tuple[Job, Technician]:
    """A job whose first technician, Ann, has not answered in time. Bob is left."""
    floor.set_policy(answer_timeout_s=700, ring_timeout_s=600, **policy)
    ann, bob = floor.crew("Ann", "Bob")
    job = floor.started()
    floor.rings(ann)
    clock.travel(710)
    return job, bob


@pytest.mark.parametrize("rounds", [1, 2])
def test_locked_technician_is_called_later_also_if_a_policy_forbids_waiting(floor: Floor, rounds: int) -> None:
    job, bob = alone_after_ann(floor, technician_wait_s=0, rounds=rounds)
    ends_while_held([bob], services.audit)
    now = floor.job(job)
    assert (now.status, now.round, now.failed_steps, floor.offers(job)) == (
        "dispatching",
        1,
        0,
        [("Ann", "timed_out")],
    )
    clock.travel(10)
    services.audit()
    assert floor.offers(job) == [("Ann", "timed_out"), ("Bob", "pending")]


def test_technician_on_another_call_still_ends_the_cascade_of_such_a_policy(floor: Floor) -> None:
    floor.set_policy(technician_wait_s=0)
    on_another_call(floor)
    job = started_job(floor.organization, floor.service)
    assert floor.job(job).pending_reason == "exhausted"
