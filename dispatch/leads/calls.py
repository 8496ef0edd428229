"""What a lead hears, and what their keys do: the leads' side of telephony's `purposes`."""

from __future__ import annotations

import re
from typing import Any
from urllib.parse import urlencode, urlsplit, urlunsplit

from dispatch.core.events import Actor
from dispatch.leads.models import Campaign, Lead
from dispatch.leads.schedule import PURPOSE
from dispatch.leads.services import do_not_call, ending
from dispatch.telephony import purposes
from dispatch.telephony.models import Call
from dispatch.telephony.purposes import HandOver, Prompt

OPTED_OUT = "You will not be called again. Goodbye."
SILENCE = Prompt(say=())

_PLACE = re.compile(r"\{(\w{1,40})\}")


class LeadCalls:
    """The handler of calls with purpose `lead`; their subject is a Lead."""

    def answered(self, call: Call) -> Prompt | HandOver:
        """The campaign's script, with the lead's data in its places; or the customer's own document."""
        lead = Lead.objects.select_related("campaign").get(pk=call.subject_id)
        campaign = lead.campaign
        if campaign.detect_machines and call.answered_by.startswith(("machine", "fax")):
            return SILENCE
        if campaign.answer_url:
            return HandOver(_with(campaign.answer_url, lead=lead.pk, external_id=lead.external_id, call=call.pk))
        lines = (line.strip() for line in campaign.script.splitlines())
        said = tuple(_PLACE.sub(lambda place: _word(lead.data, place[1]), line) for line in lines if line)
        keys = "".join(sorted({*_keys(campaign), *campaign.opt_out_key}))
        return Prompt(say=said, keys=keys)

    def pressed(self, call: Call, key: str) -> Prompt | HandOver:
        """Opts out, or says what the campaign has for the key."""
        lead = Lead.objects.select_related("campaign").get(pk=call.subject_id)
        if key and key == lead.campaign.opt_out_key:
            caller = Actor("lead", lead.pk, "The person called")
            do_not_call.refuse(call.organization_id, str(call.to_phone), source="key", actor=caller, but=call.pk)
            return Prompt(say=(OPTED_OUT,))
        if (answer := _keys(lead.campaign).get(key)) is not None:
            return Prompt(say=(answer,)) if answer else SILENCE
        return self.answered(call)

    def changed(self, call: Call) -> None:
        """An ended call ends the lead's attempt."""
        ending.call_changed(call)


def _keys(campaign: Campaign) -> dict[str, str]:
    return {str(key): str(words) for key, words in campaign.keys.items() if re.fullmatch("[0-9]", str(key))}


def _word(data: dict[str, Any], name: str) -> str:
    value = data.get(name, "")
    return str(value)[:200] if isinstance(value, str | int | float) else ""


def _with(url: str, **more: Any) -> str:
    parts = urlsplit(url)
    query = "&".join(filter(None, [parts.query, urlencode({k: v for k, v in more.items() if v != ""})]))
    return urlunsplit(parts._replace(query=query))


def register() -> None:
    """Registers the lead purpose with telephony."""
    purposes.register(PURPOSE, LeadCalls())
