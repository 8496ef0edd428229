"""Voice agents that talk to the people called: the documented one as it stands, and agents that fail."""

from __future__ import annotations

import json
from datetime import timedelta
from typing import Any

import pytest
import requests
from django.urls import reverse

from accounts.models import ApiKey
from dispatch.core import clock
from dispatch.core.events import SYSTEM
from dispatch.leads import voice
from dispatch.leads.models import Campaign, KeyBranch, Lead, LeadDispatch, VoiceAgent
from dispatch.leads.rules import voice_agents as rules
from dispatch.leads.services import outcomes, voice_agents
from dispatch.telephony import voice_previews
from dispatch.telephony.handlers import AgentConnection, AgentEnd
from dispatch.telephony.models import Call, CallEvent
from dispatch.telephony.services import agents, hang_ups, keys
from tests.api.client import Api
from tests.harness.lead_calls import add_with
from tests.harness.leads import Floor
from tests.harness.voice_agent import ScriptedAgent, Talk, documented_agent
from tests.leads.test_scripts_of_campaigns import form
from tests.phones import Simulator, answer, manual
from tests.support import factories as make
from tests.support.factories import browser
from tests.support.waiting import wait_until

pytestmark = pytest.mark.django_db(transaction=True)

ANN = "+16025550101"


@pytest.fixture
def floor(twilio_floor: Floor) -> Floor:
    return twilio_floor


def agent(floor: Floor, url: str, **fields: Any) -> VoiceAgent:
    Campaign.objects.update(script="Read after it.")
    return VoiceAgent.objects.create(
        organization=floor.organization, campaign=floor.campaign, url=url, **{"variables": "name", **fields}
    )


def call_of(floor: Floor, **fields: Any) -> Call:
    """A call of the campaign, answered unless said otherwise."""
    given = {
        "organization": floor.organization, "purpose": "lead", "subject_id": 1, "attempt": 1, "sid": "CA1",
        "account": floor.account, "number": floor.number, "pool": floor.pool, "line_slot": 1, "pool_slot": 1,
        "to_phone": ANN, "from_phone": floor.number.phone, "place_by": clock.now(), "status": "answered",
        "context": {"campaign_id": floor.campaign.pk}, "requested_at": clock.now(), "answered_at": clock.now(),
    }  # fmt: skip
    return Call.objects.create(**{**given, **fields})


def ended(lead: int) -> Lead:
    wait_until(lambda: Lead.objects.filter(pk=lead, status="finished").exists())
    return Lead.objects.get(pk=lead)


@pytest.mark.parametrize(("kind", "path"), [("relay", "/text"), ("stream", "/audio")])
def test_the_documented_agent_talks_to_a_lead_and_reports(
    floor: Floor, sim: Simulator, app_url: str, kind: str, path: str
) -> None:
    key = make.api_key(floor.organization, ApiKey.Scope.LEADS)
    sim.phone(ANN).will(answer(0.5, "1"))
    with documented_agent(app_url, key) as address:
        agent(floor, address + path, kind=kind)
        lead = add_with(floor, ANN, name="Ann", secret="x")
        floor.work()
        row = ended(lead)
    assert (row.outcome, row.disposition) == ("answered", "wants_quote")
    wait_until(lambda: "agent_connected" in floor.told(lead))
    said = sim.calls_to(ANN)[0].said
    if kind == "relay":
        assert "Hello Ann. Please press 1 for a quote" in said
        assert Lead.objects.get(pk=lead).notes == "Talked to the example agent."
    else:
        assert "[audio of" in said
    assert "Read after it." not in said


def test_the_documented_agent_refuses_who_is_not_the_provider(floor: Floor, sim: Simulator, app_url: str) -> None:
    sim.phone(ANN).will(answer(0.5))
    with documented_agent(app_url, "", token="another") as address:
        agent(floor, f"{address}/text", otherwise="Sorry, {name}. We will write.")
        lead = add_with(floor, ANN, name="Ann")
        floor.work()
        row = ended(lead)
    assert (row.outcome, row.disposition) == ("answered", "agent_unreachable")
    assert sim.calls_to(ANN)[0].said == "Sorry, Ann. We will write."
    assert "agent_unreachable" in floor.told(lead)
    assert floor.calls(lead)[0].error_code == agents.FAILED


def greet(talk: Talk) -> None:
    """Act as an agent that says a sentence and ends."""
    talk.hear_first()
    if talk.is_stream:
        talk.hear("media")
    else:
        talk.send(type="end", handoffData=json.dumps({"disposition": "sold", "notes": "Two."}))
        talk.hear_until_closed()


@pytest.mark.parametrize("kind", ["relay", "stream"])
def test_the_script_is_read_after_an_agent_that_a_key_connects(floor: Floor, sim: Simulator, kind: str) -> None:
    sim.phone(ANN).will({"do": "answer", "after": 0.5, "keys": [{"key": "1"}, {"key": "2"}]})
    with ScriptedAgent(greet) as server:
        agent(floor, f"{server.url}/x", kind=kind, starts="key", then="script")
        KeyBranch.objects.create(
            organization=floor.organization, campaign=floor.campaign, key="1", action="agent", say="One moment."
        )
        KeyBranch.objects.create(
            organization=floor.organization, campaign=floor.campaign, key="2", say="Bye.", disposition="bye"
        )
        lead = add_with(floor, ANN, name="Ann")
        floor.work()
        row = ended(lead)
        assert server.signed == [True]
    said = sim.calls_to(ANN)[0].said
    assert said.index("One moment.") < said.rindex("Read after it.") < said.index("Bye.")
    assert row.disposition == "bye"
    assert row.notes == ("Two." if kind == "relay" else "")


def test_an_agent_gets_the_chosen_data_of_its_lead(floor: Floor) -> None:
    row = agent(floor, "wss://bots.example.com/x", variables="name, color", greeting="Hi {name}.")
    lead = Lead(pk=7, campaign=floor.campaign, organization=floor.organization, external_id="c-7",
                data={"name": "A" * 900, "color": "blue", "secret": "x"})  # fmt: skip
    made = voice_agents.connect(lead, Call(pk=9))
    assert made is not None
    assert dict(made.parameters) == {
        "lead_id": "7", "call_id": "9", "campaign": floor.campaign.code, "external_id": "c-7", "color": "blue",
        "name": "A" * 200,
    }  # fmt: skip
    assert (made.limit_s, made.is_relay) == (row.limit_s, True)


def test_the_call_is_hung_up_at_the_end_of_the_longest_conversation(floor: Floor, sim: Simulator) -> None:
    sim.phone(ANN).will(manual())
    with ScriptedAgent(lambda talk: talk.hear_until_closed()) as server:
        agent(floor, server.url, limit_s=10)
        lead = add_with(floor, ANN)
        floor.work()
        person = sim.phone(ANN).rings().answer()
        wait_until(lambda: "talks to the voice agent" in person.story())
        call = floor.calls(lead)[0]
        assert call.hang_up_at is not None
        assert call.time_limit_s == floor.campaign.time_limit_s + 10
        clock.travel(11)
        wait_until(lambda: hang_ups.hang_up_due() or person.now["over"])
        assert ended(lead).outcome == "answered"


def test_the_time_limit_ends_with_the_conversation(floor: Floor) -> None:
    call = call_of(floor)
    agents.limit(call.pk, 600)
    call.refresh_from_db()
    assert call.hang_up_at is not None
    agents._record_end(call, has_failed=False)
    call.refresh_from_db()
    assert (call.hang_up_at, call.error_code) == (None, "")
    Call.objects.update(cancel_requested_at=clock.now(), hang_up_at=clock.now())
    agents.limit(call.pk, 600)
    agents._record_end(call, has_failed=False)
    call.refresh_from_db()
    assert call.hang_up_at is not None, "a canceled call is still hung up"


def test_an_end_that_its_webhook_did_not_apply_is_applied_once(floor: Floor) -> None:
    agent(floor, "wss://bots.example.com/x")
    (lead,) = floor.add(ANN)
    Lead.objects.update(status="processing", claimed_at=clock.now(), token=1)
    call = call_of(floor, purpose="lead", subject_id=lead,
        status="answered",
    )  # fmt: skip
    later = clock.now() + timedelta(days=2)
    handoff = {"disposition": "sold", "notes": "N", "call_back_at": later.isoformat()}
    payload = {"CallSid": "CA1", "SessionId": "VX1", "SessionStatus": "ended", "HandoffData": json.dumps(handoff)}
    CallEvent.objects.create(
        organization=floor.organization, call=call, key="agent:1", kind="agent", payload={**payload, "_step": "1"},
        next_action_at=clock.now(),
    )  # fmt: skip
    assert keys.apply_unhandled_keys() == 1
    row = Lead.objects.get(pk=lead)
    assert (row.disposition, row.notes, row.call_back_at) == ("sold", "N", later)
    Lead.objects.update(disposition="corrected")
    CallEvent.objects.update(next_action_at=clock.now())
    assert keys.apply_unhandled_keys() == 1
    assert Lead.objects.get(pk=lead).disposition == "corrected"
    assert floor.told(lead).count("agent_connected") == 1


def test_a_failure_does_not_replace_a_reported_outcome(floor: Floor) -> None:
    agent(floor, "wss://bots.example.com/x")
    (lead,) = floor.add(ANN)
    Lead.objects.update(status="processing", claimed_at=clock.now(), token=1)
    call = call_of(floor, purpose="lead", subject_id=lead)
    outcomes.report_outcome(lead, disposition="sold", actor=SYSTEM)
    handler = voice.LeadCallHandler()
    prompt = handler.on_agent_ended(call, AgentEnd(1, has_failed=True, handoff="["))
    assert prompt.say == ("Nobody can take your call right now. Goodbye.",)
    assert Lead.objects.get(pk=lead).disposition == "sold"


@pytest.mark.parametrize(
    ("pressed", "disposition"), [("1", "asked_later"), ("2", "agent_unreachable"), ("", "agent_unreachable")]
)
def test_a_failure_does_not_replace_an_outcome_that_a_key_records_again(
    floor: Floor, pressed: str, disposition: str
) -> None:
    agent(floor, "wss://bots.example.com/x", starts="key")
    for key, outcome in (("1", "asked_later"), ("2", "")):
        KeyBranch.objects.create(
            organization=floor.organization, campaign=floor.campaign, key=key, action="agent", disposition=outcome
        )
    (lead,) = floor.add(ANN)
    handler = voice.LeadCallHandler()
    Lead.objects.update(status="processing", claimed_at=clock.now(), token=1)
    first = call_of(floor, subject_id=lead, keys_pressed="1")
    handler.on_key(first, "1")
    handler.on_agent_ended(first, AgentEnd(1, has_failed=True))
    assert Lead.objects.get(pk=lead).disposition == "asked_later"
    Call.objects.update(status="completed", ended_at=clock.now())
    Lead.objects.update(token=2)
    second = call_of(floor, subject_id=lead, attempt=2, sid="CA2", keys_pressed=pressed)
    if pressed:
        handler.on_key(second, pressed)
    handler.on_agent_ended(second, AgentEnd(1, has_failed=True))
    assert Lead.objects.get(pk=lead).disposition == disposition


@pytest.mark.parametrize(
    "text",
    ["", "[", "[" * 5000, "null", "[1]", '{"disposition": "Not Valid"}', '{"disposition": 1, "notes": 2}',
     '{"call_back_at": "2020-01-01T00:00:00Z"}', '{"call_back_at": "tomorrow"}', '{"call_back_at": "2999-01-01"}'],
)  # fmt: skip
def test_what_an_agent_leaves_may_be_anything(text: str) -> None:
    assert rules.read_handoff(text, clock.now()) == {}


# --- Which agents are allowed


@pytest.mark.parametrize(
    ("url", "hosts", "problem"),
    [
        ("wss://bots.example.com/x", "", ""),
        ("wss://bots.example.com/x?a=1", "", ""),
        ("https://bots.example.com/x", "", "Enter a URL such as wss://"),
        ("wss:///x", "", "Enter a URL such as wss://"),
        ("wss://[x", "", "Enter a URL such as wss://"),
        ("wss://user:pw@bots.example.com/", "", "user name"),
        ("wss://169.254.169.254/latest", "", "link-local"),
        ("wss://10.0.0.5/", "", "private"),
        ("wss://2130706433/", "", "can't be called"),
        ("wss://bots.example.com:25/", "", "port 25"),
        ("wss://bots.example.com/", "example.com", "only at example.com"),
        ("wss://bots.example.com/", "*.example.com", ""),
        ("wss://evilexample.com/", "*.example.com, example.com", "only at"),
        ("wss://BOTS.example.com/", "bots.example.com", ""),
    ],
)
def test_agents_are_only_at_allowed_hosts(floor: Floor, url: str, hosts: str, problem: str) -> None:
    LeadDispatch.objects.update(agent_hosts=hosts)
    found = voice_agents.url_problem(floor.organization.pk, url, is_stream=False)
    assert problem in found
    assert bool(found) == bool(problem), found


def test_a_url_without_encryption_is_for_development(floor: Floor, settings: Any) -> None:
    assert voice_agents.url_problem(floor.organization.pk, "ws://127.0.0.1:8080/", is_stream=True) == ""
    settings.DEVELOPMENT = False
    assert voice_agents.url_problem(floor.organization.pk, "ws://bots.example.com/", is_stream=True)


def test_a_host_that_is_no_longer_allowed_is_not_connected_to(floor: Floor) -> None:
    agent(floor, "wss://bots.example.com/x", otherwise="Sorry.")
    LeadDispatch.objects.update(agent_hosts="other.example.com")
    (lead,) = floor.add(ANN)
    Lead.objects.update(status="processing", claimed_at=clock.now(), token=1)
    call = call_of(floor, purpose="lead", subject_id=lead)
    assert voice.LeadCallHandler().on_answer(call).say == ("Sorry.",)
    assert Lead.objects.get(pk=lead).disposition == "agent_unreachable"


# --- Forms, API and preview


@pytest.fixture
def api(floor: Floor) -> Api:
    return Api(key=make.api_key(floor.organization, "leads:write", "read", "manage"))


def body(floor: Floor, **fields: Any) -> dict[str, Any]:
    return {"code": "fall", "name": "Fall", "pool": floor.pool.code, **fields}


def test_an_agent_is_written_and_read_with_the_api(floor: Floor, api: Api) -> None:
    given = {"url": "wss://bots.example.com/x", "variables": "name", "otherwise": "Sorry, {name}."}
    made = api.post("campaigns/", body(floor, agent=given)).json()
    assert made["agent"]["url"] == given["url"]
    assert (made["agent"]["starts"], made["agent"]["kind"]) == ("answer", "relay")
    url = f"campaigns/{made['id']}/"
    same = api.patch(url, {"agent": made["agent"], "name": "Winter"}).json()
    assert (same["agent"], same["name"]) == (made["agent"], "Winter")
    refused = api.patch(url, {"agent": None})
    assert (refused.status_code, "script" in refused.text) == (400, True)
    assert api.patch(url, {"agent": None, "script": "Hello."}).json()["agent"] is None
    assert not VoiceAgent.objects.exists()


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ({"agent": {"url": "wss://10.0.0.1/"}}, "private"),
        ({"agent": {"url": "wss://bots.example.com/?a=1", "kind": "stream"}}, "query"),
        ({"agent": {"url": "wss://bots.example.com/", "variables": "lead_id"}}, "Remove lead_id"),
        ({"agent": {"url": "wss://bots.example.com/", "greeting": "Hi {nmae}"}}, "Unknown variable"),
        ({"agent": {"kind": "relay"}}, "This field is required"),
        ({"agent": {"url": "wss://bots.example.com/", "starts": "key"}}, "Write a script"),
        ({"script": "x", "branches": [{"key": "1", "action": "agent"}]}, "Add a voice agent"),
        ({"script": "x", "branches": [{"key": "1", "action": "connect", "phones": "12"}]}, "not a valid phone"),
        ({"script": "x", "branches": [{"key": "1", "action": "connect", "phones": "+442079460000"}]},
         "can't be called"),
    ],
)  # fmt: skip
def test_a_wrong_agent_is_refused(floor: Floor, api: Api, fields: dict[str, Any], problem: str) -> None:
    refused = api.post("campaigns/", body(floor, **fields))
    assert (refused.status_code, problem in refused.text) == (400, True), refused.text
    assert not VoiceAgent.objects.exists()


def test_the_form_saves_an_agent(floor: Floor) -> None:
    page = browser(make.admin(floor.organization))
    row = {"url": "wss://bots.example.com/x", "kind": "relay", "starts": "answer", "limit_s": "60",
           "then": "hang_up", "variables": "name", "id": ""}  # fmt: skip
    rows = {f"agent-0-{name}": value for name, value in row.items()}
    sent = form(floor, **{**rows, "agent-TOTAL_FORMS": "1"})
    url = reverse("admin:leads_campaign_add")
    wrong = page.post(url, {**sent, "agent-0-url": "wss://10.0.0.1/"})
    assert "private" in wrong.content.decode()
    assert page.post(url, sent).status_code == 302
    made = VoiceAgent.objects.get(campaign__code="fall")
    assert (made.url, made.organization_id, made.limit_s) == (row["url"], floor.organization.pk, 60)
    assert made.campaign.has_words


def test_the_form_checks_the_phones_of_a_key(floor: Floor) -> None:
    page = browser(make.admin(floor.organization))
    row = {"key": "1", "action": "connect", "phones": "602 555 0190, 12", "ring_s": "20", "talk_limit_s": "60"}
    rows = {f"branches-0-{name}": value for name, value in row.items()}
    sent = form(floor, script="Hello.", **{**rows, "branches-TOTAL_FORMS": "1"})
    assert (
        "“12” is not a valid phone number" in page.post(reverse("admin:leads_campaign_add"), sent).content.decode()
    )


def test_only_an_admin_changes_the_allowed_hosts(floor: Floor) -> None:
    row = LeadDispatch.objects.get()
    url = reverse("admin:leads_leaddispatch_change", args=[row.pk])
    sent = {"organization": floor.organization.pk, "mode": "live", "agent_hosts": "Bots.example.com , *.acme.com"}
    assert browser(make.dispatcher(floor.organization)).post(url, sent).status_code in (302, 403, 404)
    assert LeadDispatch.objects.get().agent_hosts == ""
    page = browser(make.admin(floor.organization))
    assert "is not a host" in page.post(url, {**sent, "agent_hosts": "https://x"}).content.decode()
    assert page.post(url, sent).status_code == 302
    assert LeadDispatch.objects.get().agent_hosts == "bots.example.com, *.acme.com"


def test_the_preview_connects_to_the_agent_with_the_names_of_its_data(floor: Floor, sim: Simulator) -> None:
    sim.phone(ANN).will(manual())
    with ScriptedAgent(lambda talk: talk.hear_until_closed()) as server:
        agent(floor, server.url, greeting="Hi {name}.")
        made = voice._sample(floor.campaign.pk)
        assert isinstance(made, AgentConnection)
        assert dict(made.parameters) == {"preview": "1", "campaign": floor.campaign.code, "name": "name"}
        admin = make.admin(floor.organization)
        page = browser(admin).get(reverse("admin:leads_campaign_preview_voice", args=[floor.campaign.pk]))
        assert "ConversationRelay" in page.content.decode()
        assert voice_previews.find_number(floor.organization.pk) is not None


def test_a_stranger_cannot_report_the_end_of_an_agent(floor: Floor, app_url: str) -> None:
    call = call_of(floor)
    for kind in ("agent", "stream"):
        url = f"{app_url}/telephony/twilio/calls/{call.pk}/{kind}?step=1"
        assert requests.post(url, {"SessionStatus": "ended"}, timeout=30).status_code == 403
