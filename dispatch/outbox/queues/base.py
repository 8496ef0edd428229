"""What every queue of pointers can do. At least once: a pointer may come twice and in another order, and the
epoch in its token makes that harmless; what a broker loses, stale recovery publishes anew."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Self

from dispatch.outbox.pointer import MessagePointer

# (pointer, deduplication id): one id per message and epoch, so that a retry is never taken for a repetition.
Publication = tuple[MessagePointer, str]


class QueueUnavailable(Exception):
    """The queue cannot be reached or refused. Whether a publication arrived may be unknown."""


@dataclass(frozen=True)
class Delivery:
    """One pointer handed to this consumer, which nobody else is given before OUTBOX_VISIBILITY_S has passed.

    `pointer_json` is what came, unparsed: it may be poison. Exactly one of `ack` and `release` is to be called,
    from any thread; both raise QueueUnavailable, after which the queue delivers it again by itself."""

    pointer_json: str
    receipt: str
    _ack: Callable[[Sequence[Delivery]], None] = field(repr=False, compare=False)
    _release: Callable[[Delivery, float], None] = field(repr=False, compare=False)

    def ack(self) -> None:
        """Done with: it is not delivered again. For many, `Consumer.ack_many`."""
        self._ack([self])

    def release(self, delay_s: float = 0.0) -> None:
        """Not now: it is delivered again, to anybody, after `delay_s` seconds."""
        self._release(self, max(0.0, delay_s))


class Publisher(ABC):
    """Puts pointers on the queue. May be used from any thread; opens its connection when first used."""

    # Whether the broker itself swallows a second publication with the same deduplication id.
    deduplicates: bool = True

    @abstractmethod
    def publish_many(self, publications: Sequence[Publication]) -> list[Exception | None]:
        """Publishes in as few round trips as the broker allows; for each, in order, None (published, or a
        duplicate of what was) or the QueueUnavailable that stopped it. Raises nothing of the broker's."""

    def publish(self, pointer: MessagePointer, dedup_id: str) -> None:
        """Publishes one; a duplicate counts as published. Raises QueueUnavailable."""
        (error,) = self.publish_many([(pointer, dedup_id)])
        if error is not None:
            raise error

    @abstractmethod
    def ping(self) -> None:
        """Asks the broker whether it is there and has our queue. Raises QueueUnavailable."""

    def close(self) -> None:  # noqa: B027  (not every queue holds something)
        """Lets go of the connection; using it again opens another."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


class Consumer(ABC):
    """Takes pointers from the queue, under a name that tells it from other consumers.

    `receive` is for one thread at a time; deliveries may be settled from any."""

    def __init__(self, name: str) -> None:
        self.name = name

    @abstractmethod
    def receive(self, max_n: int, wait_s: float) -> list[Delivery]:
        """At most `max_n` deliveries, waiting up to `wait_s` seconds for the first. Raises QueueUnavailable."""

    def ack_many(self, deliveries: Iterable[Delivery]) -> None:
        """Acknowledges several in as few round trips as the broker allows. Raises QueueUnavailable."""
        found = list(deliveries)
        if found:
            found[0]._ack(found)

    def close(self) -> None:  # noqa: B027  (not every queue holds something)
        """Lets go of the connection. What was delivered and not settled is delivered again to somebody."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()
