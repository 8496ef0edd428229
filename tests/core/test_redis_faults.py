"""Measure what a hanging, late, refusing or lossy Redis costs the shared client."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from django.conf import settings as site
from redis.exceptions import ResponseError
from redis.exceptions import TimeoutError as RedisTimeout

from accounts.auth import throttling
from dispatch.capacity import redis_scripts
from dispatch.core.redis import generation
from dispatch.core.redis.client import REDIS_ERRORS, CircuitOpen, Script, breaker, client, connect_guarded, key
from dispatch.core.runtime.queues import enqueue, notify_loop, rq_queue
from dispatch.jobs.services import line_wakeups
from dispatch.leads import redis_queue
from dispatch.outbox import queues
from dispatch.outbox.pointer import MessagePointer
from notifications import live_updates
from tests.harness.redis_proxy import TIMEOUT_S, RedisProxy, redis_proxy
from tests.support.waiting import PATIENCE, wait_until

__all__ = ["redis_proxy"]
pytestmark = pytest.mark.django_db(transaction=True)

COUNT = Script("test_count", "return redis.call('INCR', KEYS[1])")


def test_commands_after_a_timeout_fail_at_once(redis_proxy: RedisProxy) -> None:
    redis_proxy.hold_circuit_open()
    client().ping()
    redis_proxy.hang()
    with pytest.raises(RedisTimeout):
        client().ping()
    for _ in range(5):
        with pytest.raises(CircuitOpen):
            client().get("x")
        with pytest.raises(CircuitOpen), client().pipeline() as pipeline:
            pipeline.set("x", 1).execute()
        with pytest.raises(CircuitOpen):
            COUNT(keys=[key("count")])
    assert redis_proxy.unanswered == 1


def test_all_users_of_one_server_share_its_circuit(redis_proxy: RedisProxy) -> None:
    redis_proxy.hold_circuit_open()
    redis_proxy.hang()
    throttling.take_token("somebody", throttling.parse_rate("10/min"))
    assert breaker().is_open
    connections = redis_proxy.connections
    enqueue(site.DISPATCH_QUEUE, "tests.core.jobs.leave", "a")
    notify_loop("auditor")
    live_updates.notify_members_changed(1)
    line_wakeups.line_freed()
    assert redis_scripts.run_or_none(redis_scripts.RELEASE, "offer:1") is None
    with pytest.raises(redis_queue.RedisUnavailable):
        redis_queue.sync_entries([redis_queue.ScheduleEntry(1, 1, 1, 0)])
    redis_queue.notify_dialers([1])
    assert not generation.ensure_generation()
    assert (redis_proxy.unanswered, redis_proxy.connections) == (1, connections)


def test_one_caller_probes_a_server_that_still_hangs(redis_proxy: RedisProxy) -> None:
    redis_proxy.hang()
    with pytest.raises(RedisTimeout):
        client().ping()
    breaker().release_probe()  # the pause is over
    breaker().pause_s = 3600.0
    errors: list[str] = []

    def ask() -> None:
        try:
            client().ping()
        except REDIS_ERRORS as error:
            errors.append(type(error).__name__)

    threads = [threading.Thread(target=ask) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE)
    assert sorted(errors) == ["CircuitOpen"] * 7 + ["TimeoutError"]
    assert redis_proxy.unanswered == 2


def test_the_circuit_closes_by_itself_when_the_server_answers(redis_proxy: RedisProxy) -> None:
    redis_proxy.hang()
    with pytest.raises(RedisTimeout):
        client().ping()
    redis_proxy.pass_on()

    def answers() -> bool:
        try:
            return bool(client().ping())
        except CircuitOpen:
            return False

    assert wait_until(answers)
    assert breaker().is_closed


def test_late_reply_opens_the_circuit_and_is_discarded(redis_proxy: RedisProxy) -> None:
    redis_proxy.hold_circuit_open()
    client().set(key("late"), "before")
    COUNT(keys=[key("count")])
    redis_proxy.answer_late(TIMEOUT_S * 4)
    with pytest.raises(RedisTimeout):
        COUNT(keys=[key("count")])
    with pytest.raises(CircuitOpen):
        client().get(key("late"))
    redis_proxy.pass_on()
    breaker().reset()
    assert client().get(key("late")) == b"before"
    assert client().get(key("count")) == b"2", "the command ran, although its answer came too late"


def test_a_refused_connection_opens_the_circuit(redis_proxy: RedisProxy) -> None:
    redis_proxy.hold_circuit_open()
    redis_proxy.refuse()
    with pytest.raises(REDIS_ERRORS) as refused:
        client().ping()
    assert not isinstance(refused.value, CircuitOpen)
    with pytest.raises(CircuitOpen):
        client().ping()
    redis_proxy.accept_again()
    breaker().reset()
    assert client().ping()


def test_a_lost_answer_makes_the_client_repeat_the_command(redis_proxy: RedisProxy) -> None:
    assert COUNT(keys=[key("count")]) == 1
    redis_proxy.cut_after(b"EVALSHA")
    assert COUNT(keys=[key("count")]) == 3, "it ran twice: scripts must be repeatable"
    assert redis_proxy.cuts == 1
    assert breaker().is_closed


def test_command_error_leaves_the_circuit_closed(redis_proxy: RedisProxy) -> None:
    with pytest.raises(ResponseError):
        client().execute_command("NO-SUCH-COMMAND")
    assert breaker().is_closed


def test_a_generation_is_established_although_an_answer_was_lost(redis_proxy: RedisProxy) -> None:
    generation.ensure_generation()  # loads the scripts
    client().delete(generation.key_name())
    redis_proxy.cut_after(generation._ESTABLISH.sha.encode())
    assert generation.ensure_generation()
    assert redis_proxy.cuts == 1
    assert generation.current_generation() is not None


def test_a_line_is_proposed_once_although_the_answer_was_lost(redis_proxy: RedisProxy) -> None:
    generation.ensure_generation()
    args = [0, "offer:1", 1, 5, "job:1", 5000, 7, 3, 1, 1, 3]  # pool 1 of five calls, number 7 of three lines
    redis_scripts.run_or_none(redis_scripts.PROPOSE, 0, "offer:0", *args[2:])
    redis_proxy.cut_after(b"offer:1")
    number, line_slot, pool_slot = redis_scripts.run_or_none(redis_scripts.PROPOSE, *args)
    assert (redis_proxy.cuts, number, line_slot, pool_slot) == (1, 7, 2, 2)
    assert client().hlen(f"{redis_scripts.base_key()}:line:7") == 2
    redis_proxy.cut_after(b"offer:1")
    redis_scripts.run_or_none(redis_scripts.RELEASE, "offer:1")
    assert client().hlen(f"{redis_scripts.base_key()}:line:7") == 1


def test_a_job_is_on_the_queue_although_the_answer_was_lost(redis_proxy: RedisProxy) -> None:
    redis_proxy.cut_after(b"tests.core.jobs.leave")
    enqueue(site.DISPATCH_QUEUE, "tests.core.jobs.leave", "a")
    assert redis_proxy.cuts == 1
    assert {tuple(job.args) for job in rq_queue(site.DISPATCH_QUEUE).get_jobs()} == {("a",)}


def test_databases_of_one_server_share_a_circuit_and_servers_do_not(redis_proxy: RedisProxy) -> None:
    same = f"redis://:secret@127.0.0.1:{redis_proxy.port}/5"
    assert breaker(same) is breaker()
    assert "secret" not in breaker(same).name
    assert breaker("redis://elsewhere:6379/0") is not breaker()
    assert connect_guarded(same).breaker is breaker()


def test_a_queue_on_another_server_has_a_circuit_of_its_own(redis_proxy: RedisProxy, settings: Any) -> None:
    settings.OUTBOX_QUEUE_TYPE, settings.OUTBOX_QUEUE_URL = "redis", redis_proxy.url
    with redis_proxy.direct():
        redis_proxy.hang()
        breaker(redis_proxy.url).pause_s = 3600.0
        publisher = queues.publisher()
        pointer = MessagePointer("1", "pool", "token", "HTTP", "http://x/", "group")
        for place in range(3):
            (error,) = publisher.publish_many([(pointer, f"{place}-1")])
            assert isinstance(error, queues.QueueUnavailable)
        assert redis_proxy.unanswered == 1
        assert publisher.breaker.is_open
        assert client().ping()
