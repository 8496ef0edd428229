"""A lead from its row to its call and the call's end, step by step, with a provider that makes no calls."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from dispatch.core import clock, fault_injection
from dispatch.core.events import SYSTEM
from dispatch.core.models import Event
from dispatch.leads import redis_queue
from dispatch.leads.models import DoNotCall, Lead
from dispatch.leads.rules.states import Reason
from dispatch.leads.services import actions, claims, completion
from dispatch.leads.services.claim_batches import ClaimResult
from dispatch.leads.services.intake import NewLead
from dispatch.telephony.models import Call, CallEvent
from dispatch.telephony.providers.base import (
    Outcome,
    RateLimited,
    Rejected,
    StatusReport,
    Submitted,
    Unknown,
)
from dispatch.telephony.services.bulk import RequestResult
from tests.benchmarks import noop_provider
from tests.harness.leads import Floor, subscribe_to
from tests.support import factories
from tests.support.waiting import wait_until

pytestmark = pytest.mark.django_db(transaction=True)

ANN, BOB, CAT = "+16025550101", "+16025550102", "+16025550103"


def answered(floor: Floor, outcome: Outcome) -> None:
    """Promote and claim all leads, and let the provider respond with this outcome."""
    floor.promote()
    claimed = floor.claim()
    assert claimed.calls
    floor.settle([RequestResult(to_ask.call_id, to_ask.call, outcome) for to_ask in claimed.calls])


# --- The normal path


def test_a_due_lead_is_called_once_and_finished(floor: Floor) -> None:
    (lead,) = floor.add(ANN)

    assert floor.work() == 1

    row = floor.lead(lead)
    assert (row.status, row.outcome, row.attempts, row.token) == ("finished", "answered", 1, 1)
    (call,) = floor.calls(lead)
    assert (call.status, str(call.to_phone), call.attempt) == ("completed", ANN, 1)
    assert floor.told(lead) == ["created", "processing", "finished"]
    assert floor.in_redis() == {}
    floor.assert_nothing_held()


def test_nobody_is_called_before_they_are_due(floor: Floor) -> None:
    (lead,) = floor.add(ANN, at=floor.due_in(60))
    assert floor.work() == 0
    clock.travel(25)
    assert floor.work() == 0
    assert floor.in_redis()["schedule"] == 1
    clock.travel(35.1)
    assert floor.work() == 1
    assert floor.lead(lead).outcome == "answered"


def test_the_promoter_sleeps_until_the_next_is_due(floor: Floor, settings: Any) -> None:
    settings.LEADS_TICK_S = 60.0
    assert floor.promote() == 300.0
    floor.add(ANN, at=floor.due_in(600))
    assert floor.promote() == 300.0
    clock.travel(300)
    wish = floor.promote()
    assert wish is not None
    assert 200 < wish <= 240  # a tick before it is due, the switch of the promoter is read
    clock.travel(250)
    wish = floor.promote()
    assert wish is not None
    assert 0 < wish <= 50


def test_an_earlier_lead_wakes_the_promoter_and_a_later_one_does_not(floor: Floor) -> None:
    heard = subscribe_to(redis_queue.notification_channel())
    floor.add(ANN, at=floor.due_in(60))
    assert heard() == [redis_queue.PROMOTER]
    floor.add(BOB, at=floor.due_in(90))
    assert heard() == []
    floor.add(CAT, at=floor.due_in(30))
    assert heard() == [redis_queue.PROMOTER]


def test_wakeup_names_the_pool_of_one_lead_but_not_of_many(floor: Floor) -> None:
    heard = subscribe_to(redis_queue.wakeup_channel())
    floor.add_many(1)
    floor.promote()
    assert heard() == [f"one:{floor.pool.pk}"]
    floor.add_many(2)
    floor.promote()
    assert heard() == ["due"]


def test_calls_are_committed_before_redis_is_updated(floor: Floor) -> None:
    floor.add_many(2)
    floor.promote()
    seen = []

    def committed(claimed: ClaimResult) -> None:
        (held,) = (count for name, count in floor.in_redis().items() if name.startswith("held:tester:"))
        seen.append((len(claimed.calls), Call.objects.count(), held))

    claims.claim_leads("tester", floor.pool.pk, 100, committed)
    assert seen == [(2, 2, 2)]
    assert floor.in_redis() == {}


def test_many_are_written_with_one_event_and_an_answer_for_each(floor: Floor) -> None:
    first = floor.accept([NewLead(ANN, external_id="a"), NewLead("nonsense"), NewLead("602 555 0102")])
    assert [bool(answer.id) for answer in first] == [True, False, True]
    assert first[1].error == "not a phone number"
    again = floor.accept([NewLead(ANN, external_id="a"), NewLead(CAT, external_id="c"), NewLead(CAT, lat=1.0)])
    assert [(answer.id == first[0].id, answer.is_new) for answer in again[:2]] == [(True, False), (False, True)]
    assert "lng" in again[2].error
    counts = Event.objects.filter(kind="campaign.leads_added").values_list("data__count", flat=True)
    assert list(counts.order_by("id")) == [2, 1]
    assert Lead.objects.count() == 3
    assert floor.work() == 3


@pytest.mark.parametrize("phone", ["+19005550101", "+442079460000", "+11115550101", "+1602555010", "", "+"])
def test_uncallable_number_is_rejected_on_intake(floor: Floor, phone: str) -> None:
    (answer,) = floor.accept([NewLead(phone)])
    assert answer.id is None
    assert answer.error


# --- The provider's responses


def test_a_refused_number_is_invalid_for_good(floor: Floor) -> None:
    (lead,) = floor.add(ANN)
    answered(floor, Rejected(True, "21211", "not a number", "number"))
    assert floor.lead(lead).outcome == "invalid_number"
    assert floor.calls(lead)[0].status == "rejected"
    floor.assert_nothing_held()


def test_rate_limited_lead_is_retried_without_an_attempt(floor: Floor) -> None:
    (lead,) = floor.add(ANN)
    answered(floor, RateLimited(70.0))
    row = floor.lead(lead)
    assert (row.status, row.reason, row.attempts, row.token) == ("backlog", Reason.NOT_ACCEPTED, 0, 1)
    floor.assert_nothing_held()
    assert floor.work() == 0
    clock.travel(70.1)
    assert floor.work() == 1
    assert [call.status for call in floor.calls(lead)] == ["not_placed", "completed"]
    assert floor.lead(lead).attempts == 1


def test_rate_limited_account_takes_no_leads_until_then(floor: Floor) -> None:
    ids = floor.add(ANN, BOB)
    floor.promote()
    claimed = floor.claim(1)
    (to_ask,) = claimed.calls
    floor.settle([RequestResult(to_ask.call_id, to_ask.call, RateLimited(70.0))])
    assert floor.claim().why == "rate"
    assert floor.outcomes(ids) == {"backlog": 2}


def test_an_unknown_outcome_keeps_its_line_and_is_never_asked_again(floor: Floor) -> None:
    (lead,) = floor.add(ANN)
    answered(floor, Unknown("time-out"))
    assert floor.status(lead) == "processing"
    assert floor.lines_in_use() == 1
    assert floor.work() == 0
    call = floor.calls(lead)[0]
    assert call.status == "unknown"
    assert Event.objects.filter(kind="call.unknown", subject_id=call.pk).count() == 1


def test_unanswered_call_is_retried_by_the_rules_then_exhausted(floor: Floor) -> None:
    floor.campaign.max_attempts = 2
    floor.campaign.save()
    (lead,) = floor.add(ANN)
    answered(floor, Submitted("CA1", "no_answer"))
    row = floor.lead(lead)
    assert (row.status, row.reason, row.last_outcome, row.attempts) == ("backlog", "retry", "no_answer", 1)
    assert row.due_at > clock.now() + timedelta(minutes=30)
    assert floor.told(lead)[-1] == "again"
    clock.travel(2 * 3600)
    answered(floor, Submitted("CA2", "no_answer"))
    row = floor.lead(lead)
    assert (row.outcome, row.last_outcome, row.attempts, row.token) == ("attempts_exhausted", "no_answer", 2, 2)
    assert [call.attempt for call in floor.calls(lead)] == [1, 2]


def test_end_of_a_call_counts_once_and_of_another_attempt_never(floor: Floor) -> None:
    (lead,) = floor.add(ANN)
    answered(floor, Submitted("CA1"))
    call = floor.calls(lead)[0]
    completion.call_changed(call)
    assert (floor.status(lead), call.status) == ("processing", "submitted")
    Call.objects.filter(pk=call.pk).update(status="busy", ended_at=clock.now())
    call.refresh_from_db()
    for _ in range(2):
        completion.call_changed(call)
    assert floor.told(lead).count("again") == 1
    assert floor.lead(lead).last_outcome == "busy"
    clock.travel(2 * 3600)
    answered(floor, Submitted("CA2"))
    completion.call_changed(call)
    assert floor.status(lead) == "processing"


# --- User actions


def test_a_cancelled_lead_leaves_the_schedule(floor: Floor) -> None:
    ready, waiting = floor.add(ANN)[0], floor.add(BOB, at=floor.due_in(60))[0]
    floor.promote()
    for lead in (ready, waiting, waiting):
        assert actions.cancel_lead(lead, actor=SYSTEM).outcome == "cancelled"
    assert floor.in_redis() in ({}, {"rooms": 1})
    assert floor.work() == 0
    assert floor.told(waiting) == ["created", "finished"]


def test_canceling_a_lead_hangs_up_its_call_and_ends_it(floor: Floor) -> None:
    (lead,) = floor.add(ANN)
    answered(floor, Submitted("CA1"))
    for _ in range(2):
        actions.cancel_lead(lead, actor=SYSTEM)
    wait_until(lambda: floor.status(lead) == "finished")
    row = floor.lead(lead)
    assert (row.outcome, row.last_outcome, floor.calls(lead)[0].status) == ("cancelled", "failed", "canceled")
    assert floor.told(lead) == ["created", "processing", "cancel_requested", "finished"]
    assert floor.work() == 0, "a failed call has a retry"


def test_a_canceled_lead_whose_call_was_answered_keeps_that_outcome(
    floor: Floor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(noop_provider.Noop, "hang_up", lambda self, sid: StatusReport(sid, "completed"))
    (lead,) = floor.add(ANN)
    answered(floor, Submitted("CA1"))
    (call,) = floor.calls(lead)
    CallEvent.objects.create(
        organization_id=call.organization_id, call=call, key="voice:1", kind="voice", payload={}
    )
    actions.cancel_lead(lead, actor=SYSTEM)
    wait_until(lambda: floor.status(lead) == "finished")
    assert floor.lead(lead).outcome == "answered"


def test_a_lead_canceled_before_its_request_is_not_called_later(floor: Floor) -> None:
    (lead,) = floor.add(ANN)
    floor.promote()
    claimed = floor.claim()
    actions.cancel_lead(lead, actor=SYSTEM)
    not_sent = RateLimited(0.0, "canceled before it was sent")
    floor.settle([RequestResult(to_ask.call_id, to_ask.call, not_sent) for to_ask in claimed.calls])
    assert floor.lead(lead).outcome == "cancelled"
    floor.assert_nothing_held()


def test_cancelled_between_taking_and_claiming_it_is_not_called(floor: Floor) -> None:
    (lead,) = floor.add(ANN)
    floor.promote()
    with fault_injection.arm_crash_point("leads.claim.taken", lambda: actions.cancel_lead(lead, actor=SYSTEM)):
        claimed = floor.claim()
    assert claimed.calls == []
    assert floor.lead(lead).outcome == "cancelled"
    floor.assert_nothing_held()


def test_dispatch_now_passes_every_eligibility_check(floor: Floor) -> None:
    early, refused = floor.add(ANN, BOB, at=floor.due_in(3600))
    DoNotCall.objects.create(organization=floor.organization, phone=BOB)
    for lead in (early, refused):
        actions.dispatch_now(lead, actor=SYSTEM)
    assert floor.work() == 1
    assert floor.lead(early).outcome == "answered"
    assert floor.lead(refused).outcome == "do_not_call"
    with pytest.raises(actions.LeadConflict, match="has ended"):
        actions.dispatch_now(early, actor=SYSTEM)


def test_a_campaign_that_moves_to_another_pool_takes_its_leads_along(floor: Floor) -> None:
    (lead,) = floor.add(ANN)
    floor.promote()
    other = factories.pool(floor.organization)
    factories.number(floor.organization, pool=other, account=floor.account)
    floor.campaign.pool = other
    floor.campaign.save()
    assert floor.dial().calls == []
    floor.assert_nothing_held()
    floor.pool = other
    assert len(floor.dial().calls) == 1
    assert floor.calls(lead)[0].pool_id == other.pk
