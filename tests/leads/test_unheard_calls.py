"""A call that was answered, but whose script the provider never got, was not heard: it is no answer."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

import pytest
import redis
from django.conf import settings as app_settings
from django.test import Client

from dispatch.core import clock
from dispatch.telephony import webhook_urls
from dispatch.telephony.models import Call, CallEvent
from dispatch.telephony.services import unheard_calls
from tests.harness.leads import Floor
from tests.phones import Simulator, answer, manual, voicemail
from tests.soak.reply_cuts import ReplyCutter
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


def test_a_lead_whose_script_was_lost_on_its_way_is_tried_again(floor: Floor, sim: Simulator) -> None:
    """The webhook is processed each time, and no response arrives: the provider says the apology."""
    sim.slow_webhooks(4, "twiml")
    lead = calls_ann(floor)
    (call,) = floor.calls(lead)
    assert "technical problem" in sim.calls_to(ANN)[0].said
    assert CallEvent.objects.filter(call=call, kind="voice").count() == 1, "repeated requests are one"
    row = floor.lead(lead)
    assert (row.status, row.reason, row.last_outcome, row.attempts) == ("backlog", "retry", "failed", 1)
    clock.travel((row.due_at - clock.now()).total_seconds() + 1)
    floor.work()
    floor.all_end()
    assert (floor.lead(lead).outcome, "Hello." in sim.calls_to(ANN)[1].said) == ("answered", True)


def test_without_redis_the_database_keeps_that_a_call_was_not_heard(
    floor: Floor, sim: Simulator, monkeypatch: pytest.MonkeyPatch
) -> None:
    def away() -> Any:
        raise redis.ConnectionError("away")

    monkeypatch.setattr(unheard_calls, "client", away)
    sim.slow_webhooks(4, "twiml")
    lead = calls_ann(floor)
    assert floor.lead(lead).last_outcome == "failed"
    assert CallEvent.objects.filter(kind="fallback").count() == 1


def test_a_response_that_is_lost_once_is_repeated(
    floor: Floor, sim: Simulator, app_url: str, settings: Any
) -> None:
    address = urlsplit(app_url)
    with ReplyCutter((address.hostname or "", address.port or 0)) as proxy:
        settings.PUBLIC_BASE_URL = f"http://127.0.0.1:{proxy.port}"
        sim.phone(ANN).will(manual())
        (lead,) = floor.add(ANN)
        floor.work()
        person = sim.phone(ANN).rings()
        proxy.cut(1, b"/voice")
        person.answer().hears("Hello.").hang_up()
        wait_until(lambda: floor.status(lead) == "finished")
        assert proxy.cuts == 1
        asked = [hook for hook in person.now["webhooks"] if hook["purpose"] == "twiml"]
        assert [hook["status"] for hook in asked] == [0, 200]
    assert floor.lead(lead).outcome == "answered"
    assert CallEvent.objects.filter(kind="voice").count() == 1


def test_a_failure_after_a_key_does_not_make_a_call_unheard(floor: Floor, sim: Simulator) -> None:
    sim.phone(ANN).will(answer(0.5, "9"))
    sim.slow_webhooks(4, "gather")
    lead = calls_ann(floor)
    assert "technical problem" in sim.calls_to(ANN)[0].said
    assert floor.lead(lead).last_outcome == "answered"


def test_nobody_else_can_make_a_call_unheard(floor: Floor, sim: Simulator, client: Client) -> None:
    lead = calls_ann(floor)
    (call,) = floor.calls(lead)
    other = webhook_urls.fallback("twilio", call.pk + 1).partition("proof=")[2].partition("#")[0]
    for query in (
        "", f"?call={call.pk}", f"?call={call.pk}&proof=x", f"?call={call.pk}&proof={other}", "?call=x",
        f"?call={call.pk}&proof=%C3%A9", f"?call={call.pk}&proof=%FF",
    ):  # fmt: skip
        response = client.post(f"/telephony/twilio/fallback{query}", {"ErrorUrl": "https://example.com/"})
        assert response.status_code == 200
        assert unheard_calls.was_heard(call), query
    proven = webhook_urls.fallback("twilio", call.pk).partition("#")[0].removeprefix(app_settings.PUBLIC_BASE_URL)
    later = f"https://x/telephony/twilio/calls/{call.pk}/gather?step=1"
    assert client.post(proven, {"ErrorUrl": later}).status_code == 200
    assert unheard_calls.was_heard(call)
    assert client.post(proven, {"ErrorUrl": "https://example.com/"}).status_code == 200
    assert not unheard_calls.was_heard(call)


def test_answered_call_with_its_script_is_answered(floor: Floor, sim: Simulator) -> None:
    lead = calls_ann(floor)
    assert floor.lead(lead).outcome == "answered"


def test_voicemail_stays_voicemail(floor: Floor, sim: Simulator) -> None:
    floor.campaign.detect_machines = True
    floor.campaign.save()
    sim.phone(ANN).will(voicemail())
    lead = calls_ann(floor)
    assert floor.lead(lead).last_outcome == "voicemail"
