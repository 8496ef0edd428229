"""A text is asked for once, moves forward only, and STOP is honoured; what comes in is dealt with once."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import pytest
import requests
from django.db import transaction
from twilio.request_validator import RequestValidator

from dispatch.capacity.models import OutboundNumber
from dispatch.core import clock, faults
from dispatch.core.models import Event
from dispatch.telephony import addresses, purposes, services, text_rules
from dispatch.telephony.models import InboundCall, OptOut, Text
from dispatch.telephony.purposes import Prompt
from dispatch.telephony.services import incoming
from tests import factories
from tests.telephony.conftest import Caller
from tests.waiting import PATIENCE, wait_until

ANN = "+16025550101"


class Answering:
    """A listener that answers every text with what it heard, and takes a key in a call."""

    def __init__(self) -> None:
        self.heard: list[str] = []
        self.keys: list[str] = []
        self.still_wanted = True

    def wanted(self, text: Text) -> bool:
        return self.still_wanted

    def changed(self, text: Text) -> None:
        self.heard.append(text.status)

    def replied(self, text: Text) -> str | None:
        self.heard.append(text.body)
        return f"You said {text.body}"

    def helped(self, text: Text) -> str | None:
        return "This is how it works."

    def called(self, call: InboundCall) -> Prompt | None:
        call.subject_id = 7
        return Prompt(("There is a job for you.", "Press 1 to accept."), keys="1")

    def pressed(self, call: InboundCall, key: str) -> Prompt:
        self.keys.append(key)
        return Prompt(("The job is yours.",))


@pytest.fixture
def answering() -> Iterator[Answering]:
    before = dict(purposes._listeners), dict(purposes._text_handlers)
    made = Answering()
    purposes._listeners.clear()
    purposes.register_listener("test", made)
    purposes.register_texts("test", made)
    yield made
    purposes._listeners.clear()
    purposes._listeners.update(before[0])
    purposes._text_handlers.clear()
    purposes._text_handlers.update(before[1])


@pytest.fixture
def texter(caller: Caller, answering: Answering) -> Caller:
    """The caller, whose number may text and is known to the provider with our addresses."""
    OutboundNumber.objects.filter(pk=caller.number.pk).update(sends_texts=True, texts_per_second=1000)
    caller.number.refresh_from_db()
    caller.sim.add_number(
        str(caller.number.phone),
        sms_url=addresses.number_webhook(caller.number, "sms"),
        voice_url=addresses.number_webhook(caller.number, "voice"),
        status_callback=addresses.number_webhook(caller.number, "status"),
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
    text = services.send(create(texter).pk)
    assert now_is(text, "undelivered").error_code == "30003"


def test_a_process_that_dies_while_asking_never_asks_again(texter: Caller, step: Callable) -> None:
    text = create(texter)
    with faults.arm("telephony.text.sent"), pytest.raises(faults.Interrupted):
        services.send(text.pk)
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
    text = services.send(create(texter).pk)
    assert text.status == "unknown"
    for _ in range(3):
        clock.travel(61)
        step("texts_reconciler")
    assert now_is(text, "not_sent").error_message == "the provider has no such text"


def test_a_429_is_sent_again(texter: Caller, step: Callable) -> None:
    texter.sim.answer_429(retry_after=5, on="message")
    text = services.send(create(texter).pk)
    assert text.status == "created"
    clock.travel(6)
    step("texts")
    now_is(text, "delivered")


def test_a_number_sends_at_its_pace(texter: Caller, step: Callable) -> None:
    OutboundNumber.objects.filter(pk=texter.number.pk).update(texts_per_second=0.005)
    texts = [create(texter, subject_id=n) for n in range(3)]
    services.send(texts[0].pk)
    waits = services.send(texts[1].pk)
    assert waits.status == "created"
    assert 0 < (waits.not_before - clock.now()).total_seconds() <= 200
    clock.travel(200.1)
    assert services.send(texts[1].pk).status != "created"
    assert services.send(texts[2].pk).status == "created"


def test_what_is_no_longer_wanted_or_too_late_is_not_sent(texter: Caller, answering: Answering) -> None:
    late = create(texter, subject_id=1, not_after=clock.now() + timedelta(seconds=5))
    unwanted = create(texter, subject_id=2)
    answering.still_wanted = False
    assert services.send(unwanted.pk).status == "canceled"
    answering.still_wanted = True
    clock.travel(6)
    assert services.send(late.pk).status == "not_sent"
    assert not texter.sim.messages(to=ANN)


def test_no_number_no_country_no_text(texter: Caller) -> None:
    with pytest.raises(services.TextNotAllowed, match="country"):
        create(texter, to="+4930901820")
    OutboundNumber.objects.update(sends_texts=False)
    with pytest.raises(services.NoTextNumber):
        create(texter)
    assert not services.may_text(texter.organization.pk, ANN)


def test_stop_ends_texts_of_this_organization_only_and_start_begins_them_again(texter: Caller) -> None:
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
    text = services.send(create(texter).pk)
    assert (text.status, text.error_code) == ("rejected", "21610")
    assert OptOut.objects.get().source == "provider"
    with pytest.raises(services.OptedOut):
        create(texter, subject_id=2)


def test_a_reply_goes_to_its_purpose_once_and_is_answered(
    texter: Caller, answering: Answering, step: Callable
) -> None:
    services.send(create(texter).pk)
    texter.sim.phone(ANN).texts_us(str(texter.number.phone), "On my way")
    wait_until(
        lambda: Text.objects.filter(direction="in", handled_at__isnull=False).exists(), message="not dealt with"
    )
    received = Text.objects.get(direction="in")
    assert (received.purpose, answering.heard.count("On my way")) == ("test", 1)
    incoming.deal_with(received.pk)
    assert answering.heard.count("On my way") == 1
    step("texts")
    texter.sim.phone(ANN).gets_text("You said On my way")


def test_a_text_whose_webhook_died_is_dealt_with_by_the_loop(
    texter: Caller, answering: Answering, step: Callable
) -> None:
    said = incoming.Incoming("SM1", texter.account.account_sid, str(texter.number.phone), ANN, body="2")
    with faults.arm("telephony.text.received"), pytest.raises(faults.Interrupted):
        incoming.receive_text(texter.number, said)
    clock.travel(30)
    step("texts_reconciler")
    assert answering.heard == ["2"]
    assert Text.objects.get(direction="in").handled_at


def test_a_stop_that_is_dealt_with_late_does_not_undo_a_later_start(texter: Caller, step: Callable) -> None:
    def said(sid: str, body: str) -> incoming.Incoming:
        return incoming.Incoming(sid, texter.account.account_sid, str(texter.number.phone), ANN, body=body)

    with faults.arm("telephony.text.received"), pytest.raises(faults.Interrupted):
        incoming.receive_text(texter.number, said("SM1", "STOP"))
    incoming.receive_text(texter.number, said("SM2", "START"))
    clock.travel(30)
    step("texts_reconciler")
    assert not OptOut.objects.exists()
    assert not Text.objects.filter(handled_at=None, direction="in").exists()


def test_help_is_answered_also_without_a_listener(texter: Caller) -> None:
    purposes._listeners.clear()
    said = incoming.Incoming("SM1", texter.account.account_sid, str(texter.number.phone), ANN, body="help")
    incoming.receive_text(texter.number, said)
    assert texter.organization.name in Text.objects.get(purpose="reply").body


def test_what_is_never_reported_is_over_one_day(texter: Caller, step: Callable) -> None:
    texter.sim.phone(ANN).texts_will("silent")
    text = services.send(create(texter).pk)
    now_is(text, "sent")
    said = incoming.Incoming("CA1", texter.account.account_sid, str(texter.number.phone), ANN)
    call, _ = incoming.answer_call(texter.number, said)
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
        said = incoming.Incoming(f"SM{n}", texter.account.account_sid, str(texter.number.phone), ANN, body="hello")
        incoming.receive_text(texter.number, said)
    assert Text.objects.filter(purpose="reply").count() == 3
    assert Event.objects.filter(kind="text.not_answered").count() == 2


def test_whoever_calls_our_number_hears_its_listener_and_their_key_counts(
    texter: Caller, answering: Answering
) -> None:
    call = texter.sim.phone(ANN).calls_us(str(texter.number.phone), press="1")
    call.hears("the job is yours")
    assert answering.keys == ["1"]
    ended = wait_until(lambda: InboundCall.objects.filter(status="completed").first(), message="it never ended")
    assert (ended.from_phone, ended.purpose, ended.subject_id, ended.keys_pressed) == (ANN, "test", 7, "1")


def test_a_caller_for_whom_there_is_nothing_is_told_so(texter: Caller) -> None:
    purposes._listeners.clear()
    texter.sim.phone(ANN).calls_us(str(texter.number.phone)).hears("nothing waiting for your answer")


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
        ("start", False, "start"),
        ("yes", True, "start"),
        ("YES", False, ""),
        ("Help", False, "help"),
        ("1", False, ""),
        ("", False, ""),
    ],
)
def test_keywords(body: str, opted_out: bool, meaning: str) -> None:
    assert text_rules.keyword(body, opted_out) == meaning


def test_links_are_not_shown_in_the_log() -> None:
    body = "Answer at https://x.example/o/12.1w0abc.Zx8fJk2LmNoPqRsTuVwXyZ0123456789abcdefghi/ or reply 1."
    assert text_rules.without_tokens(body) == "Answer at https://x.example/o/…/ or reply 1."
