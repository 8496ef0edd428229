"""The fixtures `sim` and `sim_process`, a pytest plugin."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import pytest
import requests

from .simulator import Simulator


@pytest.fixture(scope="session")
def sim_process() -> Iterator[Simulator]:
    """One simulator for the whole run, 20 times faster than life."""
    with Simulator.start() as simulator:
        yield simulator


@pytest.fixture
def sim(sim_process: Simulator) -> Iterator[Simulator]:
    """The simulator, empty; at the end it must have had nothing to complain about."""
    sim_process.reset()
    yield sim_process
    sim_process.assert_no_complaints()
    with contextlib.suppress(requests.RequestException):
        sim_process.reset()
