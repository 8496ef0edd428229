"""A job is offered and accepted, and a lead is taken in, while Redis is being rebuilt."""

from __future__ import annotations

from dispatch.core import clock
from dispatch.telephony.models import Call
from tests.harness.jobs import Floor
from tests.harness.leads import Floor as LeadFloor
from tests.harness.slow_rebuild import SlowRebuild, slow_rebuild

__all__ = ["slow_rebuild"]


def test_a_job_is_assigned_while_redis_is_being_rebuilt(floor: Floor, slow_rebuild: SlowRebuild) -> None:
    (ann,) = floor.crew("Ann")
    slow_rebuild.begin()
    job = floor.started()
    floor.rings(ann).answer().hears("press 1").press("1")
    floor.until(lambda: floor.status(job) == "assigned")
    floor.until(lambda: not Call.objects.filter(ended_at=None).exists())
    assert slow_rebuild.is_held
    floor.until(lambda: slow_rebuild.open_transactions() == 0)
    slow_rebuild.finish()
    assert slow_rebuild.in_transactions == [False]


def test_a_lead_is_accepted_while_redis_is_being_rebuilt(slow_rebuild: SlowRebuild) -> None:
    leads = LeadFloor()
    slow_rebuild.begin()
    (lead,) = leads.add("+16025550123")
    assert slow_rebuild.is_held
    slow_rebuild.finish()
    clock.travel(60)  # a rebuild spreads overdue leads over some seconds
    assert leads.work() == 1
    assert leads.status(lead) == "finished"
