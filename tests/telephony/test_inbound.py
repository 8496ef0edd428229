"""Texts and calls to our numbers: each is handled once, and STOP ends the texts of one organization."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import requests
from twilio.request_validator import RequestValidator

from dispatch.core import clock, fault_injection
from dispatch.core.models import Event
from dispatch.telephony import handlers, services, sms_rules
from dispatch.telephony.models import InboundCall, OptOut, Text
from dispatch.telephony.services import inbound
from tests.support import factories
from tests.support.waiting import PATIENCE, wait_until
from tests.telephony.conftest import ANN, Answering, Caller, create_text, text_is


def test_stop_ends_texts_of_one_organization_and_start_resumes_them(texter: Caller) -> None:
    waiting = create_text(texter)
    other = factories.organization()
    factories.number(other, sends_texts=True)
    texter.sim.phone(ANN).texts_us(str(texter.number.phone), " Stop. ")
    wait_until(lambda: OptOut.objects.exists(), message="nobody opted out")

    assert text_is(waiting, "canceled")
    with pytest.raises(services.OptedOut):
        create_text(texter, subject_id=2)
    assert services.may_text(other.pk, ANN)

    texter.sim.phone(ANN).texts_us(str(texter.number.phone), "START")
    wait_until(lambda: not OptOut.objects.exists(), message="nobody opted in")
    assert create_text(texter, subject_id=3).status == "created"


def test_the_providers_own_opt_out_suppresses_the_next(texter: Caller) -> None:
    texter.sim.add_number(str(texter.number.phone))  # no webhook: we never hear of the STOP
    texter.sim.phone(ANN).texts_us(str(texter.number.phone), "STOP")
    text = services.send_text(create_text(texter).pk)
    assert (text.status, text.error_code) == ("rejected", "21610")
    assert OptOut.objects.get().source == "provider"
    with pytest.raises(services.OptedOut):
        create_text(texter, subject_id=2)


def test_a_reply_goes_to_its_purpose_once_and_is_answered(
    texter: Caller, answering: Answering, step: Callable
) -> None:
    services.send_text(create_text(texter).pk)
    texter.sim.phone(ANN).texts_us(str(texter.number.phone), "On my way")
    wait_until(
        lambda: Text.objects.filter(direction="in", handled_at__isnull=False).exists(), message="not dealt with"
    )
    received = Text.objects.get(direction="in")
    assert (received.purpose, answering.heard.count("On my way")) == ("test", 1)
    inbound.process_text(received.pk)
    assert answering.heard.count("On my way") == 1
    step("texts")
    texter.sim.phone(ANN).gets_text("You said On my way")


def test_text_whose_webhook_crashed_is_processed_by_the_loop(
    texter: Caller, answering: Answering, step: Callable
) -> None:
    said = inbound.IncomingWebhook("SM1", texter.account.account_sid, str(texter.number.phone), ANN, body="2")
    with fault_injection.arm_crash_point("telephony.text.received"), pytest.raises(fault_injection.Interrupted):
        inbound.receive_text(texter.number, said)
    clock.travel(30)
    step("texts_reconciler")
    assert answering.heard == ["2"]
    assert Text.objects.get(direction="in").handled_at


def test_a_stop_that_is_dealt_with_late_does_not_undo_a_later_start(texter: Caller, step: Callable) -> None:
    def said(sid: str, body: str) -> inbound.IncomingWebhook:
        return inbound.IncomingWebhook(sid, texter.account.account_sid, str(texter.number.phone), ANN, body=body)

    with fault_injection.arm_crash_point("telephony.text.received"), pytest.raises(fault_injection.Interrupted):
        inbound.receive_text(texter.number, said("SM1", "STOP"))
    inbound.receive_text(texter.number, said("SM2", "START"))
    clock.travel(30)
    step("texts_reconciler")
    assert not OptOut.objects.exists()
    assert not Text.objects.filter(handled_at=None, direction="in").exists()


def test_help_is_answered_also_without_a_listener(texter: Caller) -> None:
    handlers._listeners.clear()
    said = inbound.IncomingWebhook("SM1", texter.account.account_sid, str(texter.number.phone), ANN, body="help")
    inbound.receive_text(texter.number, said)
    about = "we text about our services. Reply STOP to opt out."  # true also for the leads of a campaign
    assert Text.objects.get(purpose="reply").body == f"{texter.organization.name}: {about}"


def test_two_machines_do_not_talk_for_ever(texter: Caller, settings: Any) -> None:
    settings.TEXT_REPLIES_PER_HOUR = 3
    for n in range(5):
        said = inbound.IncomingWebhook(
            f"SM{n}", texter.account.account_sid, str(texter.number.phone), ANN, body="hello"
        )
        inbound.receive_text(texter.number, said)
    assert Text.objects.filter(purpose="reply").count() == 3
    assert Event.objects.filter(kind="text.not_answered").count() == 2


def test_caller_hears_the_listeners_prompt_and_can_press_a_key(texter: Caller, answering: Answering) -> None:
    call = texter.sim.phone(ANN).calls_us(str(texter.number.phone), press="1")
    call.hears("the job is yours")
    assert answering.keys == ["1"]
    ended = wait_until(lambda: InboundCall.objects.filter(status="completed").first(), message="it never ended")
    assert (ended.from_phone, ended.purpose, ended.subject_id, ended.keys_pressed) == (ANN, "test", 7, "1")


def test_caller_without_an_offer_hears_so(texter: Caller) -> None:
    handlers._listeners.clear()
    texter.sim.phone(ANN).calls_us(str(texter.number.phone)).hears("nothing waiting for you")


@pytest.mark.parametrize(
    "caller_id", ["+7378742833", "+2562533", "+8656696", "+2662696687", "+86282452253", "anonymous"]
)
def test_a_withheld_number_is_not_stored_as_a_callers(texter: Caller, app_url: str, caller_id: str) -> None:
    path = f"/telephony/twilio/numbers/{texter.number.pk}/voice"
    form = {
        "CallSid": "CA9", "AccountSid": texter.account.account_sid, "From": caller_id,
        "To": str(texter.number.phone), "CallStatus": "ringing",
    }  # fmt: skip
    signature = RequestValidator(texter.sim.auth_token).compute_signature(f"{app_url}{path}", form)
    headers = {"X-Twilio-Signature": signature}
    answer = requests.post(f"{app_url}{path}", data=form, headers=headers, timeout=PATIENCE)
    assert answer.status_code == 200
    assert InboundCall.objects.get().from_phone == ""


def test_only_what_the_numbers_account_signed_counts(texter: Caller, app_url: str) -> None:
    foreign = factories.number(factories.organization(), sends_texts=True)
    form = {
        "MessageSid": "SM9", "AccountSid": texter.account.account_sid, "From": ANN,
        "To": str(texter.number.phone), "Body": "STOP",
    }  # fmt: skip

    def post(path: str, token: str, **changes: str) -> int:
        fields = form | changes
        signature = RequestValidator(token).compute_signature(f"{app_url}{path}", fields)
        headers = {"X-Twilio-Signature": signature}
        return requests.post(f"{app_url}{path}", data=fields, headers=headers, timeout=PATIENCE).status_code

    ours = f"/telephony/twilio/numbers/{texter.number.pk}/sms"
    token = texter.sim.auth_token
    text = create_text(texter)
    assert [
        post(ours, "another"),
        post(f"/telephony/twilio/numbers/{foreign.pk}/sms", token),
        post(ours, token, To="+16025550999"),
        post(ours, token, AccountSid="AC-other"),
        post(f"/telephony/twilio/numbers/{2**70}/sms", token),
        post(f"/telephony/twilio/numbers/{texter.number.pk}/nonsense", token),
        post(f"/telephony/twilio/texts/{text.pk}/status", "another", MessageStatus="delivered"),
        post(f"/telephony/twilio/texts/{text.pk}/status", token, AccountSid="AC-other", MessageStatus="sent"),
        requests.get(f"{app_url}{ours}", timeout=PATIENCE).status_code,
    ] == [403] * 8 + [405]
    assert not OptOut.objects.exists()
    assert Text.objects.get(pk=text.pk).status == "created"
    assert post(ours, token) == 200
    assert post(ours, token) == 200  # the provider repeats it
    assert Text.objects.filter(direction="in").count() == 1


@pytest.mark.parametrize(
    ("body", "opted_out", "meaning"),
    [
        ("STOP", False, "stop"),
        (" stop! ", False, "stop"),
        ("Unsubscribe", False, "stop"),
        ("please stop calling my mother about the plumbing, thank you", False, ""),
        ("STOP 2", False, "stop"),
        ("CANCEL.", False, "stop"),
        ("Cancel 12", False, ""),
        ("end 5:30", False, ""),
        ("start", False, "start"),
        ("yes", True, "start"),
        ("YES", False, ""),
        ("Help", False, "help"),
        ("1", False, ""),
        ("", False, ""),
    ],
)
def test_keywords(body: str, opted_out: bool, meaning: str) -> None:
    assert sms_rules.keyword(body, opted_out) == meaning
