"""The provider is asked once for what it may have done, and again only for what it certainly did not do."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any

import pytest
from cryptography.fernet import Fernet
from django.db import connections

from dispatch.capacity.models import DispatchPool, OutboundNumber, ProviderAccount
from dispatch.core import clock, fault_injection
from dispatch.core.db.lock_waits import RecentlyBlocked
from dispatch.core.runtime.loops import NothingSucceeded
from dispatch.telephony import rules, services, sql
from dispatch.telephony.models import Call
from dispatch.telephony.services import call_requests
from tests.harness.calls import place_call
from tests.phones import answer, refused
from tests.support import factories
from tests.support.waiting import wait_until
from tests.telephony.conftest import Caller, history, is_placed

ANN, BOB = "+16025550101", "+16025550102"


def test_however_many_place_it_the_provider_is_asked_once(caller: Caller) -> None:
    call = caller.create(ANN)

    def one(_: int) -> None:
        try:
            place_call(call.pk)
        finally:
            connections.close_all()

    with ThreadPoolExecutor(10) as crowd:
        list(crowd.map(one, range(20)))

    assert caller.sim.asked_for(ANN) == 1
    assert history(call).count("requesting") == 1


def test_a_placer_that_can_claim_no_call_has_failed(caller: Caller, step: Callable, settings: Any) -> None:
    call = caller.create(ANN)
    clock.travel(30)
    keys = settings.FIELD_ENCRYPTION_KEYS
    settings.FIELD_ENCRYPTION_KEYS = [Fernet.generate_key().decode()]  # an operator's slip on this machine
    with pytest.raises(NothingSucceeded):
        step("placer")
    settings.FIELD_ENCRYPTION_KEYS = keys
    RecentlyBlocked.reset_all()  # the time for which a failed call is left alone is over
    step("placer")
    is_placed(call)


def test_429_is_retried_when_the_provider_says(caller: Caller, step: Callable) -> None:
    caller.sim.answer_429(retry_after=100)
    before = clock.now()
    call = caller.call(ANN)
    assert call.status == "created"
    assert before < call.not_before - timedelta(seconds=100) <= clock.now()

    place_call(call.pk)
    assert caller.sim.asked_for(ANN) == 1
    clock.travel(100.1)
    step("placer")

    is_placed(call)
    assert caller.sim.asked_for(ANN) == 2
    assert caller.sim.creates_to(ANN) == 1
    assert history(call)[:4] == ["created", "requesting", "held_back", "requesting"]


def test_a_429_without_a_time_is_sent_again_at_growing_intervals(caller: Caller, step: Callable) -> None:
    caller.sim.answer_429(times=5)
    call = caller.call(ANN)
    waits = []
    for _ in range(5):
        row = Call.objects.get(pk=call.pk)
        waits.append((row.not_before - clock.now()).total_seconds())
        clock.travel(waits[-1] + 0.01)
        step("placer")
    for wait, first in zip(waits, (1, 2, 4, 8, 16), strict=True):
        assert first * 0.9 <= wait <= first * 1.5
    is_placed(call)
    caller.sim.answer_429(to=BOB)
    again = caller.call(BOB)
    assert (again.not_before - clock.now()).total_seconds() <= 1.5, "it begins again after a success"


def test_too_many_calls_at_once_means_later(caller: Caller) -> None:
    caller.sim.fault("concurrency")

    assert caller.call(ANN).status == "created"
    assert caller.sim.creates_to(ANN) == 0


def test_a_provider_that_cannot_be_reached_is_tried_again(caller: Caller, settings: Any, step: Callable) -> None:
    there, settings.SIMULATOR_URL = settings.SIMULATOR_URL, "http://127.0.0.1:9"
    call = caller.call(ANN)
    assert call.status == "created"

    settings.SIMULATOR_URL = there
    clock.travel(3)
    step("placer")

    is_placed(call)


@pytest.mark.parametrize(
    ("code", "permanent", "about"),
    [
        (21211, True, "number"),
        (21214, True, "number"),
        (21217, True, "number"),
        (21215, False, "permission"),
        (21216, False, "permission"),
        (21210, False, "configuration"),
    ],
)
def test_a_refusal_ends_the_call_and_frees_its_line(
    caller: Caller, code: int, permanent: bool, about: str
) -> None:
    caller.sim.phone(ANN).will(refused(code))

    call = caller.call(ANN)

    assert (call.status, call.error_code) == ("rejected", str(code))
    data = caller_event(call, "call.rejected")
    assert (data["permanent"], data["about"], data["code"]) == (permanent, about, str(code))
    wait_until(lambda: caller.listener.told(call) == ["rejected"])
    assert caller.create("+16025550102").line_slot == call.line_slot


@pytest.mark.parametrize(("code", "blamed"), [(21211, True), (21215, False), (21210, False)])
def test_whether_the_number_is_to_blame_is_the_providers_to_say(caller: Caller, code: int, blamed: bool) -> None:
    caller.sim.phone(ANN).will(refused(code))

    call = caller.call(ANN)

    assert services.is_bad_number(call) is blamed
    ProviderAccount.objects.update(provider="carrier-pigeon")
    assert not services.is_bad_number(Call.objects.get(pk=call.pk)), "another's codes mean something else"


def caller_event(call: Call, kind: str) -> dict[str, Any]:
    from dispatch.core.models import Event

    return Event.objects.get(kind=kind, subject_id=call.pk).data


def test_a_wrong_token_is_a_matter_of_configuration(caller: Caller) -> None:
    ProviderAccount.objects.filter(pk=caller.account.pk).update(auth_token="wrong")

    call = caller.call(ANN)

    assert (call.status, call.error_code) == ("rejected", "20003")
    assert caller_event(call, "call.rejected")["about"] == "configuration"


def test_provider_without_an_adapter(caller: Caller) -> None:
    ProviderAccount.objects.filter(pk=caller.account.pk).update(provider="carrier-pigeon")

    call = caller.call(ANN)

    assert call.status == "rejected"
    assert "carrier-pigeon" in call.error_message


@pytest.mark.parametrize(
    ("trouble", "created"),
    [
        (lambda sim: sim.answer_500(), 0),
        (lambda sim: sim.answer_500(creates=True), 1),
        (lambda sim: sim.answer_503(), 0),
        (lambda sim: sim.answer_503(creates=True), 1),
        (lambda sim: sim.time_out_before_creating(hold=2), 0),
        (lambda sim: sim.time_out_after_creating(hold=2), 1),
        (lambda sim: sim.reset_before_creating(), 0),
        (lambda sim: sim.reset_after_creating(), 1),
    ],
    ids=["500", "500-created", "503", "503-created", "slow", "slow-created", "reset", "reset-created"],
)
def test_possibly_processed_request_is_never_repeated(
    caller: Caller, settings: Any, step: Callable, trouble: Callable, created: int
) -> None:
    settings.PROVIDER_TIMEOUT_S = 0.5
    caller.sim.lose_callbacks()
    trouble(caller.sim)

    call = caller.call(ANN)
    assert call.status == "unknown"
    for _ in range(3):
        place_call(call.pk)
        step("placer")

    assert caller.sim.asked_for(ANN) == 1
    assert caller.sim.creates_to(ANN) == created
    assert Call.objects.get(pk=call.pk).ended_at is None


def test_a_process_that_slept_after_claiming_does_not_send(caller: Caller, step: Callable) -> None:
    call = caller.create(ANN)

    with fault_injection.arm_crash_point("telephony.place.claimed", lambda: clock.travel(6)):
        place_call(call.pk)

    assert caller.sim.asked_for(ANN) == 0
    assert Call.objects.get(pk=call.pk).status == "created"
    step("placer")
    is_placed(call)


@pytest.mark.parametrize(
    ("model", "change"),
    [
        (DispatchPool, {"is_paused": True}),
        (OutboundNumber, {"is_paused": True}),
        (ProviderAccount, {"is_active": False}),
    ],
)
def test_call_waits_if_paused_after_its_row_was_written(
    caller: Caller, step: Callable, model: type, change: dict
) -> None:
    call = caller.create(ANN)
    model.objects.update(**change)

    place_call(call.pk)
    clock.travel(1.1)
    step("placer")
    assert caller.sim.asked_for(ANN) == 0

    model.objects.update(**{name: not value for name, value in change.items()})
    clock.travel(1.1)
    step("placer")
    is_placed(call)


def test_calls_wait_for_the_accounts_pace(caller: Caller, step: Callable) -> None:
    ProviderAccount.objects.filter(pk=caller.account.pk).update(calls_per_second=0.01)
    calls = [caller.call(f"+160255501{i:02d}") for i in range(3)]
    assert [call.status == "created" for call in calls] == [False, True, True]
    assert caller.sim.calls()[0]["to"] == str(calls[0].to_phone)

    for asked in (2, 3):
        clock.travel(100.5)
        step("placer")
        assert len(caller.sim.calls()) == asked


def test_the_placer_takes_up_what_its_creator_left(
    caller: Caller, step: Callable, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rules, "CREATORS_TIME", timedelta(minutes=2))  # a moment that a slow machine keeps
    call = caller.create(ANN)
    step("placer")
    assert caller.sim.asked_for(ANN) == 0, "a fresh call is its creator's for a moment"

    clock.travel(121)
    step("placer")

    is_placed(call)


def test_alerts_go_before_offers_before_leads_that_wait_longer(caller: Caller) -> None:
    factories.number(caller.organization, pool=caller.pool, account=caller.account, max_channels=10)
    purposes = ["lead", "offer", "lead", "alert", "offer"]
    calls = [caller.create(f"+160255502{i:02d}", purpose=purpose) for i, purpose in enumerate(purposes)]
    clock.travel(1.1)

    due = [row.id for row in sql.calls_to_place(clock.now(), 10)]

    assert due == [calls[i].pk for i in (3, 1, 4, 0, 2)]


def test_urgent_jobs_go_first_and_organizations_take_turns(caller: Caller) -> None:
    ours = [caller.create(f"+160255506{i:02d}", purpose="offer", priority=p) for i, p in enumerate((3, 3, 1, 2))]
    other = Caller(caller.sim, caller.listener)
    other._subject = 100
    theirs = [other.create(f"+160255507{i:02d}", purpose="offer", priority=p) for i, p in enumerate((3, 2))]
    clock.travel(1.1)

    due = [row.id for row in sql.calls_to_place(clock.now(), 10)]

    expected = [ours[2], theirs[1], ours[3], theirs[0], ours[0], ours[1]]
    assert due == [call.pk for call in expected]
    without = sql.calls_to_place(clock.now(), 10, but=[call.pk for call in ours])
    assert [row.id for row in without] == [theirs[1].pk, theirs[0].pk]


def test_a_new_call_does_not_overtake_a_more_urgent_one_that_waits(caller: Caller, step: Callable) -> None:
    ProviderAccount.objects.filter(pk=caller.account.pk).update(calls_per_second=0.01)
    caller.call("+16025550801", purpose="offer")
    urgent = caller.call("+16025550802", purpose="offer", priority=1)
    assert urgent.status == "created"
    clock.travel(101)
    assert caller.call("+16025550803", purpose="offer", priority=3).status == "created"
    clock.travel(1.1)
    step("placer")
    is_placed(urgent)


def test_the_rates_only_turn_is_the_alerts_though_others_wait_longer(caller: Caller, step: Callable) -> None:
    factories.number(caller.organization, pool=caller.pool, account=caller.account, max_channels=10)
    ProviderAccount.objects.filter(pk=caller.account.pk).update(calls_per_second=0.01)
    purposes = ["lead"] * 5 + ["offer", "alert"]
    calls = [caller.create(f"+160255504{i:02d}", purpose=purpose) for i, purpose in enumerate(purposes)]
    clock.travel(1.1)

    step("placer")
    assert [call["to"] for call in caller.sim.calls()] == [str(calls[6].to_phone)]

    clock.travel(101)
    step("placer")
    assert [call["to"] for call in caller.sim.calls()] == [str(calls[i].to_phone) for i in (6, 5)]


def test_failing_call_delays_no_other_and_no_later_pass(
    caller: Caller, step: Callable, monkeypatch: pytest.MonkeyPatch
) -> None:
    factories.number(caller.organization, pool=caller.pool, account=caller.account, max_channels=20)
    DispatchPool.objects.update(concurrency=30)
    calls = [caller.create(f"+160255505{i:02d}") for i in range(20)]
    real = call_requests.rate_limits.take_request_token

    def broken(*given: Any) -> float:
        if next(turns) % 2:
            raise RuntimeError("on purpose")
        return real(*given)

    turns = itertools.count()
    clock.travel(1.1)
    with monkeypatch.context() as patch:
        patch.setattr(call_requests.rate_limits, "take_request_token", broken)
        step("placer")
    assert Call.objects.filter(sid=None).count() >= 10
    wait_until(lambda: (step("placer"), not Call.objects.filter(sid=None).exists())[1])
    assert len(caller.sim.calls()) == len(calls)


def test_the_placer_sleeps_until_the_next_call_is_due(caller: Caller, step: Callable, settings: Any) -> None:
    assert step("placer") is None
    call = caller.create(ANN)
    settings.CALL_PLACER_INTERVAL_S = 900.0
    Call.objects.filter(pk=call.pk).update(not_before=clock.now() + timedelta(seconds=250))
    assert 0 < step("placer") <= 250


def test_a_callback_before_the_answer_to_the_create_request(caller: Caller) -> None:
    caller.sim.callbacks_before_create_returns("ringing")

    call = caller.call(ANN)

    assert call.status == "ringing"
    assert history(call) == ["created", "requesting", "ringing"]
    row = Call.objects.get(pk=call.pk)
    assert row.sid == caller.sim.calls(to=ANN)[0]["sid"]
    assert row.submitted_at is not None


def test_a_call_that_ended_before_the_create_request_was_answered(caller: Caller) -> None:
    caller.sim.phone(ANN).will(answer(press="1"))
    caller.sim.callbacks_before_create_returns("completed")

    call = caller.call(ANN)

    assert call.status == "completed"
    assert caller.listener.keys == [(call.pk, "1")]


def test_each_thread_has_a_separate_client(caller: Caller, step: Callable) -> None:
    caller.number.max_channels = 20
    caller.number.save()
    DispatchPool.objects.update(concurrency=20)
    calls = [caller.create(f"+160255503{i:02d}") for i in range(16)]

    def one(call: Call) -> str:
        try:
            return place_call(call.pk).status
        finally:
            connections.close_all()

    with ThreadPoolExecutor(8) as crowd:
        list(crowd.map(one, calls))

    # two that asked in the same millisecond are paced: the placer takes up the later one
    wait_until(lambda: (step("placer"), not Call.objects.filter(sid=None).exists())[1])
    sids = set(Call.objects.values_list("sid", flat=True))
    assert sids == {call["sid"] for call in caller.sim.calls()}
