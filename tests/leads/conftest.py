"""Provide the floors of tests of leads."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.benchmarks import noop_provider
from tests.harness.leads import Floor
from tests.phones import Simulator
from tests.support.waiting import wait_until


@pytest.fixture
def floor(request: pytest.FixtureRequest, transactional_db: None, settings: Any) -> Iterator[Floor]:
    """A floor whose provider calls nobody. `pytest.mark.floor(provider="noop", lines=20)` are its arguments."""
    settings.PROVIDER_MODULES = noop_provider.MODULES
    marker = request.node.get_closest_marker("floor")
    made = Floor(**marker.kwargs if marker else {})
    yield made
    made.stop()


@pytest.fixture
def twilio_floor(sim: Simulator, app_url: str, settings: Any) -> Iterator[Floor]:
    """A floor that calls through the simulator. All its calls have to end."""
    settings.SIMULATOR_URL = sim.base_url
    made = Floor("twilio", account_sid=sim.account_sid, auth_token=sim.auth_token)
    yield made
    made.stop()
    wait_until(lambda: not sim.open_calls(), message="calls never end")
