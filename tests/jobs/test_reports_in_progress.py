"""A report on an open call whose deadline has started changes nothing, and opens no transaction."""

from __future__ import annotations

from typing import Any

import pytest

from dispatch.core import clock
from dispatch.jobs import sql
from dispatch.jobs.models import Job, Offer
from dispatch.jobs.services import call_changed
from dispatch.jobs.services import offers as offers_service
from dispatch.telephony.models import Call
from tests.harness.jobs import Floor
from tests.phones import manual


@pytest.fixture
def locked(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The jobs that were locked because of a report."""
    found: list[int] = []
    lock = offers_service.transitions.lock_offer_with_job

    def record(job_id: int, offer_id: int) -> Any:
        found.append(job_id)
        return lock(job_id, offer_id)

    monkeypatch.setattr(offers_service.transitions, "lock_offer_with_job", record)
    return found


def test_only_a_report_that_moves_the_deadline_locks_the_job(floor: Floor, locked: list[int]) -> None:
    (ann,) = floor.crew("Ann")
    floor.phone(ann).will(manual())
    job = floor.started()
    floor.rings(ann).told("ringing")
    floor.until(lambda: floor.live_offer(job).ringing_since is not None)
    offer, call = floor.live_offer(job), Call.objects.get()
    locked.clear()

    call_changed(call)
    assert locked == []
    assert not sql.is_unaffected(offer.pk, is_in_progress=True, is_answered=True)

    Call.objects.filter(pk=call.pk).update(status="answered", answered_at=clock.now())
    for _ in range(2):
        call_changed(Call.objects.get())
    assert locked == [job.pk]
    assert Offer.objects.get(pk=offer.pk).answered_at is not None

    before = list(locked)
    ended = Call(pk=call.pk, subject_id=0, context=call.context, status="completed", ended_at=clock.now())
    with_closed = Offer.objects.filter(pk=offer.pk)
    assert not sql.is_unaffected(offer.pk, is_in_progress=False, is_answered=False)
    with_closed.update(status="declined")
    ended.subject_id = offer.pk
    call_changed(ended)
    assert locked == before, "the end of a call whose offer is closed changes nothing"
    with_closed.update(status="pending")

    Job.objects.filter(pk=job.pk).update(line_wait_until=clock.now())  # left by an older version
    call_changed(Call.objects.get())
    assert locked == [job.pk, job.pk]
    assert Job.objects.get(pk=job.pk).line_wait_until is None
