"""A provider that accepts requests and never answers them delays no dispatcher and no worker."""

from __future__ import annotations

import pytest

from dispatch.core import clock
from dispatch.core.runtime import queues
from dispatch.telephony.models import Call
from dispatch.telephony.request_threads import CALLS, HANG_UPS
from dispatch.telephony.services import calls
from tests.api.client import Api
from tests.harness.black_hole import BlackHole, black_hole
from tests.jobs.test_waiting import woken_by
from tests.support import factories
from tests.support.waiting import PATIENCE, wait_until


@pytest.fixture
def hole(floor, settings):
    settings.PROVIDER_TIMEOUT_S = PATIENCE
    with black_hole(floor.sim.account_sid, floor.sim.base_url) as made:
        yield made


def test_a_dispatcher_who_cancels_does_not_wait_for_the_provider(
    floor, settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    ann, *_ = floor.crew("Ann")
    job = floor.started()
    floor.rings(ann)
    maria = factories.dispatcher(floor.organization, "Maria Lopez")
    monkeypatch.setattr(calls, "notify_loop", queues.notify_loop)  # as in a web process
    settings.PROVIDER_TIMEOUT_S = PATIENCE
    with black_hole(floor.sim.account_sid, floor.sim.base_url) as hole:
        version = floor.job(job).version

        def cancel() -> None:
            body = {"reason": "not needed", "version": version}
            assert Api(user=maria).post(f"jobs/{job.pk}/cancel/", body).status_code == 200

        assert calls.HANG_UP_LOOP in woken_by(cancel)
        assert hole.held() == 0
        assert not HANG_UPS.items()
        assert floor.status(job) == "cancelled"
        call = Call.objects.get(purpose="offer")
        assert call.hang_up_at is not None
        assert call.ended_at is None
    floor.until(lambda: (clock.travel(16), floor.tick(), not floor.sim.open_calls())[2])
    assert Call.objects.get(pk=call.pk).hang_up_at is None


def test_a_worker_goes_on_while_the_provider_hangs(floor, hole: BlackHole) -> None:
    floor.crew("Ann", "Bob", "Cid")
    jobs = [floor.started() for _ in range(3)]
    wait_until(lambda: hole.held() == 3)
    assert Call.objects.filter(status="requesting").count() == 3
    assert len(CALLS.items()) == 3
    assert all(floor.live_offer(job) for job in jobs)
    hole.give_back()
    wait_until(lambda: not CALLS.items())
    assert Call.objects.filter(status="unknown").count() == 3
    assert floor.sim.calls() == []
