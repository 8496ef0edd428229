"""A call from its row to its end, over real HTTP."""

from __future__ import annotations

import pytest

from dispatch.core.models import Event
from dispatch.telephony import services
from dispatch.telephony.models import Call, CallEvent
from tests.phones import Behaviour, answer, busy, decline, fails, gives_up, ignore
from tests.support.waiting import wait_until
from tests.telephony.conftest import Caller, history, now_is

ANN = "+16025550101"


def test_answered_call_records_its_history(caller: Caller) -> None:
    phone = caller.sim.phone(ANN)
    call = caller.call(ANN)

    ringing = phone.rings().told("ringing").answer().told("in-progress")
    ringing.press("1").hears("the job is yours").ended("completed")

    row = now_is(call, "completed")
    assert row.sid == caller.sim.calls(to=ANN)[0]["sid"]
    assert row.keys_pressed == "1"
    assert caller.listener.keys == [(call.pk, "1")]
    assert row.answered_at is not None
    assert row.ended_at is not None
    assert row.duration_s
    # The first report may overtake the response to the request.
    steps = [step for step in history(call) if step != "submitted"]
    assert steps == ["created", "requesting", "ringing", "answered", "key_pressed", "completed"]
    told = ["ringing", "answered", "completed"]
    wait_until(lambda: [step for step in caller.listener.told(call) if step != "submitted"] == told)
    # That it is queued is in the response, and that it was answered in the request for the prompt.
    kinds = CallEvent.objects.filter(call=call).order_by("pk").values_list("kind", flat=True)
    assert list(kinds) == ["status", "voice", "gather", "status"]


@pytest.mark.parametrize(
    ("behaviour", "end"),
    [
        (busy(), "busy"),
        (decline(), "busy"),
        (fails(), "failed"),
        (ignore(), "no_answer"),
        (gives_up(), "no_answer"),
    ],
)
def test_a_call_that_nobody_takes_says_why(caller: Caller, behaviour: Behaviour, end: str) -> None:
    caller.sim.phone(ANN).will(behaviour)
    call = caller.call(ANN)

    row = now_is(call, end)

    assert row.answered_at is None
    assert row.ended_at is not None
    assert history(call)[-1] == end
    wait_until(lambda: caller.listener.told(call)[-1:] == [end])
    assert caller.listener.keys == []


def test_a_call_that_fails_keeps_the_providers_reason(caller: Caller) -> None:
    caller.sim.phone(ANN).will(fails(13224))

    assert now_is(caller.call(ANN), "failed").error_code == "13224"


@pytest.mark.parametrize(("sip", "blamed"), [(404, True), (484, True), (604, True), (503, False), (608, False)])
def test_a_failed_call_is_judged_by_its_sip_response(caller: Caller, sip: int, blamed: bool) -> None:
    caller.sim.phone(ANN).will(fails(sip=sip))
    first = now_is(caller.call(ANN), "failed")
    assert (first.error_code, services.is_bad_number(first)) == (f"SIP {sip}", False)
    second = now_is(caller.call(ANN), "failed")
    assert services.is_bad_number(second) is blamed


def test_star_repeats_and_a_wrong_key_does_not_hang_up(caller: Caller) -> None:
    phone = caller.sim.phone(ANN)
    call = caller.call(ANN)
    ringing = phone.rings().answer()

    for key in "*5#":
        ringing.press(key)
    ringing.press("2").hears("goodbye").ended("completed")

    assert ringing.said.lower().count("there is a job") == 4
    assert now_is(call, "completed").keys_pressed == "*5#2"
    assert caller.listener.keys == [(call.pk, "2")]


def test_menu_without_a_key_repeats_three_times_then_hangs_up(caller: Caller) -> None:
    phone = caller.sim.phone(ANN).will(answer())
    call = caller.call(ANN, time_limit_s=600)

    ringing = phone.rings().ended("completed")

    assert ringing.said.lower().count("press 1 to accept") == 3
    assert now_is(call, "completed").keys_pressed == ""


def test_hanging_up_without_a_key(caller: Caller) -> None:
    caller.sim.phone(ANN).will(answer(hang_up_during="there is a job"))

    row = now_is(caller.call(ANN), "completed")

    assert row.answered_at is not None
    assert row.keys_pressed == ""


def test_the_time_limit_ends_a_call(caller: Caller) -> None:
    phone = caller.sim.phone(ANN).will(answer())
    call = caller.call(ANN, time_limit_s=3)

    assert phone.rings().ended("completed").now["ended_by"] == "time limit"
    now_is(call, "completed")


def test_calls_in_flight_never_exceed_the_lines(caller: Caller) -> None:
    caller.sim.others_will(answer(press="1"))
    phones = [f"+160255502{i:02d}" for i in range(12)]
    waiting = list(phones)
    placed = []

    def call_whom_you_can() -> bool:
        while waiting:
            try:
                placed.append(caller.call(waiting[0]))
            except services.NoLine:
                break
            waiting.pop(0)
        return not waiting and not Call.objects.filter(ended_at=None).exists()

    wait_until(call_whom_you_can)

    assert [caller.sim.creates_to(phone) for phone in phones] == [1] * 12
    assert caller.sim.max_simultaneous(str(caller.number.phone)) <= caller.number.max_channels
    assert set(Call.objects.values_list("status", flat=True)) == {"completed"}


def test_the_events_name_what_the_call_is_for(caller: Caller) -> None:
    caller.sim.phone(ANN).will(busy())
    call = caller.call(ANN)
    now_is(call, "busy")

    events = list(Event.objects.filter(subject_type="call", subject_id=call.pk))

    assert len(events) == 5
    for event in events:
        assert event.data["job_id"] == 7
        assert (event.data["purpose"], event.data["subject_id"], event.data["attempt"]) == ("test", 1, 1)
        assert event.organization_id == caller.organization.pk


def test_a_key_pressed_twice_is_heard_twice_only_when_it_was_pressed_twice(caller: Caller) -> None:
    phone = caller.sim.phone(ANN)
    call = caller.call(ANN)
    phone.rings().answer().press("*").press("*").press("1").ended("completed")

    assert now_is(call, "completed").keys_pressed == "**1"
    assert history(call).count("key_pressed") == 3
