"""Hanging up works at every stage, before there is anything at the provider too."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta

import pytest
import requests
from django.conf import settings
from django.db import transaction
from twilio.request_validator import RequestValidator

from dispatch.core import clock, fault_injection
from dispatch.core.events import Actor
from dispatch.core.models import Event
from dispatch.core.runtime.queues import rq_queue
from dispatch.telephony import services
from dispatch.telephony.handlers import VoicePrompt
from dispatch.telephony.models import Call
from dispatch.telephony.services import hang_ups
from tests.harness.calls import place_call
from tests.harness.jobs import Worker
from tests.phones import manual
from tests.support.waiting import wait_until
from tests.telephony.conftest import Caller, history, now_is

ANN = "+16025550101"
DANA = Actor("user", 4, "Dana")


def work() -> None:
    """Run what is on the queue of jobs."""
    queue = rq_queue(settings.DISPATCH_QUEUE)
    Worker([queue], connection=queue.connection).work(burst=True, with_scheduler=False, logging_level=None)


def test_before_anybody_asked_for_it(caller: Caller) -> None:
    call = caller.create(ANN)

    services.hang_up(call.pk, actor=DANA, reason="assigned manually")

    assert now_is(call, "canceled").ended_at is not None
    place_call(call.pk)
    assert caller.sim.asked_for(ANN) == 0
    assert history(call) == ["created", "cancel_requested", "canceled"]
    wait_until(lambda: caller.listener.told(call) == ["canceled"])
    said = Event.objects.get(kind="call.cancel_requested")
    assert (said.actor_label, said.data["reason"]) == ("Dana", "assigned manually")
    assert caller.create(ANN).line_slot == call.line_slot


@pytest.mark.parametrize("point", ["telephony.place.claimed", "telephony.place.sent"])
def test_while_the_provider_is_being_asked(caller: Caller, point: str) -> None:
    call = caller.create(ANN)

    with fault_injection.arm_crash_point(point, lambda: services.hang_up(call.pk)):
        place_call(call.pk)

    now_is(call, "canceled")
    assert caller.sim.calls(to=ANN)[0]["status"] == "canceled"


def test_while_it_is_queued_no_callback_comes_and_it_ends_all_the_same(caller: Caller) -> None:
    caller.sim.request(
        "PUT",
        "/control/accounts",
        json={
            "sid": caller.sim.account_sid,
            "auth_token": caller.sim.auth_token,
            "calls_per_second": 0.01,
            "owns_any_number": True,
        },
    )
    caller.call("+16025550199")
    call = caller.call(ANN)
    assert caller.sim.calls(to=ANN)[0]["status"] == "queued"

    services.hang_up(call.pk)

    assert Call.objects.get(pk=call.pk).status == "canceled"
    assert caller.sim.calls_to(ANN)[0].callbacks() == []


def test_while_it_rings(caller: Caller) -> None:
    phone = caller.sim.phone(ANN).will(manual())
    call = caller.call(ANN)
    ringing = phone.rings()
    now_is(call, "ringing")

    services.hang_up(call.pk)

    ringing.ended("canceled")
    now_is(call, "canceled")
    wait_until(lambda: caller.listener.told(call)[-1:] == ["canceled"])


def test_while_they_talk(caller: Caller) -> None:
    phone = caller.sim.phone(ANN).will(manual())
    call = caller.call(ANN)
    talking = phone.rings().answer().hears("there is a job")

    services.hang_up(call.pk)

    talking.ended("completed")
    assert now_is(call, "completed").duration_s


def test_after_it_ended_nothing_happens(caller: Caller) -> None:
    phone = caller.sim.phone(ANN).will(manual())
    call = caller.call(ANN)
    phone.rings().decline()
    now_is(call, "busy")

    services.hang_up(call.pk)

    assert Call.objects.get(pk=call.pk).cancel_requested_at is None
    assert history(call)[-1] == "busy"


def test_a_transaction_that_fails_hangs_nobody_up(caller: Caller) -> None:
    phone = caller.sim.phone(ANN).will(manual())
    call = caller.call(ANN)
    phone.rings()
    with pytest.raises(RuntimeError), transaction.atomic():
        services.hang_up(call.pk)
        raise RuntimeError

    assert caller.sim.open_calls()
    assert Call.objects.get(pk=call.pk).cancel_requested_at is None


@pytest.fixture
def unknown(caller: Caller) -> Call:
    """A call that rings, of which we know nothing, and that is to be hung up."""
    caller.sim.lose_callbacks()
    caller.sim.reset_after_creating()
    call = caller.call(ANN)
    assert call.status == "unknown"
    caller.sim.phone(ANN).rings()
    services.hang_up(call.pk)
    assert Call.objects.get(pk=call.pk).ended_at is None
    return call


def test_first_callback_of_an_unknown_call_hangs_it_up(caller: Caller, app_url: str, unknown: Call) -> None:
    caller.sim.heal()
    url = f"{app_url}/telephony/twilio/calls/{unknown.pk}/status"
    sid = caller.sim.calls(to=ANN)[0]["sid"]
    form = {"CallSid": sid, "AccountSid": caller.sim.account_sid, "CallStatus": "ringing", "SequenceNumber": "1"}
    signature = RequestValidator(caller.sim.auth_token).compute_signature(url, form)

    assert requests.post(url, data=form, headers={"X-Twilio-Signature": signature}, timeout=60).ok

    assert not caller.sim.open_calls()
    now_is(unknown, "canceled")


def test_answered_unknown_call_hears_nothing(caller: Caller, unknown: Call) -> None:
    caller.sim.calls_to(ANN)[0].answer().ended("completed").has_not_heard("there is a job")

    now_is(unknown, "completed")


def test_failed_hang_up_is_repeated(caller: Caller, step: Callable, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hang_ups, "AGAIN", timedelta(minutes=2))  # which a slow machine keeps
    phone = caller.sim.phone(ANN).will(manual())
    call = caller.call(ANN)
    phone.rings()
    caller.sim.answer_500(on="update")

    services.hang_up(call.pk)
    assert caller.sim.open_calls()
    step("calls")
    assert caller.sim.open_calls(), "it was asked a moment ago"
    clock.travel(121)
    step("calls")

    now_is(call, "canceled")


def test_a_process_that_died_before_telling_the_provider(caller: Caller, step: Callable) -> None:
    phone = caller.sim.phone(ANN).will(manual())
    call = caller.call(ANN)
    phone.rings()
    now_is(call, "ringing")  # its report would hold the call's row
    with fault_injection.arm_crash_point("telephony.hang_up.asking"), pytest.raises(fault_injection.Interrupted):
        services.hang_up(call.pk)
    assert caller.sim.open_calls()

    clock.travel(16)
    step("calls")

    now_is(call, "canceled")


def test_429_for_a_call_that_is_no_longer_wanted(caller: Caller) -> None:
    caller.sim.answer_429(times=None)
    call = caller.create(ANN)

    with fault_injection.arm_crash_point("telephony.place.sent", lambda: services.hang_up(call.pk)):
        place_call(call.pk)

    assert now_is(call, "canceled").ended_at
    assert caller.sim.creates_to(ANN) == 0


def test_a_changed_prompt_is_spoken_in_the_call_at_once(caller: Caller, monkeypatch: pytest.MonkeyPatch) -> None:
    caller.sim.phone(ANN).will(manual())
    call = caller.call(ANN)
    phone = caller.sim.phone(ANN).rings()
    phone.answer().hears("Press 1 to accept")
    monkeypatch.setattr(caller.listener, "on_answer", lambda _call: VoicePrompt(say=("It is taken.",)))

    with transaction.atomic():
        services.repeat_prompt(call.pk)
        phone.has_not_heard("It is taken.")

    work()
    phone.hears("It is taken.").ended("completed")
    services.repeat_prompt(call.pk)  # over: nothing to change
    work()


def test_hang_up_that_an_account_refuses_for_a_day_is_given_up(caller: Caller) -> None:
    caller.sim.phone(ANN).will(manual())
    call = caller.call(ANN)
    caller.sim.phone(ANN).rings()
    caller.sim.set_account(type="Full", status="suspended")
    services.hang_up(call.pk)
    for _ in range(3):
        clock.travel(20)
        hang_ups.hang_up_due()
    assert Call.objects.get(pk=call.pk).ended_at is None
    clock.travel(26 * 3600)
    hang_ups.hang_up_due()
    ended = now_is(call, "lost")
    assert ended.hang_up_at is None
