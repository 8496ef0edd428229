"""A deactivated organization stops dialing leads within a second, also those that are already claimed."""

from __future__ import annotations

import time

import pytest

from accounts.models import Organization
from dispatch.core import clock
from dispatch.leads.models import Lead
from dispatch.leads.services import switches
from dispatch.telephony.models import Call
from dispatch.telephony.services import bulk as telephony
from tests.benchmarks import noop_provider
from tests.harness.leads import Floor
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.floor(lines=100, calls_per_second=10.0)]


def switch(floor: Floor, is_active: bool) -> None:
    Organization.objects.filter(pk=floor.organization.pk).update(is_active=is_active)


def test_claimed_call_of_a_deactivated_organization_is_not_requested(floor: Floor) -> None:
    other = Floor(lines=1)
    floor.add_many(2)
    floor.promote()
    ids = [request.call_id for request in floor.claim().calls]
    other.add_many(1)
    other.promote()
    (theirs,) = [request.call_id for request in other.claim().calls]
    assert telephony.cancelled([*ids, theirs]) == [False] * (len(ids) + 1)
    switch(floor, False)
    assert telephony.cancelled([*ids, theirs]) == [True] * len(ids) + [False]


def test_dialing_stops_within_a_second_and_goes_on_later(floor: Floor) -> None:
    ids = floor.add_many(60)  # six seconds of dialing
    floor.start()
    wait_until(lambda: Call.objects.exclude(sid=None).count() >= 3)
    switch(floor, False)
    stopped_at = time.time()
    wait_until(
        lambda: not Lead.objects.filter(status="processing").exists(),
        message=lambda: str(floor.outcomes()),
    )
    wait_until(lambda: time.time() > stopped_at + 2.0)  # the dialer had time to go on
    sids = Call.objects.exclude(sid=None).values_list("sid", flat=True)
    assert [sid for sid in sids if noop_provider.asked_at(sid) > stopped_at + 1.0] == []
    called = floor.outcomes().get("answered", 0)
    assert 3 <= called < 60
    floor.stop()

    switch(floor, True)
    floor.step(switches.LIFTED)
    clock.travel(60)
    floor.account.calls_per_second = 10_000.0
    floor.account.save()
    floor.work()
    assert floor.outcomes(ids) == {"answered": 60}
