"""Ask a campaign's system over HTTP, before each call, whether a lead is still wanted.

    POST <the campaign's URL>           signed as in Standard Webhooks, if the campaign has a secret
    {"lead": 42, "external_id": "A-17", "campaign": "spring", "phone": "+16025550134", "attempt": 2}

    200 {"call": true}                          call it
    200 {"call": false}                         never call it
    200 {"call": false, "delay_seconds": 900}   not now; ask again after that time

Any other response, or no response in time, counts as no response. The campaign's setting decides what follows.
"""

from __future__ import annotations

import json
from datetime import datetime, timedelta
from typing import Any

import structlog

from dispatch.core import clock, crypto
from dispatch.core.http import client, webhook_signing
from dispatch.core.http.ssrf import ForbiddenTarget
from dispatch.leads.rules.retries import GO, CampaignRules, Defer, End, LeadFacts, Verdict
from dispatch.leads.rules.states import Outcome, Reason

log = structlog.get_logger(__name__)

# Delay before the pre-check is repeated after no valid response.
RETRY_DELAY = timedelta(minutes=5)
MAX_DELAY_S = 30 * 86_400


async def run_precheck(lead: LeadFacts, campaign: CampaignRules) -> Verdict:
    """Ask the campaign's system whether to call this lead now. Return Go if the campaign has no pre-check.

    A question that fails for any reason counts as no response, so that the lead is not asked about constantly.
    """
    if not campaign.precheck_url:
        return GO
    now = clock.now()
    try:
        return await _ask(lead, campaign, now)
    except Exception:
        log.exception("precheck_failed", lead_id=lead.id, campaign_id=campaign.id)
        return _without_answer(campaign, now)


async def _ask(lead: LeadFacts, campaign: CampaignRules, now: datetime) -> Verdict:
    try:
        answer = await client.post(
            campaign.precheck_url, body := _request_body(lead, campaign), _headers(lead, campaign, now, body),
            campaign.precheck_timeout_s, organization=lead.organization_id,
        )  # fmt: skip
    except (client.TargetError, ForbiddenTarget) as error:
        log.info("precheck_unanswered", lead_id=lead.id, campaign_id=campaign.id, error=str(error))
        return _without_answer(campaign, now)
    verdict = _parse_answer(answer)
    if verdict is None:
        log.info("precheck_answer_invalid", lead_id=lead.id, campaign_id=campaign.id, status=answer.status)
        return _without_answer(campaign, now)
    if verdict["call"]:
        return GO
    if delay := verdict.get("delay_seconds"):
        return Defer(now + timedelta(seconds=min(float(delay), MAX_DELAY_S)), Reason.PRECHECK_LATER)
    return End(Outcome.PRECHECK_FAILED, Reason.PRECHECK_NO)


def _request_body(lead: LeadFacts, campaign: CampaignRules) -> bytes:
    body = {
        "lead": lead.id,
        "external_id": lead.external_id,
        "campaign": campaign.code,
        "phone": lead.phone,
        "attempt": lead.attempts + 1,
    }
    return json.dumps(body).encode()


def _headers(lead: LeadFacts, campaign: CampaignRules, now: datetime, body: bytes) -> dict[str, str]:
    plain = {"Content-Type": "application/json"}
    if not campaign.precheck_secret:
        return plain
    secret = crypto.decrypt(campaign.precheck_secret)
    signed = webhook_signing.headers([secret], f"lead_{lead.id}_{lead.token + 1}", now, body)
    return {**plain, **signed}


def _parse_answer(answer: client.Response) -> dict[str, Any] | None:
    """Return the response if it is valid, else None."""
    try:
        verdict = json.loads(answer.body_start)
    except (ValueError, RecursionError):  # the latter for thousands of nested brackets
        return None
    if answer.status != 200 or not isinstance(verdict, dict) or not isinstance(verdict.get("call"), bool):
        return None
    delay = verdict.get("delay_seconds", 0)
    is_valid_delay = isinstance(delay, int | float) and not isinstance(delay, bool) and 0 <= delay < float("inf")
    return verdict if is_valid_delay else None


def _without_answer(campaign: CampaignRules, now: datetime) -> Verdict:
    match campaign.precheck_without_answer:
        case "call":
            return GO
        case "drop":
            return End(Outcome.PRECHECK_FAILED, Reason.PRECHECK_NO_ANSWER)
    return Defer(now + RETRY_DELAY, Reason.PRECHECK_NO_ANSWER)
