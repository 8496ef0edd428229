"""An account that hangs takes only its share of a dialer's request threads."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from dispatch.capacity.models import ProviderAccount
from dispatch.leads import thread_shares
from dispatch.leads.thread_shares import ThreadShares
from dispatch.telephony.providers.base import CallRequest, Outcome
from tests.benchmarks import noop_provider
from tests.harness.leads import Floor
from tests.support.waiting import PATIENCE, wait_until


class Blocking(noop_provider.Noop):
    """A provider whose client blocks. The client of "hangs" waits until the test ends."""

    is_async = False
    release = threading.Event()
    asked: list[str] = []

    def __init__(self, hangs: bool) -> None:
        super().__init__("completed")
        self._hangs = hangs

    def place(self, order: CallRequest) -> Outcome:
        if self._hangs:
            self.asked.append(order.to)
            self.release.wait(PATIENCE)
        return super().place(order)


def make(account: ProviderAccount) -> Blocking:
    return Blocking(account.provider == "hangs")


@pytest.fixture
def _providers(settings: Any) -> Iterator[None]:
    settings.PROVIDER_MODULES = {"hangs": __name__, "blocks": __name__}
    settings.LEADS_ASK_THREADS = 8
    Blocking.release.clear()
    Blocking.asked.clear()
    yield
    Blocking.release.set()


@pytest.mark.django_db(transaction=True)
@pytest.mark.usefixtures("_providers")
def test_leads_of_others_are_called_while_an_account_hangs() -> None:
    hanging, other = Floor("hangs", lines=100), Floor("blocks", lines=100)
    hanging.add_many(60)
    hanging.start()
    try:
        wait_until(lambda: len(Blocking.asked) >= 4)
        ids = other.add_many(12)
        wait_until(lambda: other.outcomes(ids) == {"answered": 12}, message=lambda: str(other.outcomes(ids)))
        assert len(set(Blocking.asked)) < 8, "a thread was free for the others"
        Blocking.release.set()
    finally:
        Blocking.release.set()
        hanging.stop()


def test_one_account_may_use_most_threads() -> None:
    async def use() -> tuple[int, int]:
        shares, taken = ThreadShares(32), 0
        while await shares.acquire(1, taken, 0.0):
            taken += 1
        others = sum([await shares.acquire(2, 100 + n, 0.0) for n in range(9)])
        return taken, others

    assert asyncio.run(use()) == (28, 3)


def test_a_slow_account_leaves_half_of_the_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(thread_shares, "SLOW_S", -1.0)

    async def use() -> list[int]:
        shares, taken = ThreadShares(32), []
        for account in range(4):
            count = 0
            while await shares.acquire(account, 100 * account + count, 0.0):
                count += 1
            taken.append(count)
        return taken

    assert asyncio.run(use()) == [16, 8, 4, 2]


def test_a_request_gets_the_thread_that_another_returns() -> None:
    async def use() -> bool:
        shares = ThreadShares(2)
        assert await shares.acquire(1, 1, 0.0)
        assert not await shares.acquire(1, 2, 0.0)
        waiting = asyncio.create_task(shares.acquire(1, 2, PATIENCE))
        await asyncio.sleep(0)
        shares.release(1, 1)
        return await waiting

    assert asyncio.run(use())
