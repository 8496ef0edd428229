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
from tests.support.row_locks import held


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
