"""Idle pullers of one dialer look for ready leads in turn, so that the process looks once per interval."""

from __future__ import annotations

import asyncio
import time
from itertools import pairwise

import pytest

from dispatch.leads import dialer
from dispatch.leads.dialer import Dialer

IDLE_S = 0.1


@pytest.fixture
def idle(monkeypatch: pytest.MonkeyPatch) -> Dialer:
    monkeypatch.setattr(dialer, "IDLE_S", IDLE_S)
    made = Dialer("idle")
    made._looked_at = time.monotonic()
    return made


def test_pullers_look_one_after_another(idle: Dialer) -> None:
    looked: list[float] = []

    async def wait() -> None:
        await idle._wait_in_turn(asyncio.Event())
        looked.append(time.monotonic())

    async def main() -> None:
        await asyncio.gather(wait(), wait(), wait())

    asyncio.run(main())
    assert min(later - earlier for earlier, later in pairwise(looked)) > IDLE_S / 2


def test_wakeup_ends_the_wait_of_its_puller(idle: Dialer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dialer, "IDLE_S", 3600.0)

    async def main() -> None:
        wakeup = asyncio.Event()
        asyncio.get_running_loop().call_later(0.01, wakeup.set)
        await asyncio.wait_for(idle._wait_in_turn(wakeup), 60)

    asyncio.run(main())
