"""Hold follow-up texts while a switch holds their campaign's calls, and release them when it is lifted."""

from __future__ import annotations

from datetime import timedelta

from dispatch.core import clock
from dispatch.leads.models import Lead
from dispatch.leads.rules.states import Reason
from dispatch.leads.services import follow_ups, switches
from dispatch.telephony.handlers import TextHold
from dispatch.telephony.models import Text

# How often a held text is checked if the lifting of its switch was not noticed.
RETRY = timedelta(minutes=5)
# A text that is older is not sent after a hold. Its age counts, not the last hold, however often it was held.
MAX_AGE = timedelta(days=3)
_WORDS = {
    Reason.STOPPED: "lead calling is stopped",
    Reason.ORGANIZATION_OFF: "lead calling is off",
    Reason.ORGANIZATION_PAUSED: "lead calling is paused",
    Reason.CAMPAIGN_PAUSED: "the campaign is paused",
    Reason.DRY_RUN: "the organization is in a dry run",
}


def hold(text: Text) -> TextHold | None:
    """Return why a due follow-up has to wait, or None.

    After a hold it is sent in the next hours that permit calls to its lead, unless it is too old by then.
    """
    if not text.context.get(follow_ups.OUTCOME):
        return None
    was_held = text.error_message.startswith(switches.HELD_TEXT)
    if was_held and clock.now() >= text.not_after:
        return None
    if why := _why_held(text.context["campaign_id"]):
        now = clock.now()
        not_after = text.not_after if was_held else max(text.not_after, text.created_at + MAX_AGE)
        return TextHold(min(now + RETRY, not_after), not_after, f"{switches.HELD_TEXT} {why}.")
    return _next_hours(text) if was_held else None


def _why_held(campaign_id: int) -> str:
    holding = switches.holding_switches_of(campaign_id)
    return next((words for reason, words in _WORDS.items() if reason in holding), "")


def _next_hours(text: Text) -> TextHold:
    """Return when the text may be sent after its hold. If that is too late, its deadline is now."""
    assert text.subject_id is not None  # outbound texts have one
    now = clock.now()
    lead = Lead.objects.filter(pk=text.subject_id).first()
    hours = follow_ups.permitted_hours(lead, now) if lead is not None and lead.phone else None
    if hours is None or hours[0] >= text.not_after:
        return TextHold(now, now, f"{switches.HELD_TEXT} it is too late to send it.")
    return TextHold(max(now, hours[0]), min(text.not_after, hours[1]), "")
