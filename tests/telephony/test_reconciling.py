"""What nobody reported is found out: unknown outcomes, cut-off requests, ends that never came."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest
from django.db import connection, connections

from dispatch.capacity.models import ProviderAccount
from dispatch.core import clock, fault_injection
from dispatch.telephony import services
from dispatch.telephony.models import Call
from dispatch.telephony.services import reconciliation
from tests.harness.calls import place_call
from tests.phones import answer, busy, manual
from tests.support.waiting import PATIENCE, wait_until
from tests.telephony.conftest import Caller, history, now_is

ANN, BOB = "+16025550101", "+16025550102"


@pytest.fixture
def impatient(settings: Any) -> None:
    settings.PROVIDER_TIMEOUT_S = 0.5


def unknown(caller: Caller, *, created: bool) -> Call:
    """A call of which nobody knows whether it was made."""
    caller.sim.lose_callbacks()
    caller.sim.reset_after_creating() if created else caller.sim.reset_before_creating()
    call = caller.call(ANN)
    assert call.status == "unknown"
    return call


def test_found_in_the_providers_list_it_is_ours(caller: Caller, step: Callable) -> None:
    call = unknown(caller, created=True)

    step("calls")

    row = Call.objects.get(pk=call.pk)
    assert row.sid == caller.sim.calls(to=ANN)[0]["sid"]
    assert row.status in ("submitted", "ringing")
    caller.sim.heal()
    caller.sim.phone(ANN).rings().answer().press("1").ended()
    now_is(call, "completed")
    assert caller.sim.asked_for(ANN) == 1


def test_an_account_that_cannot_be_read_stops_no_other(caller: Caller, step: Callable) -> None:
    bad, good = unknown(caller, created=True), unknown_to(caller, BOB)
    account = ProviderAccount.objects.get(pk=bad.account_id)
    account.pk, account.name = None, "Unreadable"
    account.save()
    Call.objects.filter(pk=bad.pk).update(account=account)
    with connection.cursor() as cursor:
        cursor.execute("UPDATE capacity_provideraccount SET auth_token = %s WHERE id = %s", ["bad", account.pk])

    step("calls")

    assert Call.objects.get(pk=good.pk).sid
    assert Call.objects.only("status").get(pk=bad.pk).status == "unknown"


def test_an_account_that_fails_with_many_calls_delays_no_other(
    caller: Caller, step: Callable, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reconciliation, "BATCH", 2)
    caller.sim.lose_callbacks()
    found = []
    for phone in (*(f"+1602555012{n}" for n in range(3)), BOB):
        found.append(unknown_to(caller, phone))
        ProviderAccount.objects.update(outage="", failed_requests=0)  # all were under way at once
    *bad, good = found
    account = ProviderAccount.objects.get(pk=good.account_id)
    account.pk, account.name, account.account_sid = None, "Silent", "AC" + "0" * 32
    account.save()
    Call.objects.filter(pk__in=[call.pk for call in bad]).update(account=account)
    asked: list[int] = []
    real = reconciliation.providers.for_account

    def counted(of: ProviderAccount) -> Any:
        asked.append(of.pk)
        return real(of)

    monkeypatch.setattr(reconciliation.providers, "for_account", counted)

    reconciliation.resolve_unknown_calls()

    assert Call.objects.get(pk=good.pk).sid
    monkeypatch.setattr(reconciliation, "BATCH", 200)
    reconciliation.resolve_unknown_calls()
    assert asked.count(account.pk) == 1, "each of its calls would cost a time-out"
    clock.travel(6)
    reconciliation.resolve_unknown_calls()
    assert asked.count(account.pk) == 2


def unknown_to(caller: Caller, phone: str) -> Call:
    caller.sim.reset_after_creating()
    call = caller.call(phone)
    assert call.status == "unknown"
    return call


def test_unknown_call_that_has_ended_is_ended(caller: Caller, step: Callable) -> None:
    caller.sim.phone(ANN).will(busy())
    call = unknown(caller, created=True)
    caller.sim.phone(ANN).rings().ended("busy")

    step("calls")

    assert now_is(call, "busy").ended_at
    wait_until(lambda: caller.listener.told(call) == ["unknown", "busy"])


def test_not_found_twice_it_was_not_placed(caller: Caller, step: Callable) -> None:
    call = unknown(caller, created=False)

    def status_after(seconds: float) -> str:
        clock.travel(seconds)
        step("calls")
        return Call.objects.get(pk=call.pk).status

    assert status_after(0) == "unknown", "the request may be on its way"
    assert status_after(16) == "unknown", "the first empty listing that counts"
    assert status_after(30) == "unknown", "too soon after the first"
    with pytest.raises(services.PhoneBusy):
        caller.create(ANN)
    assert status_after(31) == "not_placed"
    wait_until(lambda: caller.listener.told(call) == ["unknown", "not_placed"])
    assert caller.create(ANN).line_slot == call.line_slot


def test_a_provider_that_lists_late_is_waited_for(caller: Caller, step: Callable) -> None:
    call = unknown(caller, created=True)
    caller.sim.list_lags(10_000)
    clock.travel(16)
    step("calls")
    assert Call.objects.get(pk=call.pk).empty_listings == 1

    caller.sim.heal()
    clock.travel(61)
    step("calls")

    # A report that arrives meanwhile may hold the call's lock, and names the call itself.
    wait_until(lambda: Call.objects.get(pk=call.pk).sid == caller.sim.calls(to=ANN)[0]["sid"])
    assert caller.sim.asked_for(ANN) == 1


def test_a_listing_that_failed_says_nothing(caller: Caller, step: Callable) -> None:
    call = unknown(caller, created=False)
    caller.sim.answer_500(on="list", times=None)

    for _ in range(4):
        clock.travel(61)
        step("calls")

    assert Call.objects.get(pk=call.pk).status == "unknown"


def test_provider_that_lists_nothing_releases_the_phone_eventually(caller: Caller, step: Callable) -> None:
    call = unknown(caller, created=False)
    caller.sim.answer_500(on="list", times=None)

    clock.travel(24 * 3600)
    step("calls")
    assert Call.objects.get(pk=call.pk).status == "unknown", "the provider may have queued it"
    clock.travel(3601)
    step("calls")

    assert now_is(call, "lost").ended_at
    wait_until(lambda: caller.listener.told(call) == ["unknown", "lost"])
    assert caller.create(ANN).line_slot == call.line_slot


def test_a_call_of_which_only_a_strange_status_was_reported_is_asked_about(caller: Caller, step: Callable) -> None:
    phone = caller.sim.phone(ANN).will(manual())
    call = caller.call(ANN)
    phone.rings().decline()
    now_is(call, "busy")
    Call.objects.filter(pk=call.pk).update(status="unknown", ended_at=None)

    clock.travel(81)
    step("calls")

    assert now_is(call, "busy").ended_at


def test_an_earlier_call_to_the_same_phone_is_not_taken_for_it(caller: Caller, step: Callable) -> None:
    caller.sim.phone(ANN).will(busy(), manual())
    earlier = caller.call(ANN)
    now_is(earlier, "busy")
    call = unknown(caller, created=False)

    for seconds in (16, 61):
        clock.travel(seconds)
        step("calls")

    assert Call.objects.get(pk=call.pk).status == "not_placed"
    assert Call.objects.get(pk=earlier.pk).status == "busy"


def test_call_of_another_organization_on_the_account_is_not_adopted(caller: Caller, step: Callable) -> None:
    caller.sim.lose_callbacks()
    neighbour = Caller(caller.sim, caller.listener)
    theirs = neighbour.call(ANN, subject_id=1000)
    type(neighbour.number).objects.filter(pk=neighbour.number.pk).update(is_paused=True)  # they gave it up
    type(caller.number).objects.filter(pk=caller.number.pk).update(phone=neighbour.number.phone)
    call = unknown(caller, created=False)
    assert (theirs.from_phone, theirs.account.account_sid) == (call.from_phone, call.account.account_sid)

    for seconds in (0, 16, 61):
        clock.travel(seconds)
        step("calls_unknown")

    assert Call.objects.get(pk=call.pk).sid is None
    assert Call.objects.get(pk=call.pk).status == "not_placed"
    assert Call.objects.get(pk=theirs.pk).sid == theirs.sid


def test_a_provider_that_is_slow_to_list_its_calls_delays_no_hang_up(
    caller: Caller, step: Callable, monkeypatch: pytest.MonkeyPatch
) -> None:
    phone = caller.sim.phone(BOB).will(manual())
    ringing = caller.call(BOB)
    phone.rings()
    caller.sim.answer_500(on="update")
    services.hang_up(ringing.pk)
    unknown(caller, created=False)
    clock.travel(16)
    began, answer_now, listed = threading.Event(), threading.Event(), reconciliation._listed

    def slow(call: Call, *more: Any) -> Any:
        began.set()
        answer_now.wait(PATIENCE)
        return listed(call, *more)

    monkeypatch.setattr(reconciliation, "_listed", slow)

    def ask() -> None:
        step("calls_unknown")
        connections.close_all()

    asking = threading.Thread(target=ask)
    asking.start()
    assert began.wait(PATIENCE)
    step("calls_hang_up")
    wait_until(lambda: not caller.sim.open_calls())
    answer_now.set()
    asking.join(PATIENCE)
    assert not asking.is_alive()


@pytest.mark.usefixtures("impatient")
def test_first_webhook_resolves_an_unknown_call(caller: Caller) -> None:
    phone = caller.sim.phone(ANN).will(answer(press="1"))
    caller.sim.time_out_after_creating(hold=3)
    caller.sim.fault("delay", event="ringing", seconds=30, times=1)

    call = caller.call(ANN)
    phone.rings().hears("the job is yours").ended()

    row = now_is(call, "completed")
    assert row.sid == phone._sim.calls(to=ANN)[0]["sid"]
    assert history(call)[-1] == "completed"
    assert caller.sim.asked_for(ANN) == 1


def test_an_unknown_to_be_hung_up_is_hung_up_when_it_is_found(caller: Caller, step: Callable) -> None:
    caller.sim.phone(ANN).will(manual())
    call = unknown(caller, created=True)
    services.hang_up(call.pk)
    caller.sim.heal()

    step("calls")

    now_is(call, "canceled")
    assert not caller.sim.open_calls()


def test_a_call_that_appears_after_it_was_given_up_is_hung_up(caller: Caller, step: Callable) -> None:
    """The provider lists late and reports late: that call is no longer awaited."""
    phone = caller.sim.phone(ANN).will(manual())
    call = unknown(caller, created=True)
    caller.sim.list_lags(10_000)
    for seconds in (16, 61):
        clock.travel(seconds)
        step("calls")
    assert Call.objects.get(pk=call.pk).status == "not_placed"
    caller.sim.heal()

    phone.rings().answer().ended("completed").has_not_heard("there is a job")

    assert Call.objects.get(pk=call.pk).status == "not_placed"
    assert caller.listener.keys == []


def test_a_request_cut_off_by_a_dying_process_becomes_unknown(caller: Caller, step: Callable) -> None:
    call = caller.create(ANN)
    with fault_injection.arm_crash_point("telephony.place.claimed"), pytest.raises(fault_injection.Interrupted):
        place_call(call.pk)
    step("calls")
    assert Call.objects.get(pk=call.pk).status == "requesting"

    for seconds in (16, 1, 61):
        clock.travel(seconds)
        step("calls")
        step("placer")

    assert now_is(call, "not_placed")
    wait_until(lambda: caller.listener.told(call) == ["unknown", "not_placed"])
    assert caller.sim.asked_for(ANN) == 0


def test_a_paused_process_that_sent_nothing_frees_the_line_when_it_wakes(caller: Caller, step: Callable) -> None:
    call = caller.create(ANN)

    def pause() -> None:
        clock.travel(16)
        step("calls")
        assert Call.objects.get(pk=call.pk).status == "unknown"

    with fault_injection.arm_crash_point("telephony.place.claimed", pause):
        place_call(call.pk)

    assert now_is(call, "not_placed").ended_at
    assert caller.listener.told(call) == ["unknown", "not_placed"]
    assert caller.sim.asked_for(ANN) == 0
    assert caller.create(ANN).line_slot == call.line_slot


def test_an_end_that_was_never_reported_is_asked_for(caller: Caller, step: Callable) -> None:
    caller.sim.phone(ANN).will(busy())
    caller.sim.lose_callbacks(event="completed")
    call = caller.call(ANN)
    caller.sim.phone(ANN).rings().ended("busy")
    now_is(call, "ringing")

    clock.travel(30)
    step("calls")
    assert Call.objects.get(pk=call.pk).status == "ringing"
    clock.travel(55)
    step("calls")

    assert now_is(call, "busy").ended_at
    wait_until(lambda: caller.listener.told(call)[-1:] == ["busy"])
    assert caller.create(ANN).line_slot == call.line_slot


def test_all_callbacks_of_an_answered_call_are_lost(caller: Caller, step: Callable) -> None:
    caller.sim.lose_callbacks()
    phone = caller.sim.phone(ANN).will(answer(press="1"))
    call = caller.call(ANN, time_limit_s=600)
    phone.rings().hears("the job is yours").ended()
    assert Call.objects.get(pk=call.pk).status == "answered"

    clock.travel(661)
    step("calls")

    assert now_is(call, "completed").duration_s


def test_a_call_that_the_provider_has_forgotten_is_lost(caller: Caller, step: Callable) -> None:
    call = caller.call(ANN)
    caller.sim.phone(ANN).rings()
    now_is(call, "ringing")
    caller.sim.reset()

    clock.travel(81)
    step("calls")

    assert now_is(call, "lost").error_message
    wait_until(lambda: caller.listener.told(call)[-1:] == ["lost"])


def test_a_call_that_still_rings_is_asked_about_only_now_and_then(caller: Caller, step: Callable) -> None:
    caller.sim.phone(ANN).will(manual())
    call = caller.call(ANN, ring_timeout_s=200)
    caller.sim.phone(ANN).rings()
    now_is(call, "ringing")
    clock.travel(261)
    caller.sim.answer_500(on="fetch", times=None)

    step("calls")
    asked_at = Call.objects.get(pk=call.pk).checked_at
    clock.travel(30)
    step("calls")

    row = Call.objects.get(pk=call.pk)
    assert (row.status, row.checked_at) == ("ringing", asked_at)
    clock.travel(25 * 3600)
    step("calls")
    assert now_is(call, "lost")


def test_found_ends_are_the_same_as_reported_ones(caller: Caller, step: Callable) -> None:
    """The report comes after the reconciler has asked: one end, one event."""
    caller.sim.phone(ANN).will(busy())
    caller.sim.delay_callbacks(seconds=40, event="completed", times=1)
    call = caller.call(ANN)
    caller.sim.phone(ANN).rings().ended("busy")
    clock.travel(100)
    step("calls")
    assert Call.objects.get(pk=call.pk).status == "busy"

    wait_until(lambda: caller.sim.calls_to(ANN)[0].callbacks("busy"))

    assert history(call).count("busy") == 1
