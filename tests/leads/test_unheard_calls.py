"""A call that was answered, but whose script the provider never fetched, was not heard: it is no answer."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from dispatch.core import clock
from dispatch.telephony.models import Call, CallEvent
from tests.harness.leads import Floor
from tests.phones import Simulator, answer, voicemail
from tests.support.waiting import wait_until

ANN = "+16025550101"


@pytest.fixture
def floor(sim: Simulator, app_url: str, settings: Any) -> Iterator[Floor]:
    settings.SIMULATOR_URL = sim.base_url
    sim.others_will(answer(after=0.5))
    made = Floor("twilio", account_sid=sim.account_sid, auth_token=sim.auth_token)
    yield made
    made.stop()
    wait_until(lambda: not sim.open_calls(), message="calls go on for ever")


def calls_ann(floor: Floor) -> int:
    """Call the lead until its call has ended, and return the lead's id."""
    (lead,) = floor.add(ANN)
    floor.work()
    wait_until(lambda: Call.objects.filter(ended_at__isnull=False).exists() and floor.status(lead) != "processing")
    return lead


def test_answered_call_without_its_script_has_failed_and_is_tried_again(floor: Floor, sim: Simulator) -> None:
    sim.lose_webhooks("twiml", times=None)
    lead = calls_ann(floor)
    (call,) = floor.calls(lead)
    assert (call.status, CallEvent.objects.filter(call=call, kind="voice").exists()) == ("completed", False)
    row = floor.lead(lead)
    assert (row.status, row.reason, row.last_outcome, row.attempts) == ("backlog", "retry", "failed", 1)
    sim.heal()
    clock.travel((row.due_at - clock.now()).total_seconds() + 1)
    floor.work()
    floor.all_end()
    assert floor.lead(lead).outcome == "answered"


def test_call_found_completed_at_the_provider_without_any_webhook_has_failed(floor: Floor, sim: Simulator) -> None:
    """As after an outage of our web processes."""
    sim.lose_webhooks("twiml", times=None)
    sim.lose_callbacks()
    (lead,) = floor.add(ANN)
    floor.work()
    wait_until(lambda: Call.objects.exclude(sid=None).exists() and not sim.open_calls())
    clock.travel(400)
    floor.step("calls_end")
    assert floor.calls(lead)[0].status == "completed"
    assert floor.lead(lead).last_outcome == "failed"


def test_answered_call_with_its_script_is_answered(floor: Floor, sim: Simulator) -> None:
    lead = calls_ann(floor)
    assert floor.lead(lead).outcome == "answered"


def test_voicemail_stays_voicemail(floor: Floor, sim: Simulator) -> None:
    floor.campaign.detect_machines = True
    floor.campaign.save()
    sim.phone(ANN).will(voicemail())
    lead = calls_ann(floor)
    assert floor.lead(lead).last_outcome == "voicemail"
