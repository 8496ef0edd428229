"""The ground of the outbox's tests: an organization, a receiver, and the outbox's processes as threads."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from dispatch.outbox import publishing
from tests.outbox.receiver import Receiver
from tests.outbox.world import World


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    found = Receiver()
    yield found
    found.close()


@pytest.fixture
def world(transactional_db: None, receiver: Receiver, settings: object) -> Iterator[World]:
    publishing.reset()
    found = World(receiver)
    yield found
    found.stop()
    publishing.reset()
