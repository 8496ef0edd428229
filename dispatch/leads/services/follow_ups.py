"""Send the text that a campaign's rule has for a recorded outcome, once per call and rule."""

from __future__ import annotations

from datetime import datetime, timedelta

from django.db.models import Q

from dispatch.core import clock, events
from dispatch.core.events import SYSTEM, Actor
from dispatch.core.privacy import replay
from dispatch.leads import eligibility
from dispatch.leads.models import Campaign, DispositionRule, DoNotCall, DoNotCallEverywhere, Lead, LeadDispatch
from dispatch.leads.redis_queue import PURPOSE
from dispatch.leads.rules.retries import LeadFacts
from dispatch.leads.rules.script import fill_in
from dispatch.leads.services.consents import valid_consents
from dispatch.telephony import services as telephony
from dispatch.telephony.models import Text

# Texts of keys have the attempt of their call; follow-ups have greater numbers.
FIRST_ATTEMPT, PER_CALL = 1_000_000, 100
NOT_SENT = (Text.Status.CANCELED, Text.Status.NOT_SENT)
LATEST = timedelta(days=7)
# In the context of a follow-up: its outcome. A rule's id is no identity: the API replaces the rules.
OUTCOME = "outcome"


def send_follow_up(lead: Lead, disposition: str, *, actor: Actor = SYSTEM) -> Text | None:
    """Create the text for this outcome of a locked lead, to be sent in the next calling hours.

    Follow-ups for another outcome of the same call that still wait are canceled: the outcome was corrected.
    Returns None without a text; why none was possible is an event of the lead. Must run in a transaction.
    """
    rule = DispositionRule.objects.filter(campaign=lead.campaign_id, disposition=disposition).first()
    first = FIRST_ATTEMPT + lead.token * PER_CALL
    existing = Text.objects.filter(
        direction=Text.Direction.OUT, purpose=PURPOSE, subject_id=lead.pk, attempt__gte=first,
        attempt__lt=first + PER_CALL,
    )  # fmt: skip
    others = Q(pk__in=[text.pk for text in existing if rule is None or text.context.get(OUTCOME) != disposition])
    telephony.cancel_texts(others, actor=actor)
    if rule is None or not rule.text.strip() or not lead.phone:
        return None
    kept = [text for text in existing if text.context.get(OUTCOME) == disposition and text.status not in NOT_SENT]
    if kept:
        return kept[0]
    try:
        if len(existing) >= PER_CALL:
            raise telephony.TextNotAllowed("too many corrections")
        return _create(lead, rule, first + len(existing))
    except (telephony.OptedOut, telephony.TextNotAllowed, telephony.NoTextNumber) as error:
        why = str(error) or "the phone has opted out of texts"
    events.append(
        lead.organization_id, "lead.follow_up_not_sent", lead.pk, actor=actor, campaign_id=lead.campaign_id,
        disposition=disposition, why=why,
    )  # fmt: skip
    return None


def why_unwanted(organization_id: int, phone: str, campaign_id: int) -> str:
    """Return why a follow-up of the campaign may not go to the phone, or "". The rules are those of its calls."""
    if (
        DoNotCall.objects.filter(organization_id=organization_id, phone=phone).exists()
        or DoNotCallEverywhere.objects.filter(phone=phone).exists()
        or replay.find_refused(organization_id, [phone], replay.DO_NOT_CALL)
    ):
        return "the phone is on the do-not-call list"
    purpose = Campaign.objects.filter(pk=campaign_id).values_list("consent_purpose", flat=True).first()
    if purpose and not valid_consents([(organization_id, phone, purpose)]):
        return "no valid consent for the campaign's purpose is recorded"
    return ""


def _create(lead: Lead, rule: DispositionRule, attempt: int) -> Text:
    if why := why_unwanted(lead.organization_id, str(lead.phone), lead.campaign_id):
        raise telephony.TextNotAllowed(why)
    if LeadDispatch.objects.of(lead.organization_id).filter(mode=LeadDispatch.Mode.DRY_RUN).exists():
        raise telephony.TextNotAllowed("the organization is in a dry run")
    now = clock.now()
    hours = permitted_hours(lead, now)
    if hours is None or hours[0] > now + LATEST:
        raise telephony.TextNotAllowed("no hours within a week permit it")
    return telephony.create_text(
        organization=lead.organization,
        to_phone=str(lead.phone),
        body=fill_in(rule.text, lead.data),
        purpose=PURPOSE,
        subject_id=lead.pk,
        attempt=attempt,
        pool=lead.campaign.pool,
        not_before=hours[0],
        not_after=hours[1],
        context={"campaign_id": lead.campaign_id, OUTCOME: rule.disposition},
    )


def permitted_hours(lead: Lead, now: datetime) -> tuple[datetime, datetime] | None:
    """Return from when to when a text to the lead may be sent next: when it may be called. None if never soon."""
    facts = LeadFacts(
        id=lead.pk, organization_id=lead.organization_id, campaign_id=lead.campaign_id, phone=str(lead.phone),
        lat=lead.lat, lng=lead.lng, customer=lead.customer, external_id=lead.external_id, attempts=lead.attempts,
        token=lead.token, wanted_at=lead.wanted_at, due_at=lead.due_at, reason=lead.reason,
        contact_from=lead.contact_from, contact_until=lead.contact_until,
    )  # fmt: skip
    return eligibility.permitted_hours(facts, now)
