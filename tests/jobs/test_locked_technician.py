"""A technician's row that somebody holds delays the jobs that need it, and ends none of them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from dispatch.core import clock
from dispatch.core.db import session_limits
from dispatch.jobs.services.submissions import MAX_STARTS
from tests.harness.jobs import Floor
from tests.support.database import reconnect
from tests.support.row_locks import held


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch, settings: Any) -> Iterator[None]:
    """This process waits for locks as little as a worker does."""
    settings.DB_LOCK_TIMEOUT_S = 0.2
    monkeypatch.setattr(session_limits, "_kind", session_limits.BACKGROUND)
    reconnect()
    yield
    monkeypatch.undo()
    reconnect()


def test_a_locked_technician_postpones_the_offer_of_a_new_job(floor: Floor, impatient: None) -> None:
    (ann,) = floor.crew("Ann")
    with held(ann):
        submission = floor.submit()
        floor.work()  # returns: the technician is not waited for without end
        for _ in range(MAX_STARTS + 1):
            clock.travel(120)
            floor.audit()
        job = floor.job(submission)
        assert (job.status, job.failed_steps, floor.offers(job)) == ("dispatching", 0, [])
    clock.travel(120)
    floor.audit()
    floor.rings(ann).answer().press("1")
    floor.until(lambda: floor.status(floor.job(submission)) == "assigned")
