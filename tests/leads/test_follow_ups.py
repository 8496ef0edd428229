"""Texts that follow a recorded outcome: once, in the calling hours, and never to who opted out."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from zoneinfo import ZoneInfo

import pytest

from dispatch.core import clock
from dispatch.core.events import SYSTEM
from dispatch.core.models import Event
from dispatch.leads import eligibility
from dispatch.leads.models import (
    Campaign,
    Consent,
    DispositionRule,
    DoNotCallEverywhere,
    KeyBranch,
    Lead,
    LeadDispatch,
)
from dispatch.leads.services import branches, consents, do_not_call, held_follow_ups, switches
from dispatch.telephony import services as telephony
from dispatch.telephony.models import Call, OptOut, SpendCap, Text
from tests.api.client import Api
from tests.harness.lead_calls import add_with
from tests.harness.leads import Floor
from tests.support import factories as make

pytestmark = pytest.mark.django_db(transaction=True)

PHOENIX = ZoneInfo("America/Phoenix")
ANN = "+16025550101"


@pytest.fixture
def floor(floor: Floor) -> Floor:
    floor.number.sends_texts = True
    floor.number.save()
    for disposition, text in (("sold", "Thank you, {name}."), ("later", "We will call again."), ("quiet", "")):
        DispositionRule.objects.create(
            organization=floor.organization, campaign=floor.campaign, disposition=disposition, text=text
        )
    eligibility.reset()
    return floor


@pytest.fixture
def api(floor: Floor) -> Api:
    return Api(key=make.api_key(floor.organization, "leads:write", "read", "manage"))


@pytest.fixture
def lead(floor: Floor) -> int:
    made = add_with(floor, ANN, name="Ann")
    floor.work()
    return made


def report(api: Api, lead: int, disposition: str) -> None:
    assert api.post(f"leads/{lead}/outcome/", {"disposition": disposition}).status_code == 200


def texts() -> list[tuple[str, str]]:
    return list(Text.objects.filter(purpose="lead").order_by("pk").values_list("body", "status"))


def test_a_text_follows_once(floor: Floor, api: Api, lead: int) -> None:
    for _ in range(2):
        report(api, lead, "sold")
    assert texts() == [("Thank you, Ann.", "created")]
    report(api, lead, "quiet")
    assert texts() == [("Thank you, Ann.", "canceled")]
    report(api, lead, "sold")
    assert texts() == [("Thank you, Ann.", "canceled"), ("Thank you, Ann.", "created")]


def test_it_is_sent(floor: Floor, api: Api, lead: int) -> None:
    report(api, lead, "sold")
    text = Text.objects.get()
    assert telephony.send_text(text.pk).status == "submitted"
    report(api, lead, "later")
    assert texts() == [("Thank you, Ann.", "submitted"), ("We will call again.", "created")]


def test_a_corrected_outcome_replaces_a_text_that_waits(floor: Floor, api: Api, lead: int) -> None:
    report(api, lead, "sold")
    report(api, lead, "later")
    assert texts() == [("Thank you, Ann.", "canceled"), ("We will call again.", "created")]
    report(api, lead, "unknown_to_rules")
    assert [status for _, status in texts()] == ["canceled", "canceled"]


def test_it_waits_for_the_calling_hours(floor: Floor, api: Api, lead: int) -> None:
    Campaign.objects.update(window_from="09:00", window_until="20:00")
    night = (clock.now().astimezone(PHOENIX) + timedelta(days=1)).replace(
        hour=3, minute=0, second=0, microsecond=0
    )
    clock.travel((night - clock.now()).total_seconds())
    report(api, lead, "sold")
    text = Text.objects.get()
    assert text.not_before.astimezone(PHOENIX).hour == 9
    assert text.not_after.astimezone(PHOENIX).hour == 20
    assert telephony.send_text(text.pk).status == "created"
    clock.travel(6 * 3600 + 60)
    assert telephony.send_text(text.pk).status == "submitted"


def test_one_that_missed_the_hours_is_not_sent_at_night(floor: Floor, api: Api, lead: int) -> None:
    report(api, lead, "sold")
    clock.travel(13 * 3600)
    assert telephony.send_text(Text.objects.get().pk).status == "not_sent"


@pytest.mark.parametrize("how", ["texts", "list", "everywhere", "number", "hours", "consent", "dry run"])
def test_none_is_created_where_none_is_permitted(floor: Floor, api: Api, lead: int, how: str) -> None:
    if how == "texts":
        OptOut.objects.create(organization=floor.organization, phone=ANN)
    elif how == "list":
        do_not_call.add_to_list(floor.organization.pk, ANN, source="person", actor=SYSTEM)
    elif how == "everywhere":
        DoNotCallEverywhere.objects.create(phone=ANN)
    elif how == "number":
        floor.number.sends_texts = False
        floor.number.save()
    elif how == "consent":
        Campaign.objects.update(consent_purpose="marketing")
    elif how == "dry run":
        LeadDispatch.objects.update(mode="dry_run")
    else:
        Campaign.objects.update(weekdays=[])
    report(api, lead, "sold")
    assert texts() == []
    assert Lead.objects.get(pk=lead).disposition == "sold"
    assert Event.objects.get(kind="lead.follow_up_not_sent").data["why"]


def test_an_opt_out_cancels_one_that_waits(floor: Floor, api: Api, lead: int) -> None:
    report(api, lead, "sold")
    do_not_call.add_to_list(floor.organization.pk, ANN, source="person", actor=SYSTEM)
    assert telephony.send_text(Text.objects.get().pk).status == "canceled"


def test_a_withdrawn_consent_cancels_one_that_waits(floor: Floor, api: Api, lead: int) -> None:
    Campaign.objects.update(consent_purpose="marketing")
    Consent.objects.create(organization=floor.organization, phone=ANN, given_at=clock.now(), source="form")
    report(api, lead, "sold")
    assert texts() == [("Thank you, Ann.", "created")]
    consents.withdraw(floor.organization.pk, ANN, by="api", actor=SYSTEM)
    assert telephony.send_text(Text.objects.get().pk).status == "canceled"


def test_replaced_rules_send_no_text_again(floor: Floor, api: Api, lead: int) -> None:
    report(api, lead, "sold")
    assert telephony.send_text(Text.objects.get().pk).status == "submitted"
    report(api, lead, "quiet")
    rules = [{"disposition": "sold", "text": "Thank you."}]
    assert api.patch(f"campaigns/{floor.campaign.pk}/", {"disposition_rules": rules}).status_code == 200
    report(api, lead, "sold")
    assert texts() == [("Thank you, Ann.", "submitted")]


def test_a_spending_cap_holds_it(floor: Floor, api: Api, lead: int) -> None:
    SpendCap.objects.create(organization=floor.organization, amount=0)
    report(api, lead, "sold")
    assert telephony.send_text(Text.objects.get().pk).status == "created"
    assert "cap" in Text.objects.get().error_message.lower()


def pause_campaign(floor: Floor, is_paused: bool) -> None:
    switches.pause_campaign(floor.campaign.pk, is_paused, actor=SYSTEM)


def pause_organization(floor: Floor, is_paused: bool) -> None:
    switches.set_dispatch(floor.organization.pk, is_paused=is_paused, actor=SYSTEM)


def turn_off(floor: Floor, is_off: bool) -> None:
    switches.set_dispatch(floor.organization.pk, mode="off" if is_off else "live", actor=SYSTEM)


def stop_all(floor: Floor, is_stopped: bool) -> None:
    switches.set_engine(is_stopped=is_stopped, actor=SYSTEM)


@pytest.mark.parametrize("switch", [pause_campaign, pause_organization, turn_off, stop_all])
def test_a_pause_holds_it_until_the_campaign_goes_on(
    floor: Floor, api: Api, lead: int, switch: Callable[[Floor, bool], None]
) -> None:
    report(api, lead, "sold")
    switch(floor, True)
    for _ in range(2):
        held = telephony.send_text(Text.objects.get().pk)
        assert held.status == "created"
        assert held.error_message.startswith("Held back: ")
        clock.travel(600)
    assert Event.objects.filter(kind="text.held_back").count() == 1
    telephony.send_text(held.pk)
    switch(floor, False)
    assert [telephony.send_text(held.pk).status for _ in range(2)] == ["created", "submitted"]
    assert Text.objects.get().error_message == ""


def test_a_pause_of_another_campaign_holds_nothing(floor: Floor, api: Api, lead: int) -> None:
    report(api, lead, "sold")
    switches.pause_campaign(floor.add_campaign().pk, True, actor=SYSTEM)
    assert telephony.send_text(Text.objects.get().pk).status == "submitted"


def test_one_that_was_held_overnight_is_sent_in_the_next_hours(floor: Floor, api: Api, lead: int) -> None:
    Campaign.objects.update(window_from="09:00", window_until="20:00")
    evening = (clock.now().astimezone(PHOENIX) + timedelta(days=1)).replace(
        hour=19, minute=50, second=0, microsecond=0
    )
    clock.travel((evening - clock.now()).total_seconds())
    report(api, lead, "sold")
    text = Text.objects.get()
    pause_campaign(floor, True)
    assert telephony.send_text(text.pk).status == "created"
    clock.travel(6 * 3600)
    telephony.send_text(text.pk)
    pause_campaign(floor, False)
    waiting = telephony.send_text(text.pk)
    assert waiting.status == "created"
    assert [moment.astimezone(PHOENIX).hour for moment in (waiting.not_before, waiting.not_after)] == [9, 20]
    clock.travel(8 * 3600)
    assert telephony.send_text(text.pk).status == "submitted"


@pytest.mark.parametrize("is_resumed", [True, False])
def test_one_that_was_held_for_too_long_is_not_sent(floor: Floor, api: Api, lead: int, is_resumed: bool) -> None:
    report(api, lead, "sold")
    pause_campaign(floor, True)
    text = telephony.send_text(Text.objects.get().pk)
    clock.travel(held_follow_ups.MAX_AGE.total_seconds() + 1)
    if is_resumed:
        pause_campaign(floor, False)
    ended = telephony.send_text(text.pk)
    assert (ended.status, ended.error_message) == ("not_sent", "Held back: the campaign is paused.")


def test_repeated_pauses_hold_a_text_no_longer_than_one(floor: Floor, api: Api, lead: int) -> None:
    report(api, lead, "sold")
    text = Text.objects.get()
    limit = text.created_at + held_follow_ups.MAX_AGE
    for _ in range(6):
        pause_campaign(floor, True)
        held = telephony.send_text(text.pk)
        if held.status != "created":
            break
        assert held.not_after <= limit
        clock.travel(11 * 3600)
        pause_campaign(floor, False)
        telephony.send_text(text.pk)  # it gets the next hours, and the next pause comes before it leaves
    clock.travel(held_follow_ups.MAX_AGE.total_seconds())
    pause_campaign(floor, False)
    assert telephony.send_text(text.pk).status == "not_sent"


def test_a_text_that_the_person_asked_for_by_key_is_not_held(floor: Floor, lead: int) -> None:
    branch = KeyBranch(campaign=floor.campaign, key="1", say="x", action="text", text="Here it is.")
    branches.apply_branch(Lead.objects.select_related("campaign").get(pk=lead), branch, Call.objects.get())
    pause_campaign(floor, True)
    assert telephony.send_text(Text.objects.get().pk).status == "submitted"


def test_a_key_with_an_outcome_sends_it_too(floor: Floor, lead: int) -> None:
    branch = KeyBranch(campaign=floor.campaign, key="1", say="x", action="say", disposition="sold")
    row = Lead.objects.select_related("campaign").get(pk=lead)
    for _ in range(2):
        branches.apply_branch(row, branch, Call.objects.get())
    assert texts() == [("Thank you, Ann.", "created")]


def test_the_rules_text_is_checked(floor: Floor, api: Api) -> None:
    rules = [{"disposition": "sold", "text": "Hi {nmae}"}]
    refused = api.patch(f"campaigns/{floor.campaign.pk}/", {"disposition_rules": rules})
    assert (refused.status_code, "Unknown variable" in refused.text) == (400, True)
