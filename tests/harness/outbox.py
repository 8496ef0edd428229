"""What the outbox's tests speak: send messages, let pollers and routers work, look at their outcomes."""

from __future__ import annotations

import asyncio
import contextlib
import json
import threading
from collections.abc import Iterator
from typing import Any

from dispatch.core import clock
from dispatch.core.events import SYSTEM, Actor
from dispatch.core.http import webhook_signing as signing
from dispatch.outbox import poller, publisher
from dispatch.outbox.models import Endpoint, Message, MessageGroup
from dispatch.outbox.router import Router
from dispatch.outbox.services import actions, recovery
from dispatch.outbox.services.actions import Action
from dispatch.outbox.services.intake import NewMessage, accept_messages, default_pool
from tests.harness.threads import BackgroundThreads, run_service
from tests.outbox.receiver import Receiver
from tests.support import factories
from tests.support.waiting import PATIENCE, wait_until

OPEN = ("PENDING", "QUEUED", "PROCESSING")


class World:
    """One organization with a receiver. Nothing runs until a test starts it."""

    def __init__(self, receiver: Receiver) -> None:
        self.receiver = receiver
        self.organization = factories.organization("Copper State HVAC")
        self.pool = default_pool(self.organization.pk)
        self._threads = BackgroundThreads()

    # --- What there is
    def endpoint(self, name: str = "ERP", **fields: Any) -> Endpoint:
        fields.setdefault("organization", self.organization)
        fields.setdefault("pool", self.pool)
        fields.setdefault("url", self.receiver.url)
        fields.setdefault("secret", signing.new_secret())
        fields.setdefault("retry_schedule_s", [5, 30])
        fields.setdefault("retry_jitter", 0.0)
        return Endpoint.objects.create(name=name, **fields)

    def send(self, endpoint: Endpoint | None, *names: str, group: str | None = "g", **fields: Any) -> list[int]:
        """One message per name, in one transaction; their ids."""
        fields.setdefault("type", "order.changed")
        if endpoint is None:
            fields.setdefault("url", self.receiver.url)
        organization = endpoint.organization_id if endpoint else self.organization.pk
        items = [
            NewMessage(payload=json.dumps({"name": name}), endpoint=endpoint, group=group, **fields)
            for name in names
        ]
        return [accepted.id for accepted in accept_messages(organization, items)]

    def send_one(self, endpoint: Endpoint | None, name: str, **fields: Any) -> int:
        return self.send(endpoint, name, **fields)[0]

    # --- What runs
    def poll(self) -> float | None:
        """Polls until nothing more is claimed; what the last poll wished for."""
        while (wish := poller.poll_once()) == 0.0:
            pass
        return wish

    def start_router(self) -> None:
        self._threads.start(_route)

    def start_poller(self) -> None:
        """A poller that is not elected: any number may run, which must be harmless."""
        self._threads.start(_poll)

    def start(self, pollers: int = 1, routers: int = 1) -> None:
        for _ in range(routers):
            self.start_router()
        for _ in range(pollers):
            self.start_poller()

    def stop(self) -> None:
        self._threads.stop()

    def recover(self) -> None:
        """What the recovery loops do in one pass."""
        _, claims = recovery.recover_lapsed()
        publisher.publish_pointers(claims)
        _, claims = recovery.expire_messages()
        publisher.publish_pointers(claims)
        recovery.recover_stale()

    def start_recovery(self) -> None:
        """Repeat the recovery passes: one pass skips the groups that a poller or router has locked."""
        self._threads.start(lambda stopping: _recover(self, stopping))

    def travel(self, seconds: float) -> None:
        clock.travel(seconds)

    # --- What people do
    def act(self, word: str, *ids: int, actor: Actor = SYSTEM) -> actions.ActionResult:
        return actions.act_on_messages(Action.of(word), ids, actor=actor)

    # --- Outcome
    def status(self, message_id: int) -> str:
        return Message.objects.values_list("status", flat=True).get(pk=message_id)

    def statuses(self, ids: list[int]) -> list[str]:
        found = dict(Message.objects.filter(pk__in=ids).values_list("pk", "status"))
        return [found[message_id] for message_id in ids]

    def message(self, message_id: int) -> Message:
        return Message.objects.get(pk=message_id)

    def group(self, name: str = "g") -> MessageGroup:
        return MessageGroup.objects.get(organization=self.organization, name=name)

    def becomes(self, message_id: int, status: str, timeout: float = PATIENCE) -> Message:
        wait_until(
            lambda: self.status(message_id) == status,
            message=lambda: (
                f"message {message_id} is {self.status(message_id)}, not {status}: {self.told(message_id)}"
            ),
            timeout=timeout,
        )
        return self.message(message_id)

    def all_end(self, timeout: float = PATIENCE) -> None:
        """Waits until nothing is on its way."""
        wait_until(
            lambda: not Message.objects.filter(status__in=OPEN).exists(),
            message=lambda: (
                f"still open: {list(Message.objects.filter(status__in=OPEN).values('id', 'status')[:20])}"
            ),
            timeout=timeout,
        )

    def rests(self, timeout: float = PATIENCE) -> None:
        """Waits until nothing is in flight."""
        wait_until(
            lambda: not Message.objects.filter(in_flight=True).exists(), message="still in flight", timeout=timeout
        )

    def told(self, message_id: int) -> list[str]:
        """The message's events, in order."""
        from dispatch.core.models import Event

        events = Event.objects.filter(subject_type="message", subject_id=message_id).order_by("id")
        return [kind.partition(".")[2] for kind in events.values_list("kind", flat=True)]


@contextlib.contextmanager
def open_world() -> Iterator[World]:
    """Yield a world with its own receiver. At the end, stop everything that it started."""
    publisher.reset()
    receiver = Receiver()
    world = World(receiver)
    yield world
    world.stop()
    receiver.close()
    publisher.reset()


def _route(stopping: threading.Event) -> None:
    run_service(lambda done: Router().run(done), stopping)


def _poll(stopping: threading.Event) -> None:
    while not stopping.is_set():
        with contextlib.suppress(asyncio.CancelledError):
            wish = poller.poll_once()
        stopping.wait(0.0 if wish == 0.0 else 0.02)


def _recover(world: World, stopping: threading.Event) -> None:
    while not stopping.is_set():
        world.recover()
        stopping.wait(0.05)
