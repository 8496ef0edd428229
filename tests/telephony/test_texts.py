"""A text is asked for once, moves forward only, and STOP is honoured; what comes in is dealt with once."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import datetime, timedelta
from typing import Any

import pytest
import requests
from django.db import transaction
from twilio.request_validator import RequestValidator

from dispatch.capacity.models import OutboundNumber
from dispatch.core import clock, fault_injection
from dispatch.core.models import Event
from dispatch.telephony import handlers, number_health, services, sms_rules, webhook_urls
from dispatch.telephony.handlers import VoicePrompt
from dispatch.telephony.models import InboundCall, OptOut, Text
from dispatch.telephony.services import inbound
from tests.support import factories
from tests.support.waiting import PATIENCE, wait_until
from tests.telephony.conftest import Caller

ANN = "+16025550101"


class Answering:
    """A listener that answers every text with what it heard, and takes a key in a call."""

    def __init__(self) -> None:
        self.heard: list[str] = []
        self.keys: list[str] = []
        self.still_wanted = True

    def should_send(self, text: Text) -> bool:
        return self.still_wanted

    def on_status_change(self, text: Text) -> None:
        self.heard.append(text.status)

    def on_sms(self, text: Text) -> str | None:
        self.heard.append(text.body)
        return f"You said {text.body}"

    def on_stop(self, text: Text) -> None:
        """Do nothing."""

    def on_help(self, text: Text) -> str | None:
        return "This is how it works."

    def on_call(self, call: InboundCall) -> VoicePrompt | None:
        call.subject_id = 7
        return VoicePrompt(("There is a job for you.", "Press 1 to accept."), keys="1")

    def on_key(self, call: InboundCall, key: str, *, arrived_at: datetime) -> VoicePrompt:
        self.keys.append(key)
        return VoicePrompt(("The job is yours.",))


@pytest.fixture
def answering() -> Iterator[Answering]:
    before = dict(handlers._listeners), dict(handlers._text_handlers)
    made = Answering()
    handlers._listeners.clear()
    handlers.register_inbound("test", made)
    handlers.register_texts("test", made)
    yield made
    handlers._listeners.clear()
    handlers._listeners.update(before[0])
    handlers._text_handlers.clear()
    handlers._text_handlers.update(before[1])


@pytest.fixture
def texter(caller: Caller, answering: Answering) -> Caller:
    """The caller, whose number may text and is known to the provider with our addresses."""
    OutboundNumber.objects.filter(pk=caller.number.pk).update(sends_texts=True, texts_per_second=1000)
    caller.number.refresh_from_db()
    caller.sim.add_number(
        str(caller.number.phone),
        sms_url=webhook_urls.number_webhook(caller.number, "sms"),
        voice_url=webhook_urls.number_webhook(caller.number, "voice"),
        status_callback=webhook_urls.number_webhook(caller.number, "status"),
    )
    return caller


def create(texter: Caller, to: str = ANN, subject_id: int = 1, **changes: Any) -> Text:
    wanted = {"body": "A job for you.", "purpose": "test", "subject_id": subject_id, **changes}
    with transaction.atomic():
        return services.create_text(organization=texter.organization, to_phone=to, **wanted)


def now_is(text: Text, status: str) -> Text:
    def there() -> Text | None:
        row = Text.objects.get(pk=text.pk)
        return row if row.status == status else None

    return wait_until(there, message=lambda: f"text is {Text.objects.get(pk=text.pk).status}, not {status}")  # type: ignore[return-value]


def kinds(text: Text) -> list[str]:
    events = Event.objects.filter(subject_type="text", subject_id=text.pk).order_by("id")
    return [event.kind.removeprefix("text.") for event in events]


def test_a_text_is_sent_by_the_loop_and_its_delivery_is_reported(texter: Caller, step: Callable) -> None:
    text = create(texter, context={"job_id": 7})
    step("texts")

    now_is(text, "delivered")
    assert kinds(text) == ["created", "requesting", "submitted", "sent", "delivered"]
    assert Event.objects.filter(kind="text.delivered", data__job_id=7).exists()
    assert [m["body"] for m in texter.sim.messages(to=ANN)] == ["A job for you."]


def test_the_same_attempt_is_one_text(texter: Caller, step: Callable) -> None:
    assert create(texter).pk == create(texter, body="Another body").pk
    step("texts")
    step("texts")
    assert len(texter.sim.messages(to=ANN)) == 1


def test_an_undelivered_text_says_why(texter: Caller) -> None:
    texter.sim.phone(ANN).texts_will("undelivered", 30003)
    text = services.send_text(create(texter).pk)
    assert now_is(text, "undelivered").error_code == "30003"


def refused_texts() -> list[dict[str, Any]]:
    return [event.data for event in Event.objects.filter(kind="account.texts_refused").order_by("id")]


def test_undelivered_texts_are_reported_to_admins_once_per_code(texter: Caller) -> None:
    phones = [f"+1602555010{n}" for n in range(1, 7)]
    for phone, code in zip(phones, [30034, 30034, 30007, 30005, 30003, 99999], strict=True):
        texter.sim.phone(phone).texts_will("undelivered", code)
    for n, phone in enumerate(phones):
        now_is(services.send_text(create(texter, phone, n).pk), "undelivered")
    reported = {data["code"]: data for data in refused_texts()}
    assert sorted(reported) == ["30007", "30034", "99999"]
    assert len(refused_texts()) == 3
    assert "not registered" in reported["30034"]["message"]
    assert reported["30034"]["number"] == str(texter.number.phone)

    clock.travel(86_401)
    now_is(services.send_text(create(texter, phones[0], 11).pk), "undelivered")
    assert [data["code"] for data in refused_texts()].count("30034") == 2


def test_a_number_whose_texts_are_blocked_is_avoided(texter: Caller) -> None:
    chosen = create(texter).number
    other = factories.number(
        texter.organization, pool=texter.pool, account=texter.account, sends_texts=True, texts_per_second=1000
    )
    by_number = {create(texter, f"+1602555{n:04d}", n).number for n in range(200, 220)}
    assert by_number == {chosen, other}
    for n, code in enumerate(("30007", "30034", "30007")):
        text = create(texter, f"+1602555{n:04d}", 300 + n, number=chosen)
        Text.objects.filter(pk=text.pk).update(
            status="undelivered", error_code=code, requested_at=clock.now(), ended_at=clock.now()
        )
    health = number_health.text_health(chosen)
    assert health.describe() == "3 of the latest 3 texts were blocked (error 30007: 2, 30034: 1)"
    assert {create(texter, f"+1602555{n:04d}", 400 + n).number for n in range(200, 220)} == {other}
    assert create(texter, ANN, 500, number=chosen).number == chosen, "an explicit choice stands"
    OutboundNumber.objects.filter(pk=other.pk).update(is_paused=True)
    assert create(texter, ANN, 501).number == chosen, "if there is no other"
    clock.travel(86_401)
    assert not number_health.text_health(chosen).is_blocked


def test_a_refused_text_is_reported_to_admins(texter: Caller) -> None:
    texter.sim.phone(ANN).texts_will("refuse", 21608)
    assert services.send_text(create(texter).pk).status == "rejected"
    assert [data["code"] for data in refused_texts()] == ["21608"]
    texter.sim.phone(ANN).texts_will("refuse", 21614)
    assert services.send_text(create(texter, subject_id=2).pk).status == "rejected"
    assert len(refused_texts()) == 1


def test_a_process_that_dies_while_asking_never_asks_again(texter: Caller, step: Callable) -> None:
    text = create(texter)
    with fault_injection.arm_crash_point("telephony.text.sent"), pytest.raises(fault_injection.Interrupted):
        services.send_text(text.pk)
    wait_until(lambda: Text.objects.get(pk=text.pk).status != "requesting", message="no webhook settled it")
    clock.travel(60)
    step("texts_reconciler")
    step("texts")
    assert len(texter.sim.messages(to=ANN)) == 1


def test_an_unknown_outcome_is_looked_up_and_only_then_not_sent(
    texter: Caller, step: Callable, settings: Any
) -> None:
    settings.PROVIDER_TIMEOUT_S = 0.5
    texter.sim.time_out_before_creating(hold=2, on="message")
    text = services.send_text(create(texter).pk)
    assert text.status == "unknown"
    for _ in range(3):
        clock.travel(61)
        step("texts_reconciler")
    assert now_is(text, "not_sent").error_message == "the provider has no such text"


def test_a_429_is_sent_again(texter: Caller, step: Callable) -> None:
    texter.sim.answer_429(retry_after=5, on="message")
    text = services.send_text(create(texter).pk)
    assert text.status == "created"
    clock.travel(6)
    step("texts")
    now_is(text, "delivered")


def test_a_number_sends_at_its_pace(texter: Caller, step: Callable) -> None:
    OutboundNumber.objects.filter(pk=texter.number.pk).update(texts_per_second=0.005)
    texts = [create(texter, subject_id=n) for n in range(3)]
    services.send_text(texts[0].pk)
    waits = services.send_text(texts[1].pk)
    assert waits.status == "created"
    assert 0 < (waits.not_before - clock.now()).total_seconds() <= 200
    clock.travel(200.1)
    assert services.send_text(texts[1].pk).status != "created"
    assert services.send_text(texts[2].pk).status == "created"


def test_a_text_of_several_segments_takes_several_turns(texter: Caller) -> None:
    OutboundNumber.objects.filter(pk=texter.number.pk).update(texts_per_second=0.01)
    first, second = create(texter, body="a" * 400), create(texter, subject_id=2)
    services.send_text(first.pk)
    wait_s = (services.send_text(second.pk).not_before - clock.now()).total_seconds()
    assert 290 < wait_s <= 300


def test_a_text_is_not_delivered_after_its_deadline(texter: Caller) -> None:
    services.send_text(create(texter, not_after=clock.now() + timedelta(minutes=10)).pk)
    (sent,) = texter.sim.messages(to=ANN)
    assert 590 <= sent["validity_period"] <= 600


def test_a_text_that_the_provider_changed_is_recognized(texter: Caller, step: Callable) -> None:
    changed = "Sent from your Twilio trial account - It's Ann - call..."
    requests.post(
        f"{texter.sim.base_url}/2010-04-01/Accounts/{texter.sim.account_sid}/Messages.json",
        data={"To": ANN, "From": str(texter.number.phone), "Body": changed},
        auth=(texter.sim.account_sid, texter.sim.auth_token),
        timeout=60,
    )
    text = create(texter, body="It\u2019s Ann \u2014 call\u2026")
    send_by = clock.now() + timedelta(seconds=5)
    Text.objects.filter(pk=text.pk).update(status="unknown", requested_at=clock.now(), send_by=send_by)
    step("texts_reconciler")
    assert Text.objects.get(pk=text.pk).sid == texter.sim.messages(to=ANN)[0]["sid"]


def test_what_is_no_longer_wanted_or_too_late_is_not_sent(texter: Caller, answering: Answering) -> None:
    late = create(texter, subject_id=1, not_after=clock.now() + timedelta(seconds=5))
    unwanted = create(texter, subject_id=2)
    answering.still_wanted = False
    assert services.send_text(unwanted.pk).status == "canceled"
    answering.still_wanted = True
    clock.travel(6)
    assert services.send_text(late.pk).status == "not_sent"
    assert not texter.sim.messages(to=ANN)


def test_no_number_no_country_no_text(texter: Caller) -> None:
    with pytest.raises(services.TextNotAllowed, match="country"):
        create(texter, to="+4930901820")
    OutboundNumber.objects.update(sends_texts=False)
    with pytest.raises(services.NoTextNumber):
        create(texter)
    assert not services.may_text(texter.organization.pk, ANN)


def test_stop_ends_texts_of_one_organization_and_start_resumes_them(texter: Caller) -> None:
    waiting = create(texter)
    other = factories.organization()
    factories.number(other, sends_texts=True)
    texter.sim.phone(ANN).texts_us(str(texter.number.phone), " Stop. ")
    wait_until(lambda: OptOut.objects.exists(), message="nobody opted out")

    assert now_is(waiting, "canceled")
    with pytest.raises(services.OptedOut):
        create(texter, subject_id=2)
    assert services.may_text(other.pk, ANN)

    texter.sim.phone(ANN).texts_us(str(texter.number.phone), "START")
    wait_until(lambda: not OptOut.objects.exists(), message="nobody opted in")
    assert create(texter, subject_id=3).status == "created"


def test_the_providers_own_opt_out_suppresses_the_next(texter: Caller) -> None:
    texter.sim.add_number(str(texter.number.phone))  # no webhook: we never hear of the STOP
    texter.sim.phone(ANN).texts_us(str(texter.number.phone), "STOP")
    text = services.send_text(create(texter).pk)
    assert (text.status, text.error_code) == ("rejected", "21610")
    assert OptOut.objects.get().source == "provider"
    with pytest.raises(services.OptedOut):
        create(texter, subject_id=2)


def test_a_reply_goes_to_its_purpose_once_and_is_answered(
    texter: Caller, answering: Answering, step: Callable
) -> None:
    services.send_text(create(texter).pk)
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
    assert texter.organization.name in Text.objects.get(purpose="reply").body


def test_text_without_a_report_ends_eventually(texter: Caller, step: Callable) -> None:
    texter.sim.phone(ANN).texts_will("silent")
    text = services.send_text(create(texter).pk)
    now_is(text, "sent")
    said = inbound.IncomingWebhook("CA1", texter.account.account_sid, str(texter.number.phone), ANN)
    call, _ = inbound.answer_call(texter.number, said)
    clock.travel(2 * 86_400)
    step("texts_reconciler")
    assert Text.objects.get(pk=text.pk).ended_at is None
    assert InboundCall.objects.get(pk=call.pk).status == "completed"
    clock.travel(2 * 86_400)
    step("texts_reconciler")
    ended = Text.objects.get(pk=text.pk)
    assert (ended.status, ended.ended_at is not None) == ("sent", True)


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
    text = create(texter)
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


def test_links_are_not_shown_in_the_log() -> None:
    body = "Answer at https://x.example/o/12.1w0abc.Zx8fJk2LmNoPqRsTuVwXyZ0123456789abcdefghi/ or reply 1."
    assert sms_rules.mask_tokens(body) == "Answer at https://x.example/o/…/ or reply 1."


@pytest.mark.parametrize(
    ("body", "count"),
    [
        *(("a" * 160, 1), ("a" * 161, 2), ("a" * 306, 2), ("a" * 307, 3), ("€" * 80, 1), ("€" * 81, 2)),
        *(("\u0436" * 70, 1), ("\u0436" * 71, 2), ("\U0001f600" * 35, 1), ("\U0001f600" * 36, 2), ("", 1)),
    ],
)
def test_segments(body: str, count: int) -> None:
    assert sms_rules.segments(body) == count


@pytest.mark.parametrize(
    ("body", "length"), [("a" * 2000, 1600), ("\U0001f600" * 900, 800), ("a\U0001f600" * 600, 1067)]
)
def test_a_text_is_truncated_by_utf_16_units(body: str, length: int) -> None:
    cut = sms_rules.truncate(body)
    assert body.startswith(cut)
    assert len(cut) == length
    assert len(cut.encode("utf-16-le")) <= 3200
