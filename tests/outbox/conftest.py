"""Set up the outbox's tests: an organization, a receiver, and the outbox's processes as threads."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from dispatch.outbox import publisher
from tests.harness.outbox import World
from tests.outbox.receiver import Receiver


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    found = Receiver()
    yield found
    found.close()


@pytest.fixture
def world(transactional_db: None, receiver: Receiver, settings: object) -> Iterator[World]:
    publisher.reset()
    found = World(receiver)
    yield found
    found.stop()
    publisher.reset()
