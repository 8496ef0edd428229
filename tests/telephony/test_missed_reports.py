"""The provider is asked about calls whose reports could not be recorded, because PostgreSQL was unavailable."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from django.db import OperationalError

from dispatch.core import fault_injection
from dispatch.telephony import webhooks
from dispatch.telephony.models import Call
from dispatch.telephony.services import missed_reports, reconciliation
from tests.core.outages import redis_away
from tests.harness.calls import place_call
from tests.phones import manual
from tests.support.waiting import wait_until
from tests.telephony.conftest import Caller, now_is

ANN = "+16025550101"


def test_an_end_reported_while_the_database_was_away_is_asked_for_at_once(
    caller: Caller, step: Callable, monkeypatch: pytest.MonkeyPatch
) -> None:
    caller.sim.phone(ANN).will(manual())
    call = caller.call(ANN)
    phone = caller.sim.phone(ANN).rings().answer()
    now_is(call, "answered")
    with monkeypatch.context() as patch:
        patch.setattr(webhooks, "receive_webhook", database_is_away)
        phone.hang_up()
        wait_until(lambda: missed_reports.remembered_calls() == [call.pk])
        wait_until(lambda: not caller.sim.open_calls())
        assert Call.objects.get(pk=call.pk).status == "answered"  # the provider's repetitions fail, too
        with monkeypatch.context() as silence:
            silence.setattr(reconciliation, "_ask_for_end", lambda *_: 0)  # the provider did not answer
            step("calls")
        assert missed_reports.remembered_calls() == [call.pk]
        step("calls")
        assert now_is(call, "completed").ended_at

    wait_until(lambda: step("calls") or missed_reports.remembered_calls() == [])
    assert caller.create(ANN).line_slot == call.line_slot


def test_an_end_that_overtook_the_response_to_a_paused_process_is_asked_for(
    caller: Caller, step: Callable, monkeypatch: pytest.MonkeyPatch
) -> None:
    caller.sim.phone(ANN).will(manual())
    call = caller.create(ANN)
    monkeypatch.setattr(webhooks, "receive_webhook", database_is_away)  # the paused process holds the row

    def pause() -> None:
        caller.sim.phone(ANN).rings().answer().hang_up()
        wait_until(lambda: missed_reports.remembered_calls() == [call.pk])
        wait_until(lambda: not caller.sim.open_calls())
        step("calls")  # of the next leader

    with fault_injection.arm_crash_point("telephony.place.sent", pause):
        place_call(call.pk)
    assert Call.objects.get(pk=call.pk).ended_at is None
    step("calls")

    assert now_is(call, "completed").ended_at


def database_is_away(*_: object) -> None:
    raise OperationalError("the connection is lost")


def test_calls_that_are_remembered_without_reason_are_forgotten(caller: Caller, step: Callable) -> None:
    caller.sim.phone(ANN).will(manual())
    call = caller.call(ANN)
    caller.sim.phone(ANN).rings()
    now_is(call, "ringing")
    for call_id in (call.pk, 404, 2**62):
        missed_reports.remember_call(call_id)
    step("calls")
    assert missed_reports.remembered_calls() == []
    assert Call.objects.get(pk=call.pk).status == "ringing"


def test_without_redis_no_report_is_remembered(caller: Caller) -> None:
    with redis_away():
        missed_reports.remember_call(1)
        assert missed_reports.remembered_calls() == []
        missed_reports.forget_calls([1])
