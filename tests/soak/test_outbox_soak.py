"""Stream messages while pollers, routers and Redis are killed at random.

Three pollers and three routers run as processes, and Redis is killed and flushed: the receiver gets every message,
each group in order and one at a time.

Run by `make soak`; `SOAK_SEED=…` repeats the random choices of a run, but not its timing.
"""

from __future__ import annotations

import json
import os
import random
import threading
from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from django.db import connection, connections
from django.db.models import Count

from dispatch.outbox.models import Attempt, Endpoint, Message, MessageGroup
from dispatch.outbox.services.intake import NewMessage, accept_messages
from tests.core.outages import OwnValkey, own_valkey
from tests.harness.outbox import OPEN, World
from tests.outbox.receiver import Receiver
from tests.outbox.transport.brokers import ActiveMqServer
from tests.support.histories import history_is_legal
from tests.support.processes import Process, environment
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.soak, pytest.mark.django_db(transaction=True)]

GROUPS, ROUNDS = 60, int(os.environ.get("SOAK_ROUNDS", "60"))
EVERY_S = 0.8
TROUBLES = ROUNDS // 2
CALM_WITHIN_S = 240
POLLERS = ("poller 1", "poller 2", "poller 3")
ROUTERS = ("router 1", "router 2", "router 3")
COMMANDS = {
    **dict.fromkeys(POLLERS, ("dispatcher", "--only", "outbox_poller,outbox_leases,outbox_stale")),
    **dict.fromkeys(ROUTERS, ("dispatcher", "--only", "outbox_router")),
}
# Short enough to see in a minute what takes its time in life.
HURRIED = {
    "LEADER_LEASE_S": "3", "LEADER_RENEW_S": "1", "OUTBOX_POLL_INTERVAL_S": "0.5", "OUTBOX_MAX_TIMEOUT_S": "1",
    "OUTBOX_LEASE_S": "9", "OUTBOX_LEASE_INTERVAL_S": "0.5", "OUTBOX_STALE_AFTER_S": "10",
    "OUTBOX_STALE_INTERVAL_S": "1", "OUTBOX_VISIBILITY_S": "5", "OUTBOX_CIRCUIT_OPEN_S": "1",
    "OUTBOX_CIRCUIT_LONGEST_S": "2", "OUTBOX_LAPSES": "1000", "LOG_LEVEL": "WARNING",
}  # fmt: skip
LIKELY = {
    "a router is killed": 5, "a poller is killed": 3, "all routers are killed": 1, "all pollers are killed": 1,
    "everything is killed": 1, "the queue is killed": 2, "the queue loses everything": 2,
}  # fmt: skip


class Site:
    """The processes by name, each of which can be killed and started again, and the queue between them."""

    def __init__(self, env: dict[str, str], redis: OwnValkey, activemq: ActiveMqServer | None) -> None:
        self._env, self._redis, self._activemq = env, redis, activemq
        self._running: dict[str, Process] = {}
        self.restarts = 0

    def revive(self) -> None:
        for name, command in COMMANDS.items():
            process = self._running.get(name)
            if process is None or process.returncode is not None:
                self.restarts += process is not None
                self._running[name] = Process(command, self._env)

    def kill(self, *names: str) -> None:
        for name in names:
            self._running[name].kill()

    def kill_the_queue(self, for_s: float, moment: threading.Event) -> None:
        if self._activemq:
            self._activemq.stop()
            moment.wait(for_s)
            self._activemq.start()
            return
        self._redis.kill()
        moment.wait(for_s)
        self._redis.start()

    def empty_the_queue(self) -> None:
        if not self._activemq:  # which keeps what it has on disk
            self._redis.client().flushall()

    def logs(self) -> str:
        return "\n".join(f"--- {name}\n{one.log()[-2000:]}" for name, one in self._running.items())


@contextmanager
def site(folder: Path, queue: str) -> Iterator[Site]:
    with ExitStack() as stack:
        redis = stack.enter_context(own_valkey(folder / "redis"))
        given = {**HURRIED, "REDIS_URL": redis.url}
        activemq = None
        if queue == "activemq":
            if not ActiveMqServer.installed():
                pytest.skip("ActiveMQ is not installed (Debian: apt install activemq)")
            (folder / "activemq").mkdir()
            activemq = ActiveMqServer(folder / "activemq", scheduler=False)
            activemq.start()
            stack.callback(activemq.stop)
            given |= {
                "OUTBOX_QUEUE_TYPE": "activemq",
                "OUTBOX_QUEUE_URL": f"stomp://127.0.0.1:{activemq.port}/soak",
            }
        made = Site(environment(connection.settings_dict["NAME"], **given), redis, activemq)
        stack.callback(lambda: made.kill(*made._running))
        made.revive()
        yield made


@pytest.fixture
def seed() -> int:
    """SOAK_SEED, or a new one, told so that a run can be repeated."""
    chosen = int(os.environ.get("SOAK_SEED") or random.SystemRandom().randrange(1_000_000))
    print(f"SOAK_SEED={chosen}")  # noqa: T201
    return chosen


@pytest.fixture
def world() -> Iterator[World]:
    receiver = Receiver()
    found = World(receiver)
    found.pool.concurrency = 40
    found.pool.save()
    yield found
    receiver.close()


@pytest.mark.timeout(900)
@pytest.mark.parametrize("queue", ["redis", "activemq"])
def test_random_kills_keep_each_group_in_order(world: World, seed: int, tmp_path: Path, queue: str) -> None:
    rng, moment = random.Random(seed), threading.Event()
    endpoint = world.endpoint(retry_schedule_s=[1] * 60)
    seen: Counter[str] = Counter()
    with site(tmp_path, queue) as here:
        sending = threading.Thread(target=send_all, args=(world, endpoint, seed, moment))
        sending.start()
        while sending.is_alive() or seen.total() < TROUBLES:
            happen(here, rng, moment, seen)
        sending.join()
        wait_until(lambda: settled(here), CALM_WITHIN_S, lambda: left(here), interval=0.5)
        print(dict(seen), f"{here.restarts} restarts, {len(world.receiver.visits)} calls")  # noqa: T201
    assert here.restarts >= TROUBLES / 2
    everything_arrived(world)
    each_group_came_in_order_and_one_at_a_time(world)
    what_came_twice_was_cut_off(world)
    nothing_is_held()
    print(history_is_legal())  # noqa: T201


def send_all(world: World, endpoint: Endpoint, seed: int, moment: threading.Event) -> None:
    """A message for each group every so often, all the while."""
    rng = random.Random(seed + 1)
    try:
        for round_ in range(ROUNDS):
            accept_messages(
                world.organization.pk, [new(world, endpoint, group, round_, rng) for group in range(GROUPS)]
            )
            moment.wait(EVERY_S)
    finally:
        connections.close_all()


def new(world: World, endpoint: Endpoint, group: int, round_: int, rng: random.Random) -> NewMessage:
    """Some the receiver refuses a few times, puts off or takes slowly; two of the groups have no order."""
    name, chance = f"{group}:{round_}", rng.random()
    if chance < 0.03:
        world.receiver.answer(name, 500, times=rng.randint(1, 2))
    elif chance < 0.05:
        world.receiver.answer(name, 429, times=1, Retry_After="1")
    elif chance < 0.12:
        world.receiver.answer(name, after_s=rng.uniform(0.05, 0.6), times=1)
    mode = "IMMEDIATE" if group < 2 else rng.choice(["BLOCK_ON_ERROR", "NEXT_ON_ERROR"])
    payload = json.dumps({"name": name})
    return NewMessage(type="soak", payload=payload, endpoint=endpoint, group=f"g{group}", mode=mode)


def happen(here: Site, rng: random.Random, moment: threading.Event, seen: Counter[str]) -> None:
    what = rng.choices(list(LIKELY), weights=list(LIKELY.values()))[0]
    seen[what] += 1
    match what:
        case "a router is killed":
            here.kill(rng.choice(ROUTERS))
        case "a poller is killed":
            here.kill(rng.choice(POLLERS))
        case "all routers are killed":
            here.kill(*ROUTERS)
        case "all pollers are killed":
            here.kill(*POLLERS)
        case "everything is killed":
            here.kill(*COMMANDS)
        case "the queue is killed":
            here.kill_the_queue(rng.uniform(0.0, 2.0), moment)
        case "the queue loses everything":
            here.empty_the_queue()
    moment.wait(rng.uniform(0.0, 1.0))
    here.revive()
    moment.wait(rng.uniform(0.5, 2.5))


def settled(here: Site) -> bool:
    here.revive()
    return not Message.objects.filter(status__in=OPEN).exists()


def left(here: Site) -> str:
    found = Message.objects.filter(status__in=OPEN).order_by("id")
    rows = list(found.values("id", "status", "waiting_for", "due_at", "queued_at", "lease_until", "lapses")[:10])
    return f"{found.count()} still open: {rows}\n{here.logs()}"


def everything_arrived(world: World) -> None:
    wanted = {f"{group}:{round_}" for group in range(GROUPS) for round_ in range(ROUNDS)}
    assert set(world.receiver.names) == wanted
    assert dict(Message.objects.values_list("status").annotate(n=Count("pk"))) == {"COMPLETED": GROUPS * ROUNDS}


def each_group_came_in_order_and_one_at_a_time(world: World) -> None:
    came: dict[str, list[int]] = defaultdict(list)
    for visit in sorted(world.receiver.visits, key=lambda visit: visit.began):
        group, _, round_ = visit.name.partition(":")
        came[group].append(int(round_))
    for group, rounds in came.items():
        if int(group) >= 2:
            assert rounds == sorted(rounds), f"group {group} came as {rounds}"
    overlaps = [pair for pair in world.receiver.overlaps() if int(pair[0].partition(":")[0]) >= 2]
    assert not overlaps


def what_came_twice_was_cut_off(world: World) -> None:
    """Check that every received request is a recorded attempt, with a result or of a process that died.

    Each crash costs a message at most one extra attempt.
    """
    names = dict(Message.objects.values_list("pk", "payload"))
    booked: Counter[str] = Counter()
    for message, number in Attempt.objects.values_list("message").annotate(n=Count("pk")):
        booked[_name(names[message])] += number
    too_many = {name: count for name, count in Counter(world.receiver.names).items() if count > booked[name]}
    assert not too_many


def nothing_is_held() -> None:
    assert not Message.objects.filter(in_flight=True).exists()
    assert not Message.objects.filter(pool_slot__isnull=False).exists()
    assert not MessageGroup.objects.filter(blocked_by__isnull=False).exists()
    assert not MessageGroup.objects.filter(wake_at__isnull=False).exists()


def _name(payload: str) -> str:
    return str(json.loads(payload)["name"])
