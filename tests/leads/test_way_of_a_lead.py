"""From the row to the call and its end, step by step, with a provider that calls nobody."""

from __future__ import annotations

import pytest

from tests.benchmarks import noop_provider
from tests.leads.floor import Floor

pytestmark = pytest.mark.django_db(transaction=True)

ANN, BOB = "+16025550101", "+16025550102"


@pytest.fixture
def floor(settings: object) -> Floor:
    settings.PROVIDER_MODULES = noop_provider.MODULES  # type: ignore[attr-defined]
    return Floor()


def test_a_due_lead_is_called_once_and_finished(floor: Floor) -> None:
    (lead,) = floor.add(ANN)

    assert floor.work() == 1

    row = floor.lead(lead)
    assert (row.status, row.outcome, row.attempts, row.token) == ("finished", "answered", 1, 1)
    (call,) = floor.calls(lead)
    assert (call.status, str(call.to_phone), call.attempt) == ("completed", ANN, 1)
    assert floor.told(lead) == ["created", "processing", "finished"]
    assert floor.in_redis() == {"workers": 1}
    assert floor.lines_in_use() == 0
