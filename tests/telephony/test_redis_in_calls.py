"""Calls go on while Redis is flushed or stopped, and lines are never overrun."""

from __future__ import annotations

import pytest

from dispatch.capacity import redis_scripts
from dispatch.core import clock
from dispatch.core.runtime.loops import find_loop
from dispatch.telephony import services
from dispatch.telephony.models import Call
from tests.capacity.conftest import OwnRedis, own_redis
from tests.phones import answer, manual
from tests.support.waiting import wait_until
from tests.telephony.conftest import Caller, now_is

__all__ = ["own_redis"]

PHONES = [f"+160255504{i:02d}" for i in range(9)]


@pytest.fixture
def redis_of_ours(own_redis: OwnRedis, caller: Caller) -> OwnRedis:
    caller.number.max_channels = 3
    caller.number.save()
    return own_redis


@pytest.mark.parametrize("trouble", ["flush", "stop", "stop and start"])
def test_calls_continue_without_redis(caller: Caller, redis_of_ours: OwnRedis, trouble: str) -> None:
    caller.sim.others_will(answer(press="1"))
    waiting = list(PHONES)
    tried = 0

    def call_the_next() -> bool:
        nonlocal tried
        tried += 1
        if tried == 3:
            redis_of_ours.flush() if trouble == "flush" else redis_of_ours.stop()
        if tried == 12 and trouble == "stop and start":
            redis_of_ours.start()
            redis_scripts.reset()
        try:
            if waiting:
                caller.call(waiting[0])
                waiting.pop(0)
        except services.NoLine:
            pass
        clock.travel(1)
        find_loop("lines").step()
        return not waiting and not Call.objects.filter(ended_at=None).exists()

    wait_until(call_the_next, message=caller.sim.story)

    assert [caller.sim.creates_to(phone) for phone in PHONES] == [1] * len(PHONES)
    assert caller.sim.max_simultaneous(str(caller.number.phone)) <= 3
    assert set(Call.objects.values_list("status", flat=True)) == {"completed"}


def test_a_call_under_way_keeps_its_line_through_a_flush(caller: Caller, redis_of_ours: OwnRedis) -> None:
    caller.sim.others_will(manual())
    calls = [caller.call(phone) for phone in PHONES[:3]]
    redis_of_ours.flush()

    with pytest.raises(services.NoLine):
        caller.call(PHONES[3])
    services.hang_up(calls[1].pk)
    now_is(calls[1], "canceled")

    assert caller.call(PHONES[3]).line_slot == calls[1].line_slot
