"""A text is asked for once, moves forward only, and its delivery is reported."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
import requests

from dispatch.capacity.models import OutboundNumber
from dispatch.core import clock, fault_injection
from dispatch.core.models import Event
from dispatch.telephony import number_health, services, sms_rules
from dispatch.telephony.models import InboundCall, Text
from dispatch.telephony.services import inbound
from tests.support import factories
from tests.support.waiting import wait_until
from tests.telephony.conftest import ANN, Answering, Caller, create_text, text_is


def kinds(text: Text) -> list[str]:
    events = Event.objects.filter(subject_type="text", subject_id=text.pk).order_by("id")
    return [event.kind.removeprefix("text.") for event in events]


def test_a_text_is_sent_by_the_loop_and_its_delivery_is_reported(texter: Caller, step: Callable) -> None:
    text = create_text(texter, context={"job_id": 7})
    step("texts")

    text_is(text, "delivered")
    assert kinds(text) == ["created", "requesting", "submitted", "sent", "delivered"]
    assert Event.objects.filter(kind="text.delivered", data__job_id=7).exists()
    assert [m["body"] for m in texter.sim.messages(to=ANN)] == ["A job for you."]


def test_the_same_attempt_is_one_text(texter: Caller, step: Callable) -> None:
    assert create_text(texter).pk == create_text(texter, body="Another body").pk
    step("texts")
    step("texts")
    assert len(texter.sim.messages(to=ANN)) == 1


def test_an_undelivered_text_says_why(texter: Caller) -> None:
    texter.sim.phone(ANN).texts_will("undelivered", 30003)
    text = services.send_text(create_text(texter).pk)
    assert text_is(text, "undelivered").error_code == "30003"


def refused_texts() -> list[dict[str, Any]]:
    return [event.data for event in Event.objects.filter(kind="account.texts_refused").order_by("id")]


def test_undelivered_texts_are_reported_to_admins_once_per_code(texter: Caller) -> None:
    phones = [f"+1602555010{n}" for n in range(1, 7)]
    for phone, code in zip(phones, [30034, 30034, 30007, 30005, 30003, 99999], strict=True):
        texter.sim.phone(phone).texts_will("undelivered", code)
    for n, phone in enumerate(phones):
        text_is(services.send_text(create_text(texter, phone, n).pk), "undelivered")
    reported = {data["code"]: data for data in refused_texts()}
    assert sorted(reported) == ["30007", "30034", "99999"]
    assert len(refused_texts()) == 3
    assert "not registered" in reported["30034"]["message"]
    assert reported["30034"]["number"] == str(texter.number.phone)

    clock.travel(86_401)
    text_is(services.send_text(create_text(texter, phones[0], 11).pk), "undelivered")
    assert [data["code"] for data in refused_texts()].count("30034") == 2


def test_a_number_whose_texts_are_blocked_is_avoided(texter: Caller) -> None:
    chosen = create_text(texter).number
    other = factories.number(
        texter.organization, pool=texter.pool, account=texter.account, sends_texts=True, texts_per_second=1000
    )
    by_number = {create_text(texter, f"+1602555{n:04d}", n).number for n in range(200, 220)}
    assert by_number == {chosen, other}
    for n, code in enumerate(("30007", "30034", "30007")):
        text = create_text(texter, f"+1602555{n:04d}", 300 + n, number=chosen)
        Text.objects.filter(pk=text.pk).update(
            status="undelivered", error_code=code, requested_at=clock.now(), ended_at=clock.now()
        )
    health = number_health.text_health(chosen)
    assert health.describe() == "3 of the latest 3 texts were blocked (error 30007: 2, 30034: 1)"
    assert {create_text(texter, f"+1602555{n:04d}", 400 + n).number for n in range(200, 220)} == {other}
    assert create_text(texter, ANN, 500, number=chosen).number == chosen, "an explicit choice stands"
    OutboundNumber.objects.filter(pk=other.pk).update(is_paused=True)
    assert create_text(texter, ANN, 501).number == chosen, "if there is no other"
    clock.travel(86_401)
    assert not number_health.text_health(chosen).is_blocked


def test_a_refused_text_is_reported_to_admins(texter: Caller) -> None:
    texter.sim.phone(ANN).texts_will("refuse", 21608)
    assert services.send_text(create_text(texter).pk).status == "rejected"
    assert [data["code"] for data in refused_texts()] == ["21608"]
    texter.sim.phone(ANN).texts_will("refuse", 21614)
    assert services.send_text(create_text(texter, subject_id=2).pk).status == "rejected"
    assert len(refused_texts()) == 1


def test_a_process_that_dies_while_asking_never_asks_again(texter: Caller, step: Callable) -> None:
    text = create_text(texter)
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
    text = services.send_text(create_text(texter).pk)
    assert text.status == "unknown"
    for _ in range(3):
        clock.travel(61)
        step("texts_reconciler")
    assert text_is(text, "not_sent").error_message == "the provider has no such text"


def test_text_of_a_provider_that_lists_nothing_may_have_been_sent(
    texter: Caller, step: Callable, settings: Any
) -> None:
    settings.PROVIDER_TIMEOUT_S = 0.5
    texter.sim.time_out_before_creating(hold=2, on="message")
    text = services.send_text(create_text(texter).pk)
    texter.sim.answer_500(on="list", times=None)
    clock.travel(24 * 3600)
    step("texts_reconciler")
    assert Text.objects.get(pk=text.pk).status == "unknown"
    clock.travel(2 * 3600)
    step("texts_reconciler")
    assert "may have been sent" in text_is(text, "not_sent").error_message


def test_a_429_is_sent_again(texter: Caller, step: Callable) -> None:
    texter.sim.answer_429(retry_after=5, on="message")
    text = services.send_text(create_text(texter).pk)
    assert text.status == "created"
    clock.travel(6)
    step("texts")
    text_is(text, "delivered")


def test_a_number_sends_at_its_pace(texter: Caller, step: Callable) -> None:
    OutboundNumber.objects.filter(pk=texter.number.pk).update(texts_per_second=0.005)
    texts = [create_text(texter, subject_id=n) for n in range(3)]
    services.send_text(texts[0].pk)
    waits = services.send_text(texts[1].pk)
    assert waits.status == "created"
    assert 0 < (waits.not_before - clock.now()).total_seconds() <= 200
    clock.travel(200.1)
    assert services.send_text(texts[1].pk).status != "created"
    assert services.send_text(texts[2].pk).status == "created"


def test_waiting_texts_get_a_turn_each_in_the_order_of_urgency(texter: Caller, step: Callable) -> None:
    OutboundNumber.objects.filter(pk=texter.number.pk).update(texts_per_second=0.01)
    services.send_text(create_text(texter).pk)
    later = create_text(texter, subject_id=2, not_before=clock.now() + timedelta(hours=1))
    texts = [
        create_text(texter, subject_id=n, purpose=purpose)
        for n, purpose in enumerate(("test", "test", "reply"), 3)
    ]
    free_at = services.send_text(texts[0].pk).not_before - timedelta(seconds=100)
    assert 90 < (free_at - clock.now()).total_seconds() <= 100
    waits = [(Text.objects.get(pk=text.pk).not_before - free_at).total_seconds() for text in texts]
    assert waits == [100, 200, 0]
    later.refresh_from_db()
    assert later.not_before - free_at > timedelta(minutes=50), "it was not due"
    clock.travel(101)
    step("texts")
    text_is(texts[2], "delivered")
    assert Text.objects.filter(status="created", not_before__gt=clock.now()).count() == 3


def test_a_text_of_several_segments_takes_several_turns(texter: Caller) -> None:
    OutboundNumber.objects.filter(pk=texter.number.pk).update(texts_per_second=0.01)
    first, second = create_text(texter, body="a" * 400), create_text(texter, subject_id=2)
    services.send_text(first.pk)
    wait_s = (services.send_text(second.pk).not_before - clock.now()).total_seconds()
    assert 290 < wait_s <= 300


def test_a_text_is_not_delivered_after_its_deadline(texter: Caller) -> None:
    services.send_text(create_text(texter, not_after=clock.now() + timedelta(minutes=10)).pk)
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
    text = create_text(texter, body="It\u2019s Ann \u2014 call\u2026")
    send_by = clock.now() + timedelta(seconds=5)
    Text.objects.filter(pk=text.pk).update(status="unknown", requested_at=clock.now(), send_by=send_by)
    step("texts_reconciler")
    assert Text.objects.get(pk=text.pk).sid == texter.sim.messages(to=ANN)[0]["sid"]


def test_equal_text_is_not_taken_for_one_that_was_never_sent(texter: Caller, step: Callable) -> None:
    first = services.send_text(create_text(texter, body="We are on our way.").pk)
    lost = create_text(texter, subject_id=2, body="We are on our way.")
    send_by = clock.now() + timedelta(seconds=5)
    Text.objects.filter(pk=lost.pk).update(status="unknown", requested_at=clock.now(), send_by=send_by)
    for _ in range(3):
        clock.travel(61)
        step("texts_reconciler")
    assert text_is(lost, "not_sent").sid is None
    assert Text.objects.get(pk=first.pk).sid == texter.sim.messages(to=ANN)[0]["sid"]


def test_what_is_no_longer_wanted_or_too_late_is_not_sent(texter: Caller, answering: Answering) -> None:
    late = create_text(texter, subject_id=1, not_after=clock.now() + timedelta(seconds=5))
    unwanted = create_text(texter, subject_id=2)
    answering.still_wanted = False
    assert services.send_text(unwanted.pk).status == "canceled"
    answering.still_wanted = True
    clock.travel(6)
    assert services.send_text(late.pk).status == "not_sent"
    assert not texter.sim.messages(to=ANN)


def test_no_number_no_country_no_text(texter: Caller) -> None:
    with pytest.raises(services.TextNotAllowed, match="country"):
        create_text(texter, to="+4930901820")
    OutboundNumber.objects.update(sends_texts=False)
    with pytest.raises(services.NoTextNumber):
        create_text(texter)
    assert not services.may_text(texter.organization.pk, ANN)


def test_text_without_a_report_ends_eventually(texter: Caller, step: Callable) -> None:
    texter.sim.phone(ANN).texts_will("silent")
    text = services.send_text(create_text(texter).pk)
    text_is(text, "sent")
    said = inbound.IncomingWebhook("CA1", texter.account.account_sid, str(texter.number.phone), ANN)
    call, _ = inbound.answer_call(texter.number, said)
    clock.travel(2 * 86_400)
    step("texts_reconciler")
    assert Text.objects.get(pk=text.pk).ended_at is None
    assert InboundCall.objects.get(pk=call.pk).status == "completed"
    assert Event.objects.get(kind="inboundcall.completed").subject_id == call.pk
    clock.travel(2 * 86_400)
    step("texts_reconciler")
    ended = Text.objects.get(pk=text.pk)
    assert (ended.status, ended.ended_at is not None) == ("sent", True)


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
