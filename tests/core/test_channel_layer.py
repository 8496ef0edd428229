"""A Redis that hangs or refuses costs all sockets of a process one timeout, and they work again after it."""

from __future__ import annotations

import asyncio
import contextlib
import time
from typing import Any
from urllib.parse import urlsplit

import pytest
import structlog
from redis.exceptions import RedisError

from dispatch.core.redis import channel_layer
from dispatch.core.redis.channel_layer import GuardedChannelLayer
from dispatch.core.redis.client import CircuitOpen, breaker, client
from tests.harness.redis_proxy import TIMEOUT_S, RedisProxy, redis_proxy
from tests.support.waiting import PATIENCE

__all__ = ["redis_proxy"]


def layer_of(proxy: RedisProxy) -> GuardedChannelLayer:
    return GuardedChannelLayer(hosts=[proxy.url], prefix="test-channels")


async def join(layer: Any) -> str:
    channel: str = await layer.new_channel()
    await layer.group_add("organization.1", channel)
    return channel


async def error_of(layer: Any) -> type[BaseException]:
    try:
        await join(layer)
    except RedisError as error:
        return type(error)
    raise AssertionError("a server that hangs let a socket join")


def test_hanging_server_costs_all_sockets_one_timeout(redis_proxy: RedisProxy) -> None:
    redis_proxy.hold_circuit_open()
    redis_proxy.hang()

    async def many() -> list[type[BaseException]]:
        layer = layer_of(redis_proxy)
        errors = await asyncio.gather(*(error_of(layer) for _ in range(20)))
        await layer.flush()
        return errors

    began = time.monotonic()
    errors = asyncio.run(many())
    assert time.monotonic() - began < 20 * TIMEOUT_S
    assert [error is CircuitOpen for error in errors].count(False) == 1
    assert redis_proxy.unanswered == 1


def test_sockets_share_the_circuit_of_their_server(redis_proxy: RedisProxy) -> None:
    redis_proxy.hold_circuit_open()
    breaker().record_failure()

    async def one() -> type[BaseException]:
        return await error_of(layer_of(redis_proxy))

    assert asyncio.run(one()) is CircuitOpen
    assert redis_proxy.connections == 0


def test_sockets_work_again_after_the_server_does(redis_proxy: RedisProxy) -> None:
    redis_proxy.hang()

    async def hear() -> dict[str, Any]:
        layer: Any = layer_of(redis_proxy)
        await error_of(layer)
        redis_proxy.pass_on()
        async with asyncio.timeout(PATIENCE):
            while True:
                try:
                    channel = await join(layer)
                    await layer.group_send("organization.1", {"type": "hello"})
                    break
                except RedisError:
                    await asyncio.sleep(0.05)
            message: dict[str, Any] = await layer.receive(channel)
        await layer.flush()
        return message

    assert asyncio.run(hear()) == {"type": "hello"}


def test_sockets_that_join_while_the_connection_is_lost_hear_as_the_others_do(
    redis_proxy: RedisProxy, caplog: pytest.LogCaptureFixture
) -> None:
    """The server accepts connections and does not respond, so sockets join while others connect again."""
    breaker().pause_s = 0.0

    async def hear() -> set[str]:
        layer: Any = layer_of(redis_proxy)
        channels = [await join(layer)]
        await asyncio.to_thread(redis_proxy.refuse)
        redis_proxy.accept_again()
        redis_proxy.hang()
        for _ in range(10):
            with contextlib.suppress(RedisError):  # the first may join before the loss is noticed
                channels.append(await join(layer))
        redis_proxy.pass_on()
        async with asyncio.timeout(PATIENCE):
            before = len(channels)
            while len(channels) == before:
                with contextlib.suppress(RedisError):
                    channels.append(await join(layer))
            heard = [asyncio.create_task(layer.receive(channel)) for channel in channels]
            while not all(task.done() for task in heard):
                await layer.group_send("organization.1", {"type": "hello"})
                await asyncio.sleep(0.05)
        await layer.flush()
        return {(await task)["type"] for task in heard}

    assert asyncio.run(hear()) == {"hello"}
    assert "RuntimeError" not in caplog.text, "two tasks read one connection"


def test_a_server_that_refuses_the_channels_is_asked_once_per_second(redis_proxy: RedisProxy) -> None:
    """Since Redis 7, a new user of its ACL may use no channel until it is given some."""
    with redis_proxy.direct():
        client().execute_command("ACL", "SETUSER", "limited", "on", ">secret", "~*", "+@all", "resetchannels")
    address = urlsplit(redis_proxy.url)
    url = f"redis://limited:secret@127.0.0.1:{redis_proxy.port}{address.path}"

    async def lost_twice() -> float:
        layer: Any = GuardedChannelLayer(hosts=[url], prefix="test-channels")
        with structlog.testing.capture_logs() as logs:
            await layer.new_channel()
            moments: list[float] = []
            async with asyncio.timeout(PATIENCE):
                while len(moments) < 2:
                    if len(logs) > len(moments):
                        moments.append(time.monotonic())
                    await asyncio.sleep(0)
        await layer.flush()
        assert {entry["event"] for entry in logs} == {"subscription_lost"}
        return moments[1] - moments[0]

    try:
        assert asyncio.run(lost_twice()) > 0.5
    finally:
        with redis_proxy.direct():
            client().execute_command("ACL", "DELUSER", "limited")


def test_sockets_leave_a_server_that_hangs_with_its_connections_open(
    redis_proxy: RedisProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sentinels promote another meanwhile, to which new connections lead."""
    monkeypatch.setattr(channel_layer, "_CHECK_S", 0.2)
    monkeypatch.setattr(channel_layer, "_ANSWER_S", 0.3)

    async def hear() -> set[str]:
        layer: Any = layer_of(redis_proxy)
        channels = [await join(layer)]
        redis_proxy.hang_open_connections()
        channels.append(await join(layer))  # nothing is lost yet, so this joins the dead connection
        others: Any = GuardedChannelLayer(hosts=[redis_proxy.upstream_url], prefix="test-channels")
        heard = [asyncio.create_task(layer.receive(channel)) for channel in channels]
        async with asyncio.timeout(PATIENCE):
            while not all(task.done() for task in heard):
                await others.group_send("organization.1", {"type": "hello"})
                await asyncio.sleep(0.05)
        await others.flush()
        await layer.flush()
        return {(await task)["type"] for task in heard}

    assert asyncio.run(hear()) == {"hello"}


def test_a_quiet_server_keeps_its_subscription(redis_proxy: RedisProxy, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(channel_layer, "_CHECK_S", 0.1)
    monkeypatch.setattr(channel_layer, "_READ_S", 0.05)

    async def connections() -> int:
        layer: Any = layer_of(redis_proxy)
        await join(layer)
        before = redis_proxy.answered
        async with asyncio.timeout(PATIENCE):
            while redis_proxy.answered < before + 10:  # pings
                await asyncio.sleep(0.05)
        await layer.flush()
        return redis_proxy.connections

    with structlog.testing.capture_logs() as logs:
        assert asyncio.run(connections()) <= 1
    assert not logs


def test_a_layer_that_was_flushed_hears_again(redis_proxy: RedisProxy) -> None:
    async def hear() -> dict[str, Any]:
        layer: Any = layer_of(redis_proxy)
        await join(layer)
        await layer.flush()
        channel = await join(layer)
        await layer.group_send("organization.1", {"type": "hello"})
        async with asyncio.timeout(PATIENCE):
            message: dict[str, Any] = await layer.receive(channel)
        await layer.flush()
        return message

    assert asyncio.run(hear()) == {"type": "hello"}


def test_leaving_a_group_never_fails(redis_proxy: RedisProxy) -> None:
    async def leave() -> None:
        layer: Any = layer_of(redis_proxy)
        channel = await join(layer)
        redis_proxy.hang()
        breaker().record_failure()
        await layer.group_discard("organization.1", channel)

    asyncio.run(leave())
