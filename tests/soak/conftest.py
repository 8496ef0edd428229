"""Servers of the soaks."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.outbox.receiver import Receiver
from tests.phones import Simulator


@pytest.fixture
def slow_sim() -> Iterator[Simulator]:
    """Slower than that of the other tests, so that faults meet calls under way."""
    with Simulator.start(speed=4.0) as simulator:
        yield simulator


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    made = Receiver()
    yield made
    made.close()
