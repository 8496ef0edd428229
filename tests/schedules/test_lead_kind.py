"""The kind of work that adds leads: each once, even if the worker dies."""

from __future__ import annotations

from typing import Any

import pytest
from rest_framework.exceptions import ValidationError

from accounts import limits
from accounts.models import OrganizationLimits
from dispatch.core import clock, fault_injection
from dispatch.core.events import SYSTEM
from dispatch.leads.models import Campaign, Lead
from dispatch.leads.services.intake import NewLead, accept_leads
from dispatch.schedules import kinds
from tests.harness.schedules import World
from tests.support import factories

LEASE_S = 91.0


def campaign(world: World) -> Campaign:
    return Campaign.objects.create(
        organization=world.organization,
        code="follow-up",
        name="Follow-up",
        pool=factories.pool(world.organization),
    )


def test_a_follow_up_call_becomes_a_lead_each_time(real: World) -> None:
    campaign(real)
    payload = {"campaign": "follow-up", "phone": "+16025550123", "data": {"visit": 7}}
    schedule = real.schedule(kind="lead", payload=payload, every=1, unit="week")
    for _ in range(2):
        real.travel(7 * 86_400)
        real.go()
        Lead.objects.update(status="finished", outcome="answered", finished_at=clock.now())
    first, second = Lead.objects.order_by("pk")
    assert str(first.phone) == "+16025550123"
    assert [real.run(schedule, n).result for n in (1, 2)] == [{"lead": first.pk}, {"lead": second.pk}]


def test_a_follow_up_call_that_still_waits_is_not_added_again(real: World) -> None:
    campaign(real)
    payload = {"campaign": "follow-up", "phone": "+16025550123"}
    schedule = real.schedule(kind="lead", payload=payload, every=1, unit="week")
    for _ in range(2):
        real.travel(7 * 86_400)
        real.go()
    lead = Lead.objects.get()
    assert [real.run(schedule, n).result for n in (1, 2)] == [
        {"lead": lead.pk}, {"lead": lead.pk, "is_duplicate": True},
    ]  # fmt: skip


def test_a_lead_over_the_limit_is_added_by_a_retry(real: World) -> None:
    accept_leads(campaign(real), [NewLead(phone="+16025550124")], actor=SYSTEM)
    payload = {"campaign": "follow-up", "phone": "+16025550123"}
    schedule = real.schedule(kind="lead", payload=payload, trigger_at=clock.now(), retry_schedule_s=[60])
    allowed = OrganizationLimits.objects.create(organization=real.organization, leads=1)
    limits.reset()
    real.go()
    assert real.run(schedule).status == "retrying"
    assert "leads" in real.run(schedule).error
    allowed.delete()
    limits.reset()
    real.travel(90)
    real.go()
    assert real.run(schedule).result == {"lead": Lead.objects.latest("pk").pk}
    assert Lead.objects.count() == 2


@pytest.mark.parametrize("point", ["schedules.work.started", "schedules.work.done", "schedules.report.written"])
def test_a_worker_killed_at_any_point_leaves_one_lead(real: World, point: str) -> None:
    campaign(real)
    payload = {"campaign": "follow-up", "phone": "+16025550123"}
    schedule = real.schedule(kind="lead", payload=payload, trigger_at=clock.now())
    real.execute()
    with fault_injection.arm_crash_point(point), pytest.raises(fault_injection.Interrupted):
        real.work()
    real.travel(LEASE_S)
    real.reconcile()
    real.go()
    assert real.run(schedule).result == {"lead": Lead.objects.get().pk}


@pytest.mark.parametrize(
    ("more", "field"),
    [({"phone": "911"}, "phone"), ({"campaign": "no"}, "campaign"), ({"due_at": "2027-01-01T00:00Z"}, "due_at")],
)
def test_a_lead_that_could_not_be_called_is_refused(real: World, more: dict[str, Any], field: str) -> None:
    campaign(real)
    payload = {"campaign": "follow-up", "phone": "+16025550123", **more}
    with pytest.raises(ValidationError) as refused:
        kinds.get_kind("lead").check(real.organization, payload)
    assert field in refused.value.detail
