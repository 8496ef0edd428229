"""An endpoint that is deleted while runs call it stops only these runs."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from dispatch.outbox.models import DirectRequest, Endpoint
from dispatch.outbox.services.endpoints import delete_endpoint
from tests.core.threads import Elsewhere
from tests.harness.schedules import SYSTEM, World
from tests.outbox.receiver import Receiver, Visit
from tests.schedules.test_delivery_engine import calls, endpoint, limit, statuses


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    found = Receiver()
    yield found
    found.close()


def delete_when_called(receiver: Receiver, name: str, to: Endpoint) -> None:
    """Delete the endpoint while the call with this name is in progress."""

    def delete(visit: Visit) -> None:
        if visit.name == name:
            Elsewhere(lambda: delete_endpoint(to.pk, actor=SYSTEM)).finish()

    receiver.on_visit = delete


def test_endpoint_deleted_before_it_says_it_is_gone_ends_no_other_run(real: World, receiver: Receiver) -> None:
    to = endpoint(real, receiver.url)
    delete_when_called(receiver, "gone", to)
    receiver.answer("gone", 410)
    receiver.answer("slow", after_s=1)
    (gone,) = calls(real, receiver, "gone", target={"endpoint": "ERP"})
    (slow,) = calls(real, receiver, "slow")
    real.go()
    assert statuses(real, [gone, slow]) == ["failed", "succeeded"]
    assert real.run(gone).error == "The receiver answered HTTP 410."
    assert sorted(receiver.names) == ["gone", "slow"]


def test_run_waiting_for_a_slot_is_held_when_its_endpoint_is_deleted(real: World, receiver: Receiver) -> None:
    limit(real, concurrency=1)
    to = endpoint(real, receiver.url)
    delete_when_called(receiver, "first", to)
    (first,) = calls(real, receiver, "first")
    (second,) = calls(real, receiver, "second", target={"endpoint": "ERP"})
    real.go()
    run = real.run(second)
    assert (real.run(first).status, run.status, run.waiting_for) == ("succeeded", "retrying", "endpoint")
    assert run.attempt == 1
    real.travel(400)
    real.go()
    assert statuses(real, [second]) == ["failed"]
    assert receiver.names == ["first"]
    assert not DirectRequest.objects.exists()
