"""Calls that were never placed: sent back by the provider, refused by it, or never received."""

from __future__ import annotations

import pytest

from dispatch.core import clock
from dispatch.leads.models import RetryRule
from dispatch.leads.rules.retries import MAX_SENT_BACK
from dispatch.leads.services import completion
from dispatch.telephony.models import Call
from dispatch.telephony.providers.base import Outcome, RateLimited, Rejected
from dispatch.telephony.services import calls
from dispatch.telephony.services.bulk import RequestResult
from tests.harness.leads import Floor

pytestmark = pytest.mark.django_db(transaction=True)

REFUSED = Rejected(False, "21210", "the caller's number is not ours", "other")


def respond(floor: Floor, outcome: Outcome) -> float:
    """Claim the only lead, apply the provider's response, and return the seconds until the lead is due again."""
    floor.promote()
    (request,) = floor.claim().calls
    floor.settle([RequestResult(request.call_id, request.call, outcome)])
    lead = floor.lead(request.call.subject_id)
    return round((lead.due_at - clock.now()).total_seconds()) if lead.status == "backlog" else -1


def until_due(floor: Floor, wait_s: float) -> None:
    clock.travel(wait_s + 1)


def test_calls_that_the_provider_sends_back_use_up_no_refusal(floor: Floor) -> None:
    RetryRule.objects.create(
        organization=floor.organization, campaign=floor.campaign, outcome="not_placed", attempts=2, delay_s=60,
        jitter=0,
    )  # fmt: skip
    (lead,) = floor.add_many(1)
    for outcome in [RateLimited(1.0), RateLimited(1.0), RateLimited(1.0), REFUSED]:
        until_due(floor, respond(floor, outcome))
    assert (floor.status(lead), floor.lead(lead).refusals) == ("backlog", 1)
    respond(floor, REFUSED)
    assert (floor.status(lead), floor.lead(lead).outcome) == ("finished", "attempts_exhausted")
    assert floor.lead(lead).attempts == 0


def test_a_lead_that_is_sent_back_waits_longer_each_time(floor: Floor) -> None:
    (lead,) = floor.add_many(1)
    waits = []
    for _ in range(10):
        waits.append(respond(floor, RateLimited(2.0)))
        until_due(floor, waits[-1])
    assert waits == [2, 2, 3, 7, 15, 31, 63, 127, 255, 300]
    floor.work()
    assert (floor.lead(lead).outcome, floor.lead(lead).sent_back) == ("answered", 10)


def test_a_provider_that_asks_for_more_time_gets_it(floor: Floor) -> None:
    floor.add_many(1)
    assert respond(floor, RateLimited(900.0)) == 900


def test_a_claim_that_lapsed_before_its_request_counts_for_nothing(floor: Floor) -> None:
    (lead,) = floor.add_many(1)
    for _ in range(4):
        wait_s = respond(floor, RateLimited(0.0, "the claim lapsed before it was sent"))
        assert wait_s == 1
        until_due(floor, wait_s)
    assert (floor.lead(lead).sent_back, floor.lead(lead).attempts) == (0, 0)


def test_a_lead_that_is_sent_back_constantly_is_given_up(floor: Floor) -> None:
    (lead,) = floor.add_many(1)
    type(floor.lead(lead)).objects.update(sent_back=MAX_SENT_BACK)
    assert respond(floor, RateLimited(2.0)) == -1
    assert (floor.lead(lead).outcome, floor.lead(lead).reason) == ("not_placed", "most_attempts")


def test_a_call_that_was_never_received_is_repeated_within_minutes(floor: Floor) -> None:
    (lead,) = floor.add_many(1)
    waits = []
    for _ in range(3):
        floor.promote()
        (request,) = floor.claim().calls
        call = calls.lock_call(request.call_id)
        calls.transition(call, Call.Status.NOT_PLACED, error_message="the provider has no such call")
        completion.call_changed(call)
        waits.append(round((floor.lead(lead).due_at - clock.now()).total_seconds()))
        until_due(floor, waits[-1])
    assert waits == [60, 120, 240]
    assert floor.lead(lead).attempts == 0
