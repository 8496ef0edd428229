"""Define the interface of a queue of pointers.

Delivery is at least once: a pointer may arrive twice or out of order; the epoch in its token makes both
harmless. Pointers that a broker loses are published again by stale recovery.
"""

from __future__ import annotations

import functools
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Self

from dispatch.core.circuit_breaker import CircuitBreaker
from dispatch.outbox.pointer import MessagePointer

# (pointer, deduplication id): one id per message and epoch, so that a retry in a new epoch is not a duplicate.
Publication = tuple[MessagePointer, str]


class QueueUnavailable(Exception):
    """The queue is unreachable or refused the request. A publication may or may not have arrived."""


@dataclass(frozen=True)
class Delivery:
    """One pointer delivered to this consumer, and to no other before OUTBOX_VISIBILITY_S has passed.

    `pointer_json` is the raw content; it may be malformed. Call exactly one of `ack` and `release`, from
    any thread. Both raise QueueUnavailable, after which the queue redelivers the pointer.
    """

    pointer_json: str
    receipt: str
    _ack: Callable[[Sequence[Delivery]], None] = field(repr=False, compare=False)
    _release: Callable[[Delivery, float], None] = field(repr=False, compare=False)

    def ack(self) -> None:
        """Acknowledge the pointer, so that it is not delivered again. For many, use `Consumer.ack_many`."""
        self._ack([self])

    def release(self, delay_s: float = 0.0) -> None:
        """Return the pointer to the queue, which delivers it to any consumer after `delay_s` seconds."""
        self._release(self, max(0.0, delay_s))


class Publisher(ABC):
    """Put pointers on the queue. Safe to use from any thread; connects on first use."""

    # Whether the broker itself drops a second publication with the same deduplication id.
    deduplicates: bool = True

    @functools.cached_property
    def breaker(self) -> CircuitBreaker:
        """Return the broker's circuit breaker, which is shared with other users of the same broker."""
        return CircuitBreaker("outbox queue", pause_s=5.0)

    @abstractmethod
    def publish_many(self, publications: Sequence[Publication]) -> list[Exception | None]:
        """Publish in as few round trips as the broker allows; return the result of each publication, in order.

        A result is None (published, or a duplicate) or the QueueUnavailable that prevented it. No exception of
        the broker's client is raised.
        """

    def publish(self, pointer: MessagePointer, dedup_id: str) -> None:
        """Publish one pointer; a duplicate counts as published. Raises QueueUnavailable."""
        (error,) = self.publish_many([(pointer, dedup_id)])
        if error is not None:
            raise error

    @abstractmethod
    def ping(self) -> None:
        """Check that the broker is reachable and has the queue. Raises QueueUnavailable."""

    def close(self) -> None:  # noqa: B027  (not every queue has a connection)
        """Close the connection; the next use opens another."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


class Consumer(ABC):
    """Take pointers from the queue, under a unique name.

    Call `receive` from one thread at a time; `ack` and `release` work from any. `max_held` is how many
    unacknowledged deliveries the broker allows this consumer (None: any number).
    """

    max_held: int | None = None

    def __init__(self, name: str) -> None:
        self.name = name

    @abstractmethod
    def receive(self, max_n: int, wait_s: float) -> list[Delivery]:
        """Receive at most `max_n` deliveries, waiting up to `wait_s` seconds for the first.

        Raises QueueUnavailable.
        """

    def ack_many(self, deliveries: Iterable[Delivery]) -> None:
        """Acknowledge several deliveries in as few round trips as the broker allows. Raises QueueUnavailable."""
        batch = list(deliveries)
        if batch:
            batch[0]._ack(batch)

    def close(self) -> None:  # noqa: B027  (not every queue has a connection)
        """Close the connection. Unacknowledged deliveries go to other consumers."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()
