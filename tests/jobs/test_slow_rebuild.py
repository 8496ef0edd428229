"""A job is offered and accepted while Redis is being rebuilt."""

from __future__ import annotations

from dispatch.telephony.models import Call
from tests.harness.jobs import Floor
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
