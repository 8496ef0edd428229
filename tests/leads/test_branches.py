"""What pressed keys do: the branches of a campaign's script, by form and API, and in calls."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from django.urls import reverse

from dispatch.core import clock
from dispatch.leads import voice
from dispatch.leads.models import Campaign, DoNotCall, KeyBranch, Lead
from dispatch.telephony.models import Call, Text
from tests.api.client import Api
from tests.harness.lead_calls import add_with
from tests.harness.leads import Floor
from tests.leads.test_scripts_of_campaigns import form
from tests.phones import Simulator, answer, busy, manual, voicemail
from tests.support import factories as make
from tests.support.factories import browser
from tests.support.waiting import wait_until

pytestmark = pytest.mark.django_db(transaction=True)

ANN, SALES, OTHER = "+16025550101", "+16025550190", "+16025550191"


@pytest.fixture
def floor(twilio_floor: Floor) -> Floor:
    return twilio_floor


@pytest.fixture
def api() -> Api:
    organization = make.organization()
    made = Api(key=make.api_key(organization, "leads:write", "read", "manage"))
    made.pool = make.number(organization).pool  # type: ignore[attr-defined]
    return made


def branch(floor: Floor, key: str, action: str, **fields: Any) -> KeyBranch:
    return KeyBranch.objects.create(
        organization=floor.organization, campaign=floor.campaign, key=key, action=action, **fields
    )


def ended(lead: int) -> Lead:
    wait_until(lambda: Lead.objects.filter(pk=lead).exclude(status="processing").exists())
    return Lead.objects.get(pk=lead)


def legs() -> list[tuple[str, str]]:
    return list(Call.objects.filter(purpose="connect").order_by("attempt").values_list("to_phone", "status"))


# --- Connect to a person


def test_the_lead_talks_to_the_person_who_accepts(floor: Floor, sim: Simulator) -> None:
    branch(
        floor, "1", "connect", phones=f"{SALES}, {OTHER}", introduction="Lead {name}.", say="Hold on, {name}.",
        disposition="talked",
    )  # fmt: skip
    sim.phone(ANN).will(answer(0.5, "1"))
    sales = sim.phone(SALES).will(manual())
    sim.phone(OTHER).will(manual())
    lead = add_with(floor, ANN, name="Ann")
    floor.work()
    person = sales.rings().answer()
    person.hears("Lead Ann.").hears("Press 1 to take the call.").press("1")
    wait_until(lambda: "talks to" in person.story())
    numbers = set(Call.objects.values_list("number_id", "from_phone").distinct())
    assert len(numbers) == 1, "legs call from the number of their call"
    person.hang_up()
    row = ended(lead)
    assert (row.outcome, row.disposition) == ("answered", "talked")
    assert "connected" in floor.told(lead)
    assert "Hold on, Ann." in sim.calls_to(ANN)[0].said
    wait_until(lambda: not Call.objects.filter(ended_at=None).exists())
    assert [status for _, status in legs()] == ["completed", "canceled"]
    wait_until(lambda: floor.lines_in_use() == 0)


def test_a_connection_counts_although_the_lead_hangs_up_first(floor: Floor, sim: Simulator) -> None:
    branch(floor, "1", "connect", phones=SALES)
    sim.phone(ANN).will(answer(0.5, "1"))
    sales = sim.phone(SALES).will(manual())
    lead = add_with(floor, ANN)
    floor.work()
    person = sales.rings().answer()
    person.hears("Press 1 to take the call.").press("1")
    wait_until(lambda: "talks to" in person.story())
    sim.calls_to(ANN)[0].hang_up()
    assert ended(lead).outcome == "answered"
    assert floor.told(lead).count("connected") == 1
    wait_until(lambda: not Call.objects.filter(ended_at=None).exists())
    wait_until(lambda: floor.lines_in_use() == 0)


def test_a_leg_ends_if_the_lead_hangs_up_while_it_rings(floor: Floor, sim: Simulator) -> None:
    branch(floor, "1", "connect", phones=SALES)
    sim.phone(ANN).will(answer(0.5, "1"))
    sales = sim.phone(SALES).will(manual())
    lead = add_with(floor, ANN)
    floor.work()
    sales.rings()
    sim.calls_to(ANN)[0].hang_up()
    ended(lead)
    wait_until(lambda: [status for _, status in legs()] == ["canceled"])
    assert "connected" not in floor.told(lead)
    wait_until(lambda: floor.lines_in_use() == 0)


def test_if_nobody_accepts_the_lead_hears_what_the_branch_says(floor: Floor, sim: Simulator) -> None:
    branch(floor, "1", "connect", phones=SALES, otherwise="Sorry, {name}. We will write.")
    sim.phone(ANN).will(answer(0.5, "1"))
    sim.phone(SALES).will(busy(after=0.2))
    lead = add_with(floor, ANN, name="Ann")
    floor.work()
    ended(lead)
    assert "Sorry, Ann. We will write." in sim.calls_to(ANN)[0].said
    assert "not_connected" in floor.told(lead)
    wait_until(lambda: [status for _, status in legs()] == ["busy"])


def test_a_machine_does_not_accept_for_a_person(floor: Floor, sim: Simulator) -> None:
    branch(floor, "1", "connect", phones=SALES, otherwise="Nobody is here.")
    sim.phone(ANN).will(answer(0.5, "1"))
    sim.phone(SALES).will(voicemail(after=0.2))
    lead = add_with(floor, ANN)
    floor.work()
    ended(lead)
    assert "Nobody is here." in sim.calls_to(ANN)[0].said
    assert "not_connected" in floor.told(lead)


def test_a_leg_takes_a_line_and_there_is_none(floor: Floor, sim: Simulator) -> None:
    floor.number.max_channels = 1
    floor.number.save()
    branch(floor, "1", "connect", phones=SALES, otherwise="Nobody is here.")
    sim.phone(ANN).will(answer(0.5, "1"))
    lead = add_with(floor, ANN)
    floor.work()
    ended(lead)
    assert "Nobody is here." in sim.calls_to(ANN)[0].said
    assert sim.creates_to(SALES) == 0
    assert legs() == []


# --- Other actions


def test_a_person_is_called_back_and_the_attempt_does_not_count(floor: Floor, sim: Simulator) -> None:
    Campaign.objects.update(max_attempts=1)
    branch(floor, "2", "later", call_back_h=48, say="We will call again.", disposition="later")
    sim.phone(ANN).will(answer(0.5, "2"), answer(after=0.5))
    lead = add_with(floor, ANN)
    began = clock.now()
    floor.work()
    row = ended(lead)
    assert (row.status, row.reason, row.attempts, row.disposition) == ("backlog", "call_back", 0, "later")
    assert row.due_at - began >= timedelta(hours=48)
    assert row.wanted_at == row.due_at
    clock.travel((row.due_at - clock.now()).total_seconds() + 1)
    # The web process schedules the lead after its commit.
    wait_until(lambda: floor.work() or Lead.objects.get(pk=lead).status != "backlog")
    assert ended(lead).outcome == "answered"


def test_a_text_follows_and_an_opt_out_is_kept(floor: Floor, sim: Simulator) -> None:
    floor.number.sends_texts = True
    floor.number.save()
    branch(floor, "3", "text", text="Hi {name}, see example.com", say="On its way.")
    branch(floor, "4", "opt_out", say="Bye for good.", disposition="no_interest")
    sim.phone(ANN).will(answer(0.5, "3"))
    sim.phone(OTHER).will(answer(0.5, "4"))
    first, second = add_with(floor, ANN, name="Ann"), add_with(floor, OTHER)
    floor.work()
    ended(first)
    assert ended(second).disposition == "no_interest"
    (text,) = Text.objects.filter(purpose="lead")
    assert (text.body, str(text.to_phone), text.subject_id) == ("Hi Ann, see example.com", ANN, first)
    assert DoNotCall.objects.get().phone == OTHER


def test_a_machine_hears_the_message_after_the_beep(floor: Floor, sim: Simulator) -> None:
    Campaign.objects.update(detect_machines=True, voicemail="Hi {name}, please call us.")
    sim.phone(ANN).will(voicemail(after=0.2))
    lead = add_with(floor, ANN, name="Ann")
    floor.work()
    ended(lead)
    assert sim.calls_to(ANN)[0].said == "Hi Ann, please call us."
    assert floor.calls(lead)[0].answered_by == "machine_end_beep"


# --- Forms and the API


def body(api: Any, **fields: Any) -> dict[str, Any]:
    return {"code": "fall", "name": "Fall", "pool": api.pool.code, "script": "Hello {name}.", **fields}


def test_branches_are_written_and_read_with_the_api(api: Any) -> None:
    branches = [
        {"key": "1", "action": "connect", "phones": SALES, "say": "One moment."},
        {"key": "2", "action": "say", "say": "Thank you."},
    ]
    made = api.post("campaigns/", body(api, branches=branches)).json()
    assert [(row["key"], row["action"]) for row in made["branches"]] == [("1", "connect"), ("2", "say")]
    assert made["keys"] == {"2": "Thank you."}
    changed = api.patch(f"campaigns/{made['id']}/", {"keys": {"5": "Five."}}).json()
    assert [(row["key"], row["say"]) for row in changed["branches"]] == [("1", "One moment."), ("5", "Five.")]
    same = api.patch(f"campaigns/{made['id']}/", {name: changed[name] for name in ("keys", "branches")})
    assert same.json()["branches"] == changed["branches"]
    refused = api.patch(f"campaigns/{made['id']}/", {"opt_out_key": "5"})
    assert (refused.status_code, "opt-out key" in refused.text) == (400, True)


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ({"script": "Hello {nmae}."}, "Unknown variable {nmae}"),
        ({"script": "Hello {name."}, "A placeholder is a name in braces"),
        ({"voicemail": "Hi {who}"}, "Unknown variable {who}"),
        ({"variables": "first name"}, "letters, digits and underscores"),
        ({"branches": [{"key": "1", "action": "connect"}]}, "1 to 5 phone numbers"),
        ({"branches": [{"key": "1", "action": "later"}]}, "hours until the next call"),
        ({"branches": [{"key": "9", "say": "x"}]}, "opt-out key"),
        ({"branches": [{"key": "1", "say": "x"}, {"key": "1", "say": "y"}]}, "more than one branch"),
        ({"branches": [{"key": "1", "say": "Hi {x}"}]}, "Unknown variable {x}"),
    ],
)
def test_a_wrong_script_is_refused(api: Any, fields: dict[str, Any], problem: str) -> None:
    refused = api.post("campaigns/", body(api, **fields))
    assert (refused.status_code, problem in refused.text) == (400, True), refused.text
    assert not Campaign.objects.exists()


def test_a_declared_variable_is_known(api: Any) -> None:
    made = api.post("campaigns/", body(api, script="Order {order_no}.", variables="order_no, color"))
    assert made.status_code == 201, made.text


@pytest.mark.parametrize(
    "texts",
    [
        {"script": "Order {order_no}."},
        {"voicemail": "Order {order_no}."},
        {"branches": [{"key": "1", "say": "Order {order_no}."}]},
        {"disposition_rules": [{"disposition": "sold", "text": "Order {order_no}."}]},
        {"agent": {"url": "wss://bots.example.com/", "starts": "key", "greeting": "Order {order_no}."}},
    ],
    ids=lambda texts: next(iter(texts)),
)
def test_a_variable_that_a_text_uses_is_not_removed(api: Any, texts: dict[str, Any]) -> None:
    fields = {"script": "Hello.", "variables": "order_no, color", **texts}
    path = f"campaigns/{api.post('campaigns/', body(api, **fields)).json()['id']}/"
    refused = api.patch(path, {"variables": "color"})
    assert refused.status_code == 400
    (error,) = refused.json()["errors"]
    assert (error["field"], "texts use {order_no}" in error["detail"]) == ("variables", True)
    assert api.patch(path, {"variables": "order_no"}).status_code == 200
    (name,) = texts
    unused: Any = {"script": "Bye.", "voicemail": "", "agent": None}.get(name, [])
    assert api.patch(path, {name: unused, "variables": ""}).status_code == 200


def test_the_form_keeps_a_variable_that_the_script_uses(floor: Floor) -> None:
    floor.campaign.script, floor.campaign.variables = "Order {order_no}.", "order_no"
    floor.campaign.save()
    page = browser(make.admin(floor.organization))
    url = reverse("admin:leads_campaign_change", args=[floor.campaign.pk])
    sent = form(floor, code=floor.campaign.code, script="Order {order_no}.", variables="")
    assert "Unknown variable {order_no}" in page.post(url, sent).content.decode()
    assert page.post(url, {**sent, "variables": "order_no"}).status_code == 302


def test_the_form_checks_the_text_of_a_recorded_outcome(floor: Floor) -> None:
    page = browser(make.admin(floor.organization))
    row = {"disposition": "sold", "then": "finish", "delay_h": "24", "text": "Hi {nmae}", "id": ""}
    rows = {f"disposition_rules-0-{name}": value for name, value in row.items()}
    sent = form(floor, script="Hello.", **{**rows, "disposition_rules-TOTAL_FORMS": "1"})
    url = reverse("admin:leads_campaign_add")
    assert "Unknown variable {nmae}" in page.post(url, sent).content.decode()
    assert page.post(url, {**sent, "disposition_rules-0-text": "Hi {name}"}).status_code == 302


def test_the_form_saves_branches_as_rows(floor: Floor) -> None:
    page = browser(make.admin(floor.organization))
    row = {
        "key": "1",
        "action": "connect",
        "say": "Hi {name}",
        "phones": SALES,
        "ring_s": "20",
        "talk_limit_s": "60",
        "id": "",
    }
    rows = {f"branches-0-{name}": value for name, value in row.items()}
    sent = form(floor, script="Hello {name}.", **{**rows, "branches-TOTAL_FORMS": "1"})
    url = reverse("admin:leads_campaign_add")
    wrong = page.post(url, {**sent, "branches-0-say": "Hi {nmae}"})
    assert "Unknown variable {nmae}" in wrong.content.decode()
    assert page.post(url, sent).status_code == 302
    assert KeyBranch.objects.get(campaign__code="fall").phones == SALES


def test_the_preview_says_what_a_key_would_do(floor: Floor) -> None:
    branch(floor, "1", "connect", phones=SALES, say="One moment, {name}.")
    assert voice._sample(floor.campaign.pk).keys == "19"
    said = voice._sample(floor.campaign.pk, "1").say
    assert said == ("One moment, name.", "Preview: a person would be called now.")


def test_keys_of_an_earlier_version_still_work(floor: Floor, sim: Simulator) -> None:
    Campaign.objects.update(keys={"1": "Thank you."})
    sim.phone(ANN).will(answer(0.5, "1"))
    floor.add(ANN)
    floor.work()
    wait_until(lambda: bool(sim.calls_to(ANN)) and "Thank you." in sim.calls_to(ANN)[0].said)
