"""Slots are divided among keys, and coroutines wait for theirs in order."""

from __future__ import annotations

import asyncio

import pytest

from dispatch.core.runtime.fair_shares import AsyncShares, SharesClosed


def take_all(shares: AsyncShares, key: int) -> int:
    """Take as many slots as the key gets."""
    taken = 0
    while shares.try_take(key):
        taken += 1
    return taken


def test_no_number_of_greedy_keys_takes_all_slots() -> None:
    shares = AsyncShares(16)
    assert [take_all(shares, key) for key in range(1, 6)] == [8, 4, 2, 1, 1]
    limited = AsyncShares(16, per_key=3)
    assert take_all(limited, 1) == 3


def test_a_released_slot_goes_to_the_first_that_waits() -> None:
    async def test() -> None:
        shares, order = AsyncShares(4), []

        async def wait(name: str, key: int) -> None:
            await shares.take(key)
            order.append(name)

        assert take_all(shares, 1) == 2
        tasks = [asyncio.create_task(wait(name, 1)) for name in ("first", "second")]
        await asyncio.sleep(0)
        assert shares.waiting == 2
        assert not shares.try_take(1)
        await wait("of another key", 2)
        shares.release(1)
        await tasks[0]
        assert order == ["of another key", "first"]
        shares.release(1)
        await tasks[1]
        assert (shares.held(1), shares.held(2), shares.waiting) == (2, 1, 0)

    asyncio.run(test())


def test_a_coroutine_that_gives_up_costs_no_slot() -> None:
    async def test() -> None:
        shares = AsyncShares(2)
        assert take_all(shares, 1) == 1
        waiting = asyncio.create_task(shares.take(1))
        granted = asyncio.create_task(shares.take(1))
        await asyncio.sleep(0)
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
        shares.release(1)  # grants the slot to the second, which is canceled at the same moment
        granted.cancel()
        await asyncio.gather(granted, return_exceptions=True)
        assert (shares.held(1), shares.waiting) == (0, 0)

    asyncio.run(test())


def test_closing_ends_all_waits() -> None:
    async def test() -> None:
        shares = AsyncShares(1)
        assert take_all(shares, 1) == 1
        waiting = asyncio.create_task(shares.take(1))
        await asyncio.sleep(0)
        shares.close()
        with pytest.raises(SharesClosed):
            await waiting
        with pytest.raises(SharesClosed):
            await shares.take(2)

    asyncio.run(test())
