"""Look-ups of names are divided among organizations: silent name servers of one delay no other."""

from __future__ import annotations

import asyncio
import socket
from typing import Any

import pytest

from dispatch.core.http import resolver
from dispatch.core.http.client import HttpClient, LookupDelayed, TargetTimeout, TargetUnreachable
from tests.core.targets import Names, target
from tests.support.waiting import PATIENCE


class SomeSilent(Names):
    """Names whose name server never answers begin with "silent"."""

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_UNSPEC
    ) -> list[resolver.ResolveResult]:
        if host.startswith("silent"):
            self.asked.append(host)
            await asyncio.Event().wait()
        return await super().resolve(host, port, family)


def client(names: Names, **options: Any) -> HttpClient:
    return HttpClient(resolver=names, allowed=(), proxy="", **options)


async def begin_silent(http: HttpClient, names: Names, organization: int, number: int) -> list[asyncio.Task[Any]]:
    """Begin requests to names that are never found, until the look-ups that may begin have begun."""
    tasks = [
        asyncio.create_task(http.post(f"http://silent{n}.test/", b"{}", {}, PATIENCE, organization=organization))
        for n in range(number)
    ]
    expected = min(number, resolver.THREADS_PER_KEY)
    async with asyncio.timeout(PATIENCE):
        while len(names.asked) < expected:
            await asyncio.sleep(0)
    return tasks


async def end(tasks: list[asyncio.Task[Any]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


def test_silent_names_of_one_organization_do_not_delay_another() -> None:
    async def test() -> None:
        names = SomeSilent(shop_test=[["127.0.0.1"]])
        async with target() as there, client(names) as http:
            # More than there are threads. The last one is for the name that the other organization needs.
            tasks = await begin_silent(http, names, 1, 2 * resolver.THREADS)
            same_name = http.post(there.url("shop.test"), b"{}", {}, PATIENCE, organization=1)
            tasks.append(asyncio.create_task(same_name))
            await asyncio.sleep(0)
            answer = await http.post(
                there.url("shop.test"), b"{}", {}, PATIENCE, organization=2, allow_private=True
            )
            assert answer.status == 200
            assert len([name for name in names.asked if name.startswith("silent")]) == resolver.THREADS_PER_KEY
            await end(tasks)

    asyncio.run(test())


def test_a_look_up_that_did_not_begin_is_no_failure_of_the_target(monkeypatch: pytest.MonkeyPatch) -> None:
    async def test(timeout_s: float) -> None:
        names = SomeSilent(shop_test=[["127.0.0.1"]])
        async with target() as there, client(names) as http:
            tasks = await begin_silent(http, names, 1, resolver.THREADS_PER_KEY)
            with pytest.raises(LookupDelayed) as delayed:
                await http.post(there.url("shop.test"), b"{}", {}, timeout_s, organization=1, allow_private=True)
            assert not delayed.value.sent
            await end(tasks)

    asyncio.run(test(0.05))  # the request's timeout ends first
    monkeypatch.setattr(resolver, "MAX_WAIT_S", 0.05)
    asyncio.run(test(PATIENCE))


def test_a_look_up_in_progress_is_shared_and_its_silence_is_a_timeout() -> None:
    async def test() -> None:
        names = SomeSilent()
        async with client(names) as http:
            for organization in (1, 2):
                with pytest.raises(TargetTimeout):
                    await http.post("http://silent.test/", b"{}", {}, 0.05, organization=organization)
            assert names.asked == ["silent.test"]

    asyncio.run(test())


def test_found_and_unknown_names_are_remembered_for_a_while() -> None:
    async def test(ttl_s: float) -> list[str]:
        names = SomeSilent(shop_test=[["127.0.0.1"]])
        async with target() as there, client(names, dns_ttl_s=ttl_s) as http:
            for _ in range(2):
                await http.post(
                    there.url("shop.test"), b"{}", {"Connection-Id": "1"}, PATIENCE, allow_private=True
                )
                with pytest.raises(TargetUnreachable):
                    await http.post("http://unknown.test/", b"{}", {}, PATIENCE)
        return names.asked

    assert asyncio.run(test(PATIENCE)) == ["shop.test", "unknown.test"]
    # The connection to the shop is used again; the unknown name is asked for again.
    assert asyncio.run(test(0)) == ["shop.test", "unknown.test", "unknown.test"]
