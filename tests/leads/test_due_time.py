"""A lead's eligibility is checked a moment before it is due, and it is called when due."""

from __future__ import annotations

import time
from datetime import timedelta
from typing import Any
from zoneinfo import ZoneInfo

import pytest

from dispatch.capacity import bulk
from dispatch.core import clock
from dispatch.leads.models import Lead
from dispatch.leads.services.intake import NewLead
from tests.harness.leads import Floor

pytestmark = pytest.mark.django_db(transaction=True)

ANN, BOB = "+16025550101", "+16025550102"


@pytest.fixture
def floor(floor: Floor, settings: Any) -> Floor:
    settings.LEADS_AHEAD_S = 30.0  # long enough to look at; in life it is some milliseconds
    return floor


def test_each_lead_is_requested_at_its_due_time(floor: Floor) -> None:
    soon, later = floor.add(ANN, at=floor.due_in(100)), floor.add(BOB, at=floor.due_in(105))
    floor.promote()
    assert floor.claim().calls == []
    clock.travel(80)
    floor.promote()
    claimed = floor.claim()
    due = dict(Lead.objects.values_list("pk", "due_at"))
    assert {one.call.subject_id: one.turn_at for one in claimed.calls} == {pk: due[pk] for pk in (*soon, *later)}
    assert all(one.turn_at > clock.now() for one in claimed.calls)
    assert floor.outcomes() == {"processing": 2}


def test_late_lead_does_not_wait_for_an_early_one(floor: Floor) -> None:
    (late,) = floor.add(ANN)
    floor.add(BOB, at=floor.due_in(20))
    floor.promote()
    turns = {one.call.subject_id: one.turn_at for one in floor.claim().calls}
    assert len(turns) == 2
    assert turns[late] < clock.now() + timedelta(seconds=10)


def test_eligibility_is_checked_as_of_the_due_time(floor: Floor) -> None:
    opens = clock.now().astimezone(ZoneInfo("America/Phoenix")).replace(hour=9, minute=0, second=0, microsecond=0)
    opens += timedelta(days=1)
    campaign = floor.add_campaign(window_from="09:00", window_until="10:00", weekdays=list(range(7)))
    floor.accept([NewLead(ANN, opens)], to=campaign)
    clock.travel((opens - clock.now()).total_seconds() - 20)
    floor.promote()
    (called,) = floor.claim().calls
    assert called.turn_at == opens


def test_early_claims_keep_the_accounts_rate(floor: Floor) -> None:
    began = time.monotonic()
    limits = (floor.account.pk, 100.0, floor.pool.pk, 0)
    first = bulk.take_rate_tokens(*limits, 3, [0.03, 0.03, 0.09])
    (after,) = bulk.take_rate_tokens(*limits, 1)
    took_s = time.monotonic() - began
    assert first == pytest.approx([0.03, 0.04, 0.09], abs=0.002)
    assert after >= 0.1 - took_s - 0.002
