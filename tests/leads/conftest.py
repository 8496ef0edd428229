"""Every test of leads reads the rulebook that it wrote itself."""

from collections.abc import Iterator

import pytest

from dispatch.leads import gating


@pytest.fixture(autouse=True)
def _fresh_rulebook() -> Iterator[None]:
    gating.forget()
    yield
    gating.forget()
