"""Outcomes that people and voice agents report about a lead, during its call or afterwards."""

from __future__ import annotations

from datetime import timedelta
from typing import Any
from zoneinfo import ZoneInfo

import pytest

from dispatch.capacity.models import DispatchPool
from dispatch.core import clock
from dispatch.core.events import SYSTEM
from dispatch.core.privacy import personal_data
from dispatch.core.privacy.personal_data import DataSubject
from dispatch.leads import eligibility, voice
from dispatch.leads.models import Campaign, DispositionRule, KeyBranch, Lead, VoiceAgent
from dispatch.leads.services import completion
from dispatch.telephony.handlers import AgentEnd
from dispatch.telephony.models import Call, CallEvent, Text
from tests.api.client import Api
from tests.harness.leads import Floor
from tests.support import factories as make

pytestmark = pytest.mark.django_db(transaction=True)

PHOENIX = ZoneInfo("America/Phoenix")
ANN, BOB = "+16025550101", "+16025550102"


@pytest.fixture
def api(floor: Floor) -> Api:
    return Api(key=make.api_key(floor.organization, "leads:write", "read"))


def report(api: Api, lead: int, **outcome: Any) -> Any:
    return api.post(f"leads/{lead}/outcome/", outcome)


def travel_to_noon() -> None:
    """Move the clock to the next noon where the leads are."""
    tomorrow = clock.now().astimezone(PHOENIX) + timedelta(days=1)
    noon = tomorrow.replace(hour=12, minute=0, second=0, microsecond=0)
    clock.travel((noon - clock.now()).total_seconds())


def in_two_days() -> str:
    return (clock.now() + timedelta(days=2)).isoformat()


def test_an_outcome_is_recorded_after_the_call(floor: Floor, api: Api) -> None:
    (lead,) = floor.add(ANN)
    floor.work()
    shown = report(api, lead, disposition="wants_quote", notes="Two doors").json()
    assert (shown["status"], shown["outcome"]) == ("finished", "answered")
    assert (shown["disposition"], shown["notes"]) == ("wants_quote", "Two doors")
    assert report(api, lead, notes="").json()["disposition"] == "wants_quote"
    assert floor.told(lead)[-1] == "outcome_reported"


def test_a_lead_in_a_call_is_called_back_instead_of_ending(floor: Floor, api: Api) -> None:
    floor.use_provider("noop")
    (lead,) = floor.add(ANN)
    floor.promote()
    floor.dial()
    assert report(api, lead, call_back_at=in_two_days()).json()["status"] == "processing"
    floor.end_calls_unreported()
    completion.call_changed(Call.objects.get())
    row = floor.lead(lead)
    assert (row.status, row.reason, row.attempts, row.call_back_at) == ("backlog", "call_back", 0, None)
    assert row.due_at > clock.now() + timedelta(days=1)


def test_an_ended_lead_is_opened_again_to_be_called_back(floor: Floor, api: Api) -> None:
    (lead,) = floor.add(ANN)
    floor.work()
    assert report(api, lead, call_back_at=in_two_days()).json()["status"] == "backlog"
    assert floor.work() == 0
    clock.travel(2 * 86_400 + 1)
    assert floor.work() == 1
    assert floor.lead(lead).outcome == "answered"
    assert floor.told(lead).count("reopened") == 1


def test_a_canceled_lead_that_is_opened_again_is_called_back_once(floor: Floor, api: Api) -> None:
    floor.use_provider("noop")
    (lead,) = floor.add(ANN)
    floor.promote()
    floor.dial()
    report(api, lead, call_back_at=in_two_days())
    assert api.delete(f"leads/{lead}/").status_code == 204
    floor.end_calls_unreported()
    completion.call_changed(Call.objects.get())
    assert floor.lead(lead).outcome == "cancelled"
    floor.use_provider("noop-ends")
    assert report(api, lead, call_back_at=in_two_days()).json()["call_back_at"] is None
    clock.travel(2 * 86_400 + 1)
    assert floor.work() == 1
    assert floor.lead(lead).outcome == "answered"


def test_a_waiting_lead_is_moved(floor: Floor, api: Api) -> None:
    (lead,) = floor.add(ANN)
    floor.promote()
    report(api, lead, call_back_at=in_two_days())
    assert floor.work() == 0
    clock.travel(2 * 86_400 + 1)
    assert floor.work() == 1


def test_an_ended_lead_whose_phone_has_an_open_one_stays_ended(floor: Floor, api: Api) -> None:
    (lead,) = floor.add(ANN)
    floor.work()
    floor.add(ANN, at=floor.due_in(3600))
    refused = report(api, lead, call_back_at=in_two_days(), disposition="later")
    assert (refused.status_code, "open lead" in refused.text) == (409, True)
    assert Lead.objects.get(pk=lead).disposition == ""


def test_an_ended_lead_whose_phone_was_erased_stays_ended(floor: Floor, api: Api) -> None:
    (lead,) = floor.add(ANN)
    floor.work()
    DispositionRule.objects.create(
        organization=floor.organization, campaign=floor.campaign, disposition="not_now", delay_h=72
    )
    personal_data.erase_person(DataSubject(floor.organization.pk, phone=ANN), actor=SYSTEM)
    refused = report(api, lead, call_back_at=in_two_days(), disposition="later")
    assert (refused.status_code, "erased" in refused.text) == (409, True)
    assert report(api, lead, disposition="not_now").status_code == 200
    row = floor.lead(lead)
    assert (row.status, row.outcome, row.disposition) == ("finished", "answered", "not_now")


@pytest.mark.parametrize(
    "outcome", [{}, {"disposition": "Wants a quote!"}, {"call_back_at": "2020-01-01T00:00:00Z"}, {"other": 1}]
)
def test_a_wrong_outcome_is_refused(floor: Floor, api: Api, outcome: dict[str, Any]) -> None:
    (lead,) = floor.add(ANN)
    assert report(api, lead, **outcome).status_code == 400


def test_another_tenants_lead_is_not_found(floor: Floor) -> None:
    (lead,) = floor.add(ANN)
    other = Api(key=make.api_key(make.organization(), "leads:write", "read"))
    assert report(other, lead, disposition="x").status_code == 404


# --- Rules for recorded outcomes


def test_a_recorded_outcome_decides_what_follows_the_call(floor: Floor, api: Api) -> None:
    for disposition, then in (("not_now", "again"), ("gone", "finish")):
        DispositionRule.objects.create(
            organization=floor.organization,
            campaign=floor.campaign,
            disposition=disposition,
            then=then,
            delay_h=72,
        )
    eligibility.reset()
    floor.use_provider("noop")
    first, second = floor.add(ANN, BOB)
    floor.promote()
    floor.dial()
    report(api, first, disposition="not_now")
    report(api, second, disposition="gone")
    Call.objects.filter(subject_id=first).update(status="completed", ended_at=clock.now())
    Call.objects.filter(subject_id=second).update(status="busy", ended_at=clock.now())
    for call in Call.objects.all():
        completion.call_changed(call)
    row = floor.lead(first)
    assert (row.status, row.reason, row.attempts) == ("backlog", "retry", 1)
    assert row.due_at > clock.now() + timedelta(hours=71)
    assert floor.lead(second).outcome == "busy", "without the rule, it would be called again"


def test_an_outcome_decides_only_what_follows_its_own_call(floor: Floor, api: Api) -> None:
    DispositionRule.objects.create(
        organization=floor.organization, campaign=floor.campaign, disposition="not_now", delay_h=1, text="Hi."
    )
    Campaign.objects.update(max_attempts=5, max_attempts_24h=5)
    floor.number.sends_texts = True
    floor.number.save()
    eligibility.reset()
    floor.use_provider("noop")
    (lead,) = floor.add(ANN)
    for attempt, disposition in enumerate(("not_now", "not_now", ""), 1):
        clock.travel(3601)
        floor.promote()
        floor.dial()
        if disposition:
            assert report(api, lead, disposition=disposition).status_code == 200
        call = Call.objects.get(attempt=attempt)
        call.status, call.ended_at = "completed", clock.now()
        call.save()
        CallEvent.objects.create(
            organization=floor.organization, call=call, key="voice:1", kind="voice", payload={}
        )
        completion.call_changed(call)
    row = floor.lead(lead)
    assert (row.status, row.outcome, row.attempts) == ("finished", "answered", 3)
    assert report(api, lead, disposition="wants_quote").json()["disposition"] == "wants_quote"
    assert Text.objects.count() == 2, "once per call"


def test_patience_of_a_lead_begins_when_the_rule_calls_it_again(floor: Floor, api: Api) -> None:
    DispositionRule.objects.create(
        organization=floor.organization, campaign=floor.campaign, disposition="not_now", delay_h=720
    )
    eligibility.reset()
    floor.use_provider("noop")
    (lead,) = floor.add(ANN)
    floor.promote()
    floor.dial()
    report(api, lead, disposition="not_now")
    floor.end_calls_unreported()
    completion.call_changed(Call.objects.get())
    clock.travel(720 * 3600 + 1)
    Campaign.objects.update(weekdays=[(clock.now().weekday() + 4) % 7], patience_h=168)
    eligibility.reset()
    assert floor.work() == 0
    row = floor.lead(lead)
    assert (row.status, row.reason) == ("backlog", "outside_window")
    clock.travel((row.due_at - clock.now()).total_seconds() + 1)
    floor.promote()
    assert len(floor.claim().calls) == 1


def test_patience_of_a_retry_does_not_include_the_wait_for_a_line(floor: Floor) -> None:
    floor.use_provider("noop")
    DispatchPool.objects.update(is_paused=True)
    (lead,) = floor.add(ANN)
    clock.travel(20 * 86_400)
    DispatchPool.objects.update(is_paused=False)
    floor.promote()
    floor.dial()
    floor.end_call("no_answer")
    row = floor.lead(lead)
    assert (row.status, row.reason) == ("backlog", "retry")
    clock.travel((row.due_at - clock.now()).total_seconds() + 1)
    Campaign.objects.update(weekdays=[(clock.now().weekday() + 4) % 7], patience_h=168)
    eligibility.reset()
    assert floor.work() == 0
    row = floor.lead(lead)
    assert (row.status, row.reason) == ("backlog", "outside_window")


def call_back_after(floor: Floor, api: Api, disposition: str) -> Call:
    """Call a lead, report the outcome, and call it back. Return that call."""
    floor.use_provider("noop")
    (lead,) = floor.add(ANN)
    floor.promote()
    floor.dial()
    report(api, lead, disposition=disposition, call_back_at=in_two_days())
    floor.end_calls_unreported()
    completion.call_changed(Call.objects.get())
    assert floor.lead(lead).disposition == disposition
    clock.travel(2 * 86_400 + 1)
    floor.promote()
    floor.dial()
    return Call.objects.get(attempt=2)


def add_agent(floor: Floor) -> None:
    VoiceAgent.objects.create(organization=floor.organization, campaign=floor.campaign, url="wss://bots.example/x")


def test_an_outcome_does_not_decide_about_the_call_back_after_it(floor: Floor, api: Api) -> None:
    DispositionRule.objects.create(
        organization=floor.organization, campaign=floor.campaign, disposition="gone", then="finish"
    )
    eligibility.reset()
    call = call_back_after(floor, api, "gone")
    call.status, call.ended_at = "busy", clock.now()
    call.save()
    completion.call_changed(call)
    row = floor.lead(call.subject_id)
    assert (row.status, row.reason) == ("backlog", "retry")


def test_a_failed_voice_agent_replaces_the_outcome_of_an_earlier_call(floor: Floor, api: Api) -> None:
    add_agent(floor)
    call = call_back_after(floor, api, "asked_later")
    assert floor.lead(call.subject_id).disposition == "asked_later"
    voice.LeadCallHandler().on_agent_ended(call, AgentEnd(1, has_failed=True))
    assert floor.lead(call.subject_id).disposition == "agent_unreachable"


def test_a_failed_voice_agent_is_not_the_outcome_of_a_later_call(floor: Floor, api: Api) -> None:
    add_agent(floor)
    call = call_back_after(floor, api, "agent_unreachable")
    voice.LeadCallHandler().on_agent_ended(call, AgentEnd(1, has_failed=False))
    assert floor.lead(call.subject_id).disposition == ""


def test_a_recorded_outcome_does_not_delay_a_call_that_was_never_placed(floor: Floor, api: Api) -> None:
    DispositionRule.objects.create(
        organization=floor.organization, campaign=floor.campaign, disposition="not_now", delay_h=72
    )
    eligibility.reset()
    floor.use_provider("noop")
    (lead,) = floor.add(ANN)
    report(api, lead, disposition="not_now")
    floor.promote()
    floor.dial()
    floor.end_call("not_placed")
    row = floor.lead(lead)
    assert (row.status, row.reason) == ("backlog", "not_accepted")
    assert row.due_at < clock.now() + timedelta(hours=2)


def test_a_key_that_no_webhook_has_applied_counts_at_the_end_of_the_call(floor: Floor) -> None:
    KeyBranch.objects.create(
        organization=floor.organization, campaign=floor.campaign, key="2", action="later", call_back_h=48
    )
    floor.use_provider("noop")
    (lead,) = floor.add(ANN)
    floor.promote()
    floor.dial()
    floor.end_calls_unreported()
    Call.objects.update(keys_pressed="2")
    call = Call.objects.get()
    CallEvent.objects.create(
        organization_id=call.organization_id,
        call=call,
        key="gather:1",
        kind="gather",
        payload={"CallSid": call.sid, "Digits": "2"},
        next_action_at=clock.now() + timedelta(seconds=5),
    )
    floor.use_provider("twilio")
    completion.call_changed(call)
    row = floor.lead(lead)
    assert (row.status, row.reason) == ("backlog", "call_back")
    assert row.due_at > clock.now() + timedelta(hours=47)
    assert not CallEvent.objects.exclude(next_action_at=None).exists()


def test_rules_for_outcomes_are_written_and_read_with_the_api(floor: Floor) -> None:
    api = Api(key=make.api_key(floor.organization, "manage", "read"))
    rules = [{"disposition": "not_now", "then": "again", "delay_h": 72, "text": "Hi {name}."}]
    url = f"campaigns/{floor.campaign.pk}/"
    assert api.patch(url, {"disposition_rules": rules}).json()["disposition_rules"] == rules
    assert api.patch(url, {"disposition_rules": rules * 2}).status_code == 400


# --- Contact hours


def test_a_person_is_called_within_their_own_hours_only(floor: Floor, api: Api) -> None:
    lead = {"campaign": floor.campaign.code, "phone": ANN, "contact_from": "17:00", "contact_until": "19:00"}
    assert api.post("leads/", lead).status_code == 201
    phoenix = ZoneInfo("America/Phoenix")
    noon = (clock.now().astimezone(phoenix) + timedelta(days=1)).replace(
        hour=12, minute=0, second=0, microsecond=0
    )
    clock.travel((noon - clock.now()).total_seconds())
    assert floor.work() == 0
    row = Lead.objects.get()
    assert (row.reason, row.due_at.astimezone(PHOENIX).hour) == ("contact_hours", 17)
    clock.travel((row.due_at - clock.now()).total_seconds() + 1)
    assert floor.work() == 1


def test_contact_hours_never_widen_the_others(floor: Floor, api: Api) -> None:
    Campaign.objects.update(window_from="09:00", window_until="10:00")
    eligibility.reset()
    entries = [{"phone": ANN, "contact_from": "08:00", "contact_until": "20:00"}]
    api.post("leads/bulk/", {"campaign": floor.campaign.code, "leads": entries})
    phoenix = ZoneInfo("America/Phoenix")
    noon = (clock.now().astimezone(phoenix) + timedelta(days=1)).replace(
        hour=12, minute=0, second=0, microsecond=0
    )
    clock.travel((noon - clock.now()).total_seconds())
    assert floor.work() == 0
    assert Lead.objects.get().reason == "outside_window"


@pytest.mark.parametrize("hours", [{"contact_from": "09:00"}, {"contact_from": "noon", "contact_until": "19:00"}])
def test_wrong_contact_hours_are_refused(floor: Floor, api: Api, hours: dict[str, str]) -> None:
    lead = {"phone": ANN, **hours}
    assert api.post("leads/", {"campaign": floor.campaign.code, **lead}).status_code == 400
    added = api.post("leads/bulk/", {"campaign": floor.campaign.code, "leads": [lead]}).json()
    assert added["rejected"] == 1
    assert not Lead.objects.exists()
