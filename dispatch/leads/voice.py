"""Handle the calls of leads: the prompts, and the effects of pressed keys."""

from __future__ import annotations

import re
from typing import Any
from urllib.parse import urlencode, urlsplit, urlunsplit

from dispatch.core.events import Actor
from dispatch.core.languages import gettext, mark
from dispatch.leads.models import Campaign, Lead
from dispatch.leads.redis_queue import PURPOSE
from dispatch.leads.services import completion, do_not_call
from dispatch.telephony import handlers, voice_samples
from dispatch.telephony.handlers import Redirect, VoicePrompt
from dispatch.telephony.models import Call
from dispatch.telephony.speech import speaking, speech_for

OPTED_OUT = mark("You will not be called again. Goodbye.")
SILENCE = VoicePrompt(say=())

_PLACE = re.compile(r"\{(\w{1,40})\}")


class LeadCallHandler:
    """The handler of calls with purpose `lead`. Their subject is a Lead."""

    def on_answer(self, call: Call) -> VoicePrompt | Redirect:
        """Return the campaign's script, with the lead's data in its placeholders, or redirect to its TwiML URL."""
        lead = _load_lead(call)
        campaign = lead.campaign
        if campaign.detect_machines and call.answered_by.startswith(("machine", "fax")):
            return SILENCE
        if campaign.answer_url:
            return Redirect(
                _with_query(campaign.answer_url, lead=lead.pk, external_id=lead.external_id, call=call.pk)
            )
        with speaking(speech_for(campaign.organization, campaign)):
            keys = "".join(sorted({*_keys(campaign), *campaign.opt_out_key}))
            return VoicePrompt(say=script_sentences(campaign, lead.data), keys=keys)

    def on_key(self, call: Call, key: str) -> VoicePrompt | Redirect:
        """Opt the person out, or return the campaign's response to the key."""
        lead = _load_lead(call)
        speech = speech_for(lead.campaign.organization, lead.campaign)
        if key and key == lead.campaign.opt_out_key:
            caller = Actor("lead", lead.pk, "The person called")
            do_not_call.add_to_list(
                call.organization_id, str(call.to_phone), source="key", actor=caller, but=call.pk
            )
            with speaking(speech):
                return VoicePrompt(say=(gettext(OPTED_OUT),))
        if (answer := _keys(lead.campaign).get(key)) is not None:
            return VoicePrompt(say=(answer,), speech=speech) if answer else SILENCE
        return self.on_answer(call)

    def on_status_change(self, call: Call) -> None:
        """End the lead's attempt if its call has ended."""
        completion.call_changed(call)


def script_sentences(campaign: Campaign, data: dict[str, Any]) -> tuple[str, ...]:
    """Return the campaign's script with the lead's data in its placeholders, one sentence per line."""
    lines = (line.strip() for line in campaign.script.splitlines())
    return tuple(_PLACE.sub(lambda place: _placeholder_value(data, place[1]), line) for line in lines if line)


def _sample(campaign_id: int) -> VoicePrompt:
    """Return the script as the preview of a campaign. Placeholders show their names."""
    campaign = Campaign.objects.select_related("organization").get(pk=campaign_id)
    names = {name: name for name in _PLACE.findall(campaign.script)}
    with speaking(speech_for(campaign.organization, campaign)):
        opening = gettext("This is a preview of a campaign.")
        return VoicePrompt((opening, *script_sentences(campaign, names)))


def _load_lead(call: Call) -> Lead:
    return Lead.objects.select_related("campaign__organization").get(pk=call.subject_id)


def _keys(campaign: Campaign) -> dict[str, str]:
    return {str(key): str(response) for key, response in campaign.keys.items() if re.fullmatch("[0-9]", str(key))}


def _placeholder_value(data: dict[str, Any], name: str) -> str:
    value = data.get(name, "")
    return str(value)[:200] if isinstance(value, str | int | float) else ""


def _with_query(url: str, **params: Any) -> str:
    parts = urlsplit(url)
    query = "&".join(filter(None, [parts.query, urlencode({k: v for k, v in params.items() if v != ""})]))
    return urlunsplit(parts._replace(query=query))


def register() -> None:
    """Register the lead purpose with telephony."""
    handlers.register_calls(PURPOSE, LeadCallHandler())
    voice_samples.register("campaign", _sample)
