"""A lead is taken in while Redis is being rebuilt, and is called afterwards."""

from __future__ import annotations

from typing import Any

from dispatch.core import clock
from tests.benchmarks import noop_provider
from tests.harness.leads import Floor as LeadFloor
from tests.harness.slow_rebuild import SlowRebuild, slow_rebuild

__all__ = ["slow_rebuild"]


def test_a_lead_is_accepted_while_redis_is_being_rebuilt(slow_rebuild: SlowRebuild, settings: Any) -> None:
    settings.PROVIDER_MODULES = noop_provider.MODULES
    leads = LeadFloor()
    slow_rebuild.begin()
    (lead,) = leads.add("+16025550123")
    assert slow_rebuild.is_held
    slow_rebuild.finish()
    clock.travel(60)  # a rebuild spreads overdue leads over some seconds
    assert leads.work() == 1
    assert leads.status(lead) == "finished"
