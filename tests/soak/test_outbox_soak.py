"""Stream messages while pollers, routers, the queue and PostgreSQL are killed at random, for each type of queue.

Two machines, whose clocks are five seconds apart, run a poller and a router each. The receiver gets every message,
each group in order and one at a time.

Run by `make soak`, some minutes for each queue. `SOAK_MESSAGES` sets how many messages are sent: the test keeps
two bytes for each, so a million fit. `SOAK_SEND_S` ends the sending after this many seconds, whatever is left.
`SOAK_FAULT_EVERY` sets after how many requests, on average, the next fault comes, and `SOAK_CLOCKS_S` by how much
the clocks differ. A fault waits for requests, not for time, so a slow machine sees as many faults as a fast one.
`SOAK_SEED=…` repeats the random choices of a run, but not its timing.
"""

from __future__ import annotations

import json
import os
import random
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from django.db import Error, connection, connections, transaction
from django.db.models import Count

from dispatch.core.events.history import stream
from dispatch.core.http import webhook_signing as signing
from dispatch.outbox.models import Endpoint, Message, MessageGroup
from dispatch.outbox.services.intake import NewMessage, accept_messages, default_pool
from tests.harness.outbox import OPEN
from tests.soak.outbox_receiver import CountingReceiver
from tests.soak.outbox_site import AHEAD_S, COMMANDS, POLLERS, QUEUES, ROUTERS, Site, own_database, site
from tests.support import factories
from tests.support.histories import history_is_legal
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.soak, pytest.mark.django_db(transaction=True)]

MESSAGES = int(os.environ.get("SOAK_MESSAGES", "20000"))
SEND_S = float(os.environ.get("SOAK_SEND_S", "inf"))
# A million messages meet a hundred faults: each one costs a lease, and starting processes.
FAULT_EVERY = int(os.environ.get("SOAK_FAULT_EVERY", str(max(500, MESSAGES // 100))))
CLOCKS_S = float(os.environ.get("SOAK_CLOCKS_S", str(AHEAD_S)))
GROUPS = min(1000, max(200, MESSAGES // 100))
ROUNDS = -(-MESSAGES // GROUPS)
# Groups without order.
FREE_GROUPS = 2
# Messages are sent as long as fewer than this are open.
MOST_OPEN = 10 * GROUPS
# More than the attempts of a killed router, whose slots are held until their leases lapse.
CONCURRENCY = GROUPS // 2
CALM_WITHIN_S = 1800.0
LIKELY = {
    "a router is killed": 5, "a poller is killed": 3, "all routers are killed": 1, "all pollers are killed": 1,
    "everything is killed": 1, "the queue is killed": 2, "the queue loses everything": 2,
    "the database is killed": 2,
}  # fmt: skip


@pytest.mark.timeout(7200)
@pytest.mark.parametrize("queue", QUEUES)
def test_random_kills_keep_each_group_in_order(seed: int, tmp_path: Path, queue: str) -> None:
    rng, moment = random.Random(seed), threading.Event()
    seen: Counter[str] = Counter()
    receiver = CountingReceiver(GROUPS, ROUNDS, FREE_GROUPS, seed)
    with closing(receiver), own_database() as database:
        organization = factories.organization("Copper State HVAC")
        pool = default_pool(organization.pk)
        pool.concurrency = CONCURRENCY
        pool.save()
        endpoint = Endpoint.objects.create(
            organization=organization, name="ERP", pool=pool, url=receiver.url, secret=signing.new_secret(),
            retry_schedule_s=[1] * 60, retry_jitter=0.0,
        )  # fmt: skip
        began = time.monotonic()
        with site(tmp_path, queue, database, CLOCKS_S) as here:
            sending = Sending(endpoint, seed)
            sending.start()
            while sending.is_alive():
                let_work(here, rng.randint(1, 2 * FAULT_EVERY), sending, receiver)
                happen(here, rng, moment, seen)
                say(receiver, began)
            sending.join()
            assert sending.error is None, sending.error
            wait_until(lambda: settled(here), CALM_WITHIN_S, lambda: left(here), interval=0.5)
        say(receiver, began)
        sent = sending.rounds * GROUPS
        found = count_violations(receiver, sent)
        print(f"{queue}: {sent} messages, {receiver.requests} requests, {found}")  # noqa: T201
        print(f"{here.restarts} restarts, {dict(seen)}")  # noqa: T201
        assert here.restarts
        assert not any(found.values()), receiver.examples
        assert dict(Message.objects.values_list("status").annotate(n=Count("pk"))) == {"COMPLETED": sent}
        nothing_is_held()
        print(history_is_legal())  # noqa: T201


def say(receiver: CountingReceiver, began: float) -> None:
    """Print how far the run is."""
    print(  # noqa: T201
        f"{time.strftime('%H:%M:%S')} {time.monotonic() - began:.0f} s, {receiver.requests} requests, "
        f"{receiver.out_of_order} out of order, {receiver.at_once} at once",
        flush=True,
    )


class Sending(threading.Thread):
    """Send a message for each group, again and again, until all are sent or the time is up.

    The idempotency key makes it safe to send a round again after PostgreSQL died during its commit.
    """

    def __init__(self, endpoint: Endpoint, seed: int) -> None:
        super().__init__(name="sending", daemon=True)
        self._endpoint, self._rng = endpoint, random.Random(seed + 1)
        self.rounds = 0
        self.error: BaseException | None = None

    def run(self) -> None:
        """Send; keep the error with which it ended, if any."""
        ends = time.monotonic() + SEND_S
        try:
            while self.rounds < ROUNDS and time.monotonic() < ends:
                items = [new(self._endpoint, group, self.rounds, self._rng) for group in range(GROUPS)]
                wait_until(lambda items=items: is_accepted(items), CALM_WITHIN_S, interval=0.2)
                self.rounds += 1
        except BaseException as error:
            self.error = error
        finally:
            connections.close_all()


def is_accepted(items: list[NewMessage]) -> bool:
    """Send these messages, unless too many are open or PostgreSQL is unavailable; return whether they are sent."""
    number = count_open()
    if number is None or number >= MOST_OPEN:
        return False
    try:
        assert items[0].endpoint
        accept_messages(items[0].endpoint.organization_id, items)
    except Error:
        connection.close()
        return False
    return True


def count_open() -> int | None:
    """Return how many messages are open, or None while PostgreSQL is unavailable.

    By index: reading the whole table took most of the machine's time once it had some 100,000 messages.
    """
    try:
        return Message.objects.filter(ended_at=None).count()
    except Error:
        connection.close()
        return None


def new(endpoint: Endpoint, group: int, round_: int, rng: random.Random) -> NewMessage:
    name = f"{group}:{round_}"
    mode = "IMMEDIATE" if group < FREE_GROUPS else rng.choice(["BLOCK_ON_ERROR", "NEXT_ON_ERROR"])
    return NewMessage(
        type="soak",
        payload=json.dumps({"name": name}, separators=(",", ":")),
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


def let_work(here: Site, requests: int, sending: threading.Thread, receiver: CountingReceiver) -> None:
    """Wait until this many more requests have arrived, or everything is sent."""
    before = receiver.requests
    wait_until(
        lambda: receiver.requests - before >= requests or not sending.is_alive(),
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


# Each message's name, how many attempts are recorded, how many of them without a response, how many delivered.
ATTEMPTS = """
SELECT m.idempotency_key, count(a.id), count(a.id) FILTER (WHERE a.status_code IS NULL),
       count(a.id) FILTER (WHERE a.outcome = 'delivered')
FROM outbox_message m LEFT JOIN outbox_attempt a ON a.message_id = m.id GROUP BY m.id
"""


def count_violations(receiver: CountingReceiver, sent: int) -> dict[str, int]:
    """Count messages that were lost, out of order, at once with another of their group, or doubled.

    `sent` is how many messages were sent.
    A message is doubled if it was received more often than its recorded attempts explain, or accepted again
    although Dispatch had a response to each earlier attempt: no process died, and no request timed out.
    """
    unexplained = results = again = 0
    for index, attempts, unanswered, delivered in read_attempts():
        unexplained += receiver.received[index] > attempts
        results += delivered - 1 > unanswered
        again += receiver.accepted[index] - 1 > unanswered
    return {
        "lost": receiver.received.count(0, 0, sent),
        "out of order": receiver.out_of_order,
        "at once": receiver.at_once,
        "not explained by attempts": unexplained,
        "two results without a lapse": results,
        "sent again after a response": again,
    }


def read_attempts() -> Iterator[tuple[int, int, int, int]]:
    """Yield for each message its place in the receiver's counts, and the counts of ATTEMPTS."""
    with transaction.atomic():
        for name, attempts, unanswered, delivered in stream(ATTEMPTS, {}):
            group, _, round_ = name.partition(":")
            yield int(round_) * GROUPS + int(group), attempts, unanswered, delivered


def nothing_is_held() -> None:
    assert not Message.objects.filter(in_flight=True).exists()
    assert not Message.objects.filter(pool_slot__isnull=False).exists()
    assert not MessageGroup.objects.filter(blocked_by__isnull=False).exists()
    assert not MessageGroup.objects.filter(wake_at__isnull=False).exists()
