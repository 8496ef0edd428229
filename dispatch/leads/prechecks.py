"""The question "still wanted?" that a campaign may have asked over HTTP before each call.

    POST <the campaign's URL>           signed as Standard Webhooks, with the campaign's secret, if it has one
    {"lead": 42, "external_id": "A-17", "campaign": "spring", "phone": "+16025550134", "attempt": 2}

    200 {"call": true}                          call it
    200 {"call": false}                         never call it
    200 {"call": false, "delay_seconds": 900}   not now, ask again then

Anything else, and no answer in time, is no answer; the campaign says what that means."""

from __future__ import annotations

import json
from datetime import datetime, timedelta
from typing import Any

import structlog

from dispatch.core import clock, crypto, http_client, webhook_signing
from dispatch.core.http_targets import TargetRefused
from dispatch.leads.rules.facts import GO, CampaignRules, Defer, End, LeadFacts, Verdict
from dispatch.leads.rules.words import Outcome, Reason

log = structlog.get_logger(__name__)

# When a lead is asked about again whose question found no answer.
AGAIN = timedelta(minutes=5)
LONGEST_DELAY_S = 30 * 86_400


async def ask(lead: LeadFacts, campaign: CampaignRules) -> Verdict:
    """What the campaign's own system says about calling this lead now; Go when nobody is to be asked."""
    if not campaign.precheck_url:
        return GO
    now = clock.now()
    try:
        answer = await http_client.post(
            campaign.precheck_url, body := _question(lead, campaign), _headers(lead, campaign, now, body),
            campaign.precheck_timeout_s,
        )  # fmt: skip
    except (http_client.TargetError, TargetRefused) as error:
        log.info("a pre-check had no answer", lead_id=lead.id, campaign_id=campaign.id, error=str(error))
        return _without_answer(campaign, now)
    told = _told(answer)
    if told is None:
        log.info(
            "a pre-check's answer has no meaning", lead_id=lead.id, campaign_id=campaign.id, status=answer.status
        )
        return _without_answer(campaign, now)
    if told["call"]:
        return GO
    if delay := told.get("delay_seconds"):
        return Defer(now + timedelta(seconds=min(float(delay), LONGEST_DELAY_S)), Reason.PRECHECK_LATER)
    return End(Outcome.PRECHECK_FAILED, Reason.PRECHECK_NO)


def _question(lead: LeadFacts, campaign: CampaignRules) -> bytes:
    asked = {
        "lead": lead.id,
        "external_id": lead.external_id,
        "campaign": campaign.code,
        "phone": lead.phone,
        "attempt": lead.attempts + 1,
    }
    return json.dumps(asked).encode()


def _headers(lead: LeadFacts, campaign: CampaignRules, now: datetime, body: bytes) -> dict[str, str]:
    plain = {"Content-Type": "application/json"}
    if not campaign.precheck_secret:
        return plain
    secret = crypto.unseal(campaign.precheck_secret)
    signed = webhook_signing.headers([secret], f"lead_{lead.id}_{lead.token + 1}", now, body)
    return {**plain, **signed}


def _told(answer: http_client.Response) -> dict[str, Any] | None:
    """The answer, if it is one."""
    try:
        told = json.loads(answer.body_start)
    except ValueError:
        return None
    if answer.status != 200 or not isinstance(told, dict) or not isinstance(told.get("call"), bool):
        return None
    delay = told.get("delay_seconds", 0)
    number = isinstance(delay, int | float) and not isinstance(delay, bool) and 0 <= delay < float("inf")
    return told if number else None


def _without_answer(campaign: CampaignRules, now: datetime) -> Verdict:
    match campaign.precheck_without_answer:
        case "call":
            return GO
        case "drop":
            return End(Outcome.PRECHECK_FAILED, Reason.PRECHECK_NO_ANSWER)
    return Defer(now + AGAIN, Reason.PRECHECK_NO_ANSWER)
