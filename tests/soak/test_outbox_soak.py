"""Stream messages while pollers, routers, the queue and PostgreSQL are killed at random, for each type of queue.

Two machines, whose clocks are five seconds apart, run a poller and a router each. The receiver gets every message,
each group in order and one at a time.

Run by `make soak`, about ten minutes for each queue. `SOAK_MESSAGES` sets how many messages are sent,
`SOAK_FAULT_EVERY` after how many requests, on average, the next fault comes, and `SOAK_CLOCKS_S` by how much the
clocks differ. A fault waits for requests, not for time, so a slow machine sees as many faults as a fast one.
`SOAK_SEED=…` repeats the random choices of a run, but not its timing.
"""

from __future__ import annotations

import json
import os
import random
import threading
import time
from collections import Counter, defaultdict
from pathlib import Path

import pytest
from django.db import Error, connection, connections
from django.db.models import Count

from dispatch.outbox.models import Attempt, Endpoint, Message, MessageGroup
from dispatch.outbox.services.intake import NewMessage, accept_messages
from tests.harness.outbox import OPEN, World
from tests.outbox.receiver import Receiver
from tests.soak.outbox_site import AHEAD_S, COMMANDS, POLLERS, QUEUES, ROUTERS, Site, own_database, site
from tests.support.histories import history_is_legal
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.soak, pytest.mark.django_db(transaction=True)]

MESSAGES = int(os.environ.get("SOAK_MESSAGES", "20000"))
FAULT_EVERY = int(os.environ.get("SOAK_FAULT_EVERY", "500"))
CLOCKS_S = float(os.environ.get("SOAK_CLOCKS_S", str(AHEAD_S)))
GROUPS = 200
ROUNDS = -(-MESSAGES // GROUPS)
# Groups without order.
FREE_GROUPS = 2
# Messages are sent as long as fewer than this are open.
MOST_OPEN = 2000
CALM_WITHIN_S = 1800.0
LIKELY = {
    "a router is killed": 5, "a poller is killed": 3, "all routers are killed": 1, "all pollers are killed": 1,
    "everything is killed": 1, "the queue is killed": 2, "the queue loses everything": 2,
    "the database is killed": 2,
}  # fmt: skip


@pytest.mark.timeout(7200)
@pytest.mark.parametrize("queue", QUEUES)
def test_random_kills_keep_each_group_in_order(receiver: Receiver, seed: int, tmp_path: Path, queue: str) -> None:
    rng, moment = random.Random(seed), threading.Event()
    seen: Counter[str] = Counter()
    with own_database() as database:
        world = World(receiver)
        world.pool.concurrency = 40
        world.pool.save()
        endpoint = world.endpoint(retry_schedule_s=[1] * 60)
        with site(tmp_path, queue, database, CLOCKS_S) as here:
            sending = threading.Thread(target=send_all, args=(world, endpoint, seed))
            sending.start()
            while sending.is_alive():
                let_work(here, rng.randint(1, 2 * FAULT_EVERY), sending, receiver)
                happen(here, rng, moment, seen)
            sending.join()
            wait_until(lambda: settled(here), CALM_WITHIN_S, lambda: left(here), interval=0.5)
        found = count_violations(world)
        print(f"{queue}: {ROUNDS * GROUPS} messages, {len(receiver.visits)} requests, {found}")  # noqa: T201
        print(f"{here.restarts} restarts, {dict(seen)}")  # noqa: T201
        assert here.restarts
        assert not any(found.values())
        assert dict(Message.objects.values_list("status").annotate(n=Count("pk"))) == {
            "COMPLETED": GROUPS * ROUNDS
        }
        nothing_is_held()
        print(history_is_legal())  # noqa: T201


def send_all(world: World, endpoint: Endpoint, seed: int) -> None:
    """Send a message for each group, again and again, until all are sent.

    The idempotency key makes it safe to send a round again after PostgreSQL died during its commit.
    """
    rng = random.Random(seed + 1)
    try:
        for round_ in range(ROUNDS):
            items = [new(world, endpoint, group, round_, rng) for group in range(GROUPS)]
            wait_until(lambda items=items: is_accepted(world, items), CALM_WITHIN_S, interval=0.2)
    finally:
        connections.close_all()


def is_accepted(world: World, items: list[NewMessage]) -> bool:
    """Send these messages, unless too many are open or PostgreSQL is unavailable; return whether they are sent."""
    number = count_open()
    if number is None or number >= MOST_OPEN:
        return False
    try:
        accept_messages(world.organization.pk, items)
    except Error:
        connection.close()
        return False
    return True


def count_open() -> int | None:
    """Return how many messages are open, or None while PostgreSQL is unavailable."""
    try:
        return Message.objects.filter(status__in=OPEN).count()
    except Error:
        connection.close()
        return None


def new(world: World, endpoint: Endpoint, group: int, round_: int, rng: random.Random) -> NewMessage:
    """Return a message. The receiver refuses some a few times, puts some off and takes some slowly."""
    name, chance = f"{group}:{round_}", rng.random()
    if chance < 0.01:
        world.receiver.answer(name, 500, times=rng.randint(1, 2))
    elif chance < 0.02:
        world.receiver.answer(name, 429, times=1, Retry_After="1")
    elif chance < 0.05:
        world.receiver.answer(name, after_s=rng.uniform(0.05, 0.6), times=1)
    mode = "IMMEDIATE" if group < FREE_GROUPS else rng.choice(["BLOCK_ON_ERROR", "NEXT_ON_ERROR"])
    return NewMessage(
        type="soak",
        payload=json.dumps({"name": name}),
        endpoint=endpoint,
        group=f"g{group}",
        mode=mode,
        idempotency_key=name,
    )


def happen(here: Site, rng: random.Random, moment: threading.Event, seen: Counter[str]) -> None:
    what = rng.choices(list(LIKELY), weights=list(LIKELY.values()))[0]
    seen[what] += 1
    print(f"{time.strftime('%H:%M:%S')} {what}", flush=True)  # noqa: T201
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
            here.queue.kill_for(rng.uniform(0.0, 2.0), moment)
        case "the queue loses everything":
            here.queue.lose_everything()
        case "the database is killed":
            here.kill_database(rng.uniform(0.0, 2.0), moment)
    moment.wait(rng.uniform(0.0, 1.0))
    here.revive()


def let_work(here: Site, requests: int, sending: threading.Thread, receiver: Receiver) -> None:
    """Wait until this many more requests have arrived, or everything is sent."""
    before = len(receiver.visits)
    wait_until(
        lambda: len(receiver.visits) - before >= requests or not sending.is_alive(),
        CALM_WITHIN_S,
        lambda: left(here),
        interval=0.2,
    )
    here.revive()


def settled(here: Site) -> bool:
    here.revive()
    return count_open() == 0


def left(here: Site) -> str:
    found = Message.objects.filter(status__in=OPEN).order_by("id")
    rows = list(found.values("id", "status", "waiting_for", "due_at", "queued_at", "lease_until", "lapses")[:10])
    return f"{found.count()} still open: {rows}\n{here.logs()}"


def count_violations(world: World) -> dict[str, int]:
    """Count messages that were lost, out of order, at once with another of their group, or doubled.

    A message is doubled if it was received more often than its recorded attempts explain, or accepted again
    although Dispatch had a response to each earlier attempt: no process died, and no request timed out.
    """
    visits = sorted(world.receiver.visits, key=lambda visit: visit.began)
    wanted = {f"{group}:{round_}" for group in range(GROUPS) for round_ in range(ROUNDS)}
    received = Counter(visit.name for visit in visits)
    names = {pk: str(json.loads(payload)["name"]) for pk, payload in Message.objects.values_list("pk", "payload")}
    attempts, unanswered, accepted = Counter[str](), Counter[str](), Counter[str]()
    for message, outcome, status_code in Attempt.objects.values_list("message", "outcome", "status_code"):
        attempts[names[message]] += 1
        unanswered[names[message]] += status_code is None
        accepted[names[message]] += outcome == Attempt.Outcome.DELIVERED
    latest: dict[str, int] = defaultdict(lambda: -1)
    out_of_order = 0
    for visit in visits:
        group, _, round_ = visit.name.partition(":")
        if int(group) >= FREE_GROUPS:
            out_of_order += int(round_) < latest[group]
            latest[group] = max(latest[group], int(round_))
    at_once = [pair for pair in world.receiver.overlaps() if int(pair[0].partition(":")[0]) >= FREE_GROUPS]
    return {
        "lost": len(wanted - received.keys()),
        "out of order": out_of_order,
        "at once": len(at_once),
        "not explained by attempts": sum(received[name] > attempts[name] for name in received),
        "two results without a lapse": sum(number - 1 > unanswered[name] for name, number in accepted.items()),
        "sent again after a response": sent_again(world, unanswered),
    }


def sent_again(world: World, unanswered: Counter[str]) -> int:
    """Count messages that the receiver accepted more often than once and one time for each lost response."""
    accepted = Counter(visit.name for visit in world.receiver.visits if visit.status == 200)
    return sum(number - 1 > unanswered[name] for name, number in accepted.items())


def nothing_is_held() -> None:
    assert not Message.objects.filter(in_flight=True).exists()
    assert not Message.objects.filter(pool_slot__isnull=False).exists()
    assert not MessageGroup.objects.filter(blocked_by__isnull=False).exists()
    assert not MessageGroup.objects.filter(wake_at__isnull=False).exists()
