"""Pre-checks whose responses defer a lead forever, or cannot be read."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from dispatch.capacity.models import OutboundNumber
from dispatch.core import clock
from dispatch.core.http import client
from dispatch.leads import precheck
from dispatch.leads.rules.retries import GO, CampaignRules, Defer, LeadFacts, Verdict
from dispatch.leads.rules.states import Reason
from dispatch.leads.services import claims
from dispatch.leads.services.claim_batches import PrecheckRequest
from dispatch.telephony.models import Call
from tests.harness.lead_calls import document
from tests.harness.leads import Floor

pytestmark = pytest.mark.django_db(transaction=True)


def question_of(floor: Floor, url: str = "https://crm.example.com/check", **campaign: Any) -> PrecheckRequest:
    """Claim a lead whose campaign has a pre-check, and return the question."""
    floor.campaign.precheck_url = url
    for name, value in campaign.items():
        setattr(floor.campaign, name, value)
    floor.campaign.save()
    floor.promote()
    (question,) = floor.claim().questions
    return question


def ask(lead: LeadFacts, campaign: CampaignRules) -> Verdict:
    async def run() -> Verdict:
        try:
            return await precheck.run_precheck(lead, campaign)
        finally:
            await client.close()

    return asyncio.run(run())


def ask_later(question: PrecheckRequest) -> Defer:
    return Defer(clock.now() + timedelta(minutes=31), Reason.PRECHECK_LATER)


def test_a_lead_that_is_always_asked_for_later_ends_with_its_patience(floor: Floor) -> None:
    (lead,) = floor.add_many(1)
    for status in ("backlog", "finished"):
        question = question_of(floor, patience_h=1)
        claims.claim_answered("tester", [(question, ask_later(question))])
        assert floor.status(lead) == status
        clock.travel(1861)
    assert (floor.lead(lead).outcome, floor.lead(lead).reason) == ("precheck_failed", "precheck_later")
    assert floor.lines_in_use() == 0


def test_a_line_that_was_reserved_during_the_question_is_not_used(floor: Floor) -> None:
    floor.add_many(1)
    question = question_of(floor)
    OutboundNumber.objects.update(reserved_for_alerts=5)
    assert claims.claim_answered("tester", [(question, GO)]).calls == []
    assert not Call.objects.exists()
    OutboundNumber.objects.update(reserved_for_alerts=0)
    assert [again.lead.id for again in floor.claim().questions] == [question.lead.id]


def test_an_unreadable_response_is_no_response(floor: Floor) -> None:
    floor.add_many(1)
    with document(lambda _: b"[" * 4096) as (url, asked):
        question = question_of(floor, url)
        verdict = ask(question.lead, question.campaign)
    assert len(asked) == 1
    assert isinstance(verdict, Defer)
    assert verdict.reason is Reason.PRECHECK_NO_ANSWER
    assert verdict.until > clock.now() + timedelta(minutes=4)


def test_a_secret_that_cannot_be_decrypted_is_no_response(floor: Floor) -> None:
    floor.add_many(1)
    question = question_of(floor)
    unreadable = replace(question.campaign, precheck_secret="gAAAAA-not-ours")
    verdict = ask(question.lead, unreadable)
    assert isinstance(verdict, Defer)
    assert verdict.reason is Reason.PRECHECK_NO_ANSWER
