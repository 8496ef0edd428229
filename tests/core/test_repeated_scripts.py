"""Each Lua script, of every slice, runs twice if its reply is lost, and leaves what one run leaves."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from django.conf import settings

import dispatch
from dispatch.capacity import redis_scripts as lines
from dispatch.capacity.bulk import PoolLimits
from dispatch.capacity.rules import NumberLimits
from dispatch.capacity.sql import UsableNumber
from dispatch.core.redis import client as core_client
from dispatch.core.redis import generation
from dispatch.core.redis.client import Script, client
from dispatch.leads import redis_queue
from dispatch.leads import redis_scripts as leads
from dispatch.leads.redis_queue import ClaimOutcome, ScheduleEntry
from dispatch.outbox.queues import redis_streams as streams
from tests.conftest import forget_redis
from tests.harness.reply_loss import ReplyLoss, losing_replies

PAST, FUTURE = 1_000, 9_000_000_000_000
DUE, NEXT = ScheduleEntry(1, 1, 1, PAST), ScheduleEntry(1, 2, 1, PAST + 1)
USABLE = UsableNumber(NumberLimits(1, 3, 0, 0), 1, "+16025550100", 2, None, 1.0, 1)
LIMITS = PoolLimits(1, 1, {1: USABLE}, 2, 0)
BATCH = "ann:1"
PROPOSAL = (0, "offer:1", 1, 5, "job:1", 5000, 7, 3, 1, 1, 3)  # pool 1 of five calls, number 7 of three lines
LEASE = "7:1:1:1:1000"  # number, line slot, pool, pool slot, when it was taken
PREFIX = settings.REDIS_PREFIX
STREAM, DELAYED = f"{PREFIX}stream", f"{PREFIX}delayed"
LOCK, ESTABLISHED = f"{PREFIX}lock", f"{PREFIX}established"
SLOW_MS = 60_000  # between two requests of an account: the second waits


class Case(NamedTuple):
    """A script, what is in Redis before it, and the call whose reply is lost.

    `counts`: it may only count more, because an account that waits too long breaks no limit.
    """

    script: Script
    prepare: Callable[[], object]
    call: Callable[[], object]
    repeats_its_answer: bool = False
    counts: bool = False


def nothing() -> None:
    """Leave Redis empty."""


def schedule(*entries: ScheduleEntry) -> None:
    redis_queue.sync_entries(entries)


def make_ready() -> None:
    schedule(DUE, NEXT)
    redis_queue.promote_due(10)


def reserve() -> object:
    return redis_queue.reserve(BATCH, 1, LIMITS)


def hold_one() -> None:
    make_ready()
    reserve()


def block_pool() -> None:
    """Leave a lead ready in a pool that has no free line."""
    make_ready()
    redis_queue.reserve("ann:2", 1, PoolLimits(1, 1, {}, 2, 0))


def lapse() -> None:
    hold_one()
    client().zadd(f"{redis_queue.base_key()}:batches", {BATCH: PAST})


def on_lines(script: Script, *args: Any) -> Callable[[], object]:
    return lambda: lines.run_script(script, args)


def lease_line() -> None:
    lines.run_script(lines.PROPOSE, PROPOSAL)


def adopt() -> None:
    lines.run_script(lines.ADOPT, [0, "offer:1", 7, 1, 1, 1])
    client().hset(f"{lines.base_key()}:leases", "offer:1", LEASE)


def make_stream() -> None:
    client().xgroup_create(STREAM, "group", id="0", mkstream=True)


def deliver() -> None:
    make_stream()
    client().xadd(STREAM, {"pointer": "one"}, id="1-1")
    client().xreadgroup("group", "ann", {STREAM: ">"})


COMPLETED = [
    ClaimOutcome(BATCH, DUE.member, "again", PAST, DUE.member),
    ClaimOutcome(BATCH, NEXT.member, "later", FUTURE, NEXT.member),
]
CASES = [
    Case(leads.SCHEDULE, nothing, lambda: schedule(DUE, NEXT)),
    Case(leads.SCHEDULE_MISSING, hold_one, lambda: redis_queue.sync_missing(f"{PAST} 1:1:1 {FUTURE} 1:9:1")),
    Case(leads.UNSCHEDULE, make_ready, lambda: redis_queue.dequeue([DUE.member])),
    Case(leads.PROMOTE, lambda: schedule(DUE, NEXT), lambda: redis_queue.promote_due(10)),
    Case(leads.READY_POOLS, make_ready, redis_queue.ready_pools, repeats_its_answer=True),
    Case(leads.LINES_FREED, block_pool, lambda: redis_queue.notify_dialers([1])),
    Case(leads.RESERVE, make_ready, reserve, repeats_its_answer=True),
    Case(
        leads.COMPLETE,
        lambda: [make_ready(), redis_queue.reserve(BATCH, 2, LIMITS)],
        lambda: redis_queue.complete_reservations(COMPLETED),
    ),
    Case(leads.HEARTBEAT, nothing, lambda: redis_queue.heartbeat("ann")),
    Case(leads.REAP, lapse, lambda: redis_queue.reap(60)),
    Case(leads.DEREGISTER, hold_one, lambda: redis_queue.deregister("ann")),
    Case(lines.PROPOSE, nothing, on_lines(lines.PROPOSE, *PROPOSAL), repeats_its_answer=True),
    Case(lines.RELEASE, lease_line, on_lines(lines.RELEASE, "offer:1")),
    Case(lines.ADOPT, lease_line, on_lines(lines.ADOPT, 0, "offer:2", 7, 1, 1, 1)),
    Case(lines.END_STALE, adopt, on_lines(lines.END_STALE, "offer:1", LEASE)),
    Case(lines.TAKE, nothing, on_lines(lines.TAKE, 0, 1, SLOW_MS, 1, 10)),
    Case(lines.TAKE_MANY, nothing, on_lines(lines.TAKE_MANY, 0, 1, 1, 1, 100, 3), counts=True),
    Case(lines.PAUSE_ACCOUNT, nothing, on_lines(lines.PAUSE_ACCOUNT, 0, 1, SLOW_MS)),
    Case(lines.RESTORE_RATE, nothing, on_lines(lines.RESTORE_RATE, "window", 1, 1000, 2000, 2000)),
    Case(
        streams._PUBLISH,
        nothing,
        lambda: streams._PUBLISH([STREAM, f"{PREFIX}seen:1", f"{PREFIX}seen:2"], [SLOW_MS, "one", "two"]),
    ),
    Case(
        streams._RESUME,
        lambda: client().zadd(DELAYED, {"1-1|one": PAST, "1-2|two": FUTURE}),
        lambda: streams._RESUME([STREAM, DELAYED], [0, 10]),
    ),
    Case(
        streams._RELEASE,
        deliver,
        lambda: streams._RELEASE([STREAM, DELAYED], ["group", "1-1", "one", 0, SLOW_MS]),
    ),
    Case(
        streams._DELETE_IDLE_CONSUMERS,
        lambda: [make_stream(), client().xgroup_createconsumer(STREAM, "group", "bob")],
        lambda: streams._DELETE_IDLE_CONSUMERS([STREAM], ["group", 0]),
    ),
    Case(
        core_client._DELETE_IF_MINE,
        lambda: client().set(LOCK, "mine"),
        lambda: core_client.delete_if_mine(LOCK, "mine", client()),
    ),
    Case(
        generation._RENEW,
        lambda: client().set(LOCK, "mine"),
        lambda: generation._RENEW([LOCK], ["mine", SLOW_MS]),
        repeats_its_answer=True,
    ),
    Case(
        generation._ESTABLISH,
        lambda: client().set(LOCK, "mine"),
        lambda: generation._ESTABLISH([LOCK, ESTABLISHED], ["mine"]),
        repeats_its_answer=True,
    ),
]


@pytest.fixture(scope="module")
def proxy() -> Iterator[ReplyLoss]:
    with losing_replies(timeout_s=10) as made:
        yield made


@pytest.fixture(autouse=True)
def _clean() -> Iterator[None]:
    yield
    forget_redis()


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.script.name)
def test_a_script_whose_reply_is_lost_leaves_what_one_run_leaves(case: Case, proxy: ReplyLoss) -> None:
    begin(case)
    answer = case.call()
    once = contents()
    begin(case)
    proxy.lose(case.script, "cut")
    repeated = case.call()
    assert proxy.lost == 1
    if case.repeats_its_answer:
        assert repeated == answer
    if case.counts:
        twice = contents()
        assert twice.keys() == once.keys()
        assert all(len(twice[name]) >= len(value) for name, value in once.items() if isinstance(value, list))
    else:
        assert contents() == once


def test_a_repeated_request_for_a_turn_waits_instead_of_breaking_the_rate(proxy: ReplyLoss) -> None:
    begin(CASES[0])
    take = on_lines(lines.TAKE, 0, 1, SLOW_MS, 1, 10)
    proxy.lose(lines.TAKE, "cut")
    wait_ms: Any = take()
    assert wait_ms > 0


def test_every_script_is_tried() -> None:
    named = {(case.script.name) for case in CASES}
    folder = Path(dispatch.__file__).parent
    defined = set()
    for path in folder.rglob("*.py"):
        defined |= set(re.findall(r'= Script\(\s*"(\w+)"', path.read_text()))
    assert named == defined


def begin(case: Case) -> None:
    forget_redis()
    client().set(generation.key_name(), "valid")
    case.prepare()


def contents() -> dict[str, Any]:
    """Return all keys with their values; moments around now are replaced by "now"."""
    return {name.decode(): masked(value_of(name)) for name in sorted(client().scan_iter("*", count=1000))}


def value_of(name: bytes) -> Any:
    server: Any = client()
    match server.type(name):
        case b"string":
            return server.get(name)
        case b"hash":
            return sorted(server.hgetall(name).items())
        case b"set":
            return sorted(server.smembers(name))
        case b"zset":
            return server.zrange(name, 0, -1, withscores=True)
        case b"list":
            return server.lrange(name, 0, -1)
        case _:
            groups = server.xinfo_groups(name)
            members = [server.xinfo_consumers(name, group["name"]) for group in groups]
            left = [(one["name"], one["pending"]) for consumers in members for one in consumers]
            return [fields for _, fields in server.xrange(name)], left


def masked(value: Any) -> Any:
    if isinstance(value, tuple | list):
        return [masked(item) for item in value]
    if isinstance(value, bytes):
        return re.sub(rb"\d{13}(\.\d+)?", lambda found: masked_moment(found[0]), value)
    if isinstance(value, float):
        return masked_moment(b"%.0f" % value)
    return value


def masked_moment(text: bytes) -> bytes:
    return b"now" if abs(float(text) / 1000 - time.time()) < 3600 else text
