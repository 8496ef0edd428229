"""Servers and random choices of the soaks."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator

import pytest

from tests.outbox.receiver import Receiver
from tests.phones import Simulator


@pytest.fixture
def seed() -> int:
    """SOAK_SEED, or a new one, printed so that a run can be repeated."""
    chosen = int(os.environ.get("SOAK_SEED") or random.SystemRandom().randrange(1_000_000))
    print(f"SOAK_SEED={chosen}")  # noqa: T201
    return chosen


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
