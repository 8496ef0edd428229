"""Provide the floor of most tests of leads."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.benchmarks import noop_provider
from tests.harness.leads import Floor


@pytest.fixture
def floor(request: pytest.FixtureRequest, transactional_db: None, settings: Any) -> Iterator[Floor]:
    """A floor whose provider calls nobody. `pytest.mark.floor(provider="noop", lines=20)` are its arguments."""
    settings.PROVIDER_MODULES = noop_provider.MODULES
    marker = request.node.get_closest_marker("floor")
    made = Floor(**marker.kwargs if marker else {})
    yield made
    made.stop()
