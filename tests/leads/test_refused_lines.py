"""PostgreSQL refuses a line that Redis proposed, and calls keep theirs when their campaign moves."""

from __future__ import annotations

from typing import Any

import pytest

from dispatch.capacity import redis_scripts
from dispatch.core import clock
from dispatch.core.redis.client import client
from dispatch.leads.models import Campaign
from dispatch.telephony.models import Call
from tests.harness.leads import Floor
from tests.support import factories

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.floor(provider="noop", lines=2)]

ANN, BOB = "+16025550101", "+16025550102"


def lines_of(number: Any) -> int:
    return int(client().hlen(f"{redis_scripts.base_key()}:line:{number.pk}"))


def test_a_refused_line_is_repaired_although_another_phone_is_busy(floor: Floor) -> None:
    Campaign.objects.update(allows_duplicates=True)
    floor.campaign.refresh_from_db()
    (first,) = floor.add(ANN)
    floor.promote()
    assert len(floor.dial().calls) == 1
    redis_scripts.run_script(redis_scripts.RELEASE, [f"lead:{first}:1"])  # in Redis the line is free
    (bob,) = floor.add(BOB, at=floor.due_in(-2))
    (again,) = floor.add(ANN, at=floor.due_in(-1))
    floor.promote()
    assert floor.dial().calls == []
    assert (floor.lead(bob).reason, floor.lead(again).reason) == ("", "phone_busy")
    assert lines_of(floor.number) == 1
    clock.travel(2)
    floor.promote()
    (request,) = floor.dial().calls
    assert request.call.subject_id == bob


def test_a_call_keeps_its_line_when_its_campaign_has_moved(floor: Floor) -> None:
    (lead,) = floor.add(ANN)
    floor.promote()  # ready in the former pool
    former = floor.pool
    other = factories.pool(floor.organization)
    number = factories.number(floor.organization, pool=other, account=floor.account, max_channels=2)
    floor.campaign.pool = floor.pool = other
    floor.campaign.save()
    floor.step("leads_near")
    floor.promote()  # ready in both
    assert len(floor.dial().calls) == 1
    floor.pool = former
    assert floor.dial().calls == []
    assert Call.objects.get().pool_id == other.pk
    assert (lines_of(number), lines_of(floor.number)) == (1, 0)
    assert len(floor.calls(lead)) == 1
