"""An offer's deadline starts in the transaction that records its call, and what prevents that loses no call."""

from __future__ import annotations

from typing import Any

import pytest

from dispatch.core import fault_injection
from dispatch.core.db import lock_waits
from dispatch.core.fault_injection import Interrupted
from dispatch.jobs import services
from dispatch.jobs.models import Job, Offer
from dispatch.jobs.services import offers
from dispatch.telephony.models import Call
from dispatch.telephony.providers.base import Submitted
from dispatch.telephony.services import call_requests
from dispatch.telephony.services.call_requests import AnsweredCall
from tests.harness.jobs import MARIA, Floor
from tests.support.row_locks import ends_while_held


def requested(floor: Floor) -> Call:
    """A call of an offer that is claimed for its request, which nobody has made yet."""
    floor.crew("Ann", "Bob")
    services.start_job(floor.submit().pk, place=False)
    call, _ = call_requests.claim_for_placing(Call.objects.latest("pk").pk)
    return call


def answered(call: Call, sid: str = "CA1") -> AnsweredCall:
    return AnsweredCall(call.pk, call.account_id, call.purpose, call.subject_id, Submitted(sid, "submitted"))


def state(call: Call) -> tuple[str | None, str, bool, str]:
    """Return the call's SID and status, whether the offer's deadline has started, and what its job waits for."""
    offer = Offer.objects.select_related("job").get(pk=call.subject_id)
    call.refresh_from_db()
    return call.sid, call.status, offer.ringing_since is not None, offer.job.waiting_for


DONE = ("CA1", "submitted", True, "answer")


def test_a_process_that_dies_after_the_record_has_started_the_deadline(floor: Floor) -> None:
    call = requested(floor)
    with fault_injection.arm_crash_point("telephony.place.written"), pytest.raises(Interrupted):
        call_requests.record_outcomes([answered(call)])
    assert state(call) == DONE
    assert len(floor.delayed()) == 1


def test_a_held_job_delays_only_its_deadline(floor: Floor) -> None:
    held, free = requested(floor), requested(floor)

    def record() -> None:
        with lock_waits.limit_lock_waits(lock_waits.LOOP_S):
            call_requests.record_outcomes([answered(held), answered(free, "CA2")])

    ends_while_held([Job.objects.get(offers=held.subject_id)], record)
    assert state(held) == ("CA1", "submitted", False, "line")
    assert state(free) == ("CA2", *DONE[1:])
    services.call_changed(held)  # as the auditor does
    assert state(held) == DONE


def test_a_deadline_that_cannot_start_does_not_lose_the_call(
    floor: Floor, monkeypatch: pytest.MonkeyPatch
) -> None:
    call, turns = requested(floor), iter([True, False])
    start = offers.start_offer_clock

    def fails_once(*given: Any) -> None:
        if next(turns):
            raise RuntimeError("on purpose")
        start(*given)

    monkeypatch.setattr(offers, "start_offer_clock", fails_once)
    call_requests.record_outcomes([answered(call)])
    assert state(call) == DONE
    assert len(floor.delayed()) == 1
    assert floor.kinds(Job.objects.get()).count("offer.ringing") == 1


def test_the_deadline_of_an_offer_that_is_over_does_not_start(floor: Floor) -> None:
    call = requested(floor)
    job = Job.objects.get()
    services.pause(job.pk, actor=MARIA)
    call_requests.record_outcomes([answered(call)])
    sid, _, has_started, _ = state(call)
    assert (sid, has_started) == ("CA1", False)
