"""Handle the calls of leads: the prompts, and the effects of pressed keys."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from typing import Any
from urllib.parse import urlencode, urlsplit, urlunsplit

from dispatch.core.db import fast_rows
from dispatch.core.events import Actor
from dispatch.core.languages import gettext, mark
from dispatch.leads.models import Campaign, KeyBranch, Lead, Recording, VoiceAgent
from dispatch.leads.redis_queue import PURPOSE
from dispatch.leads.rules.script import VARIABLES, Action, fill_in, split_names
from dispatch.leads.services import (
    branches,
    completion,
    consents,
    follow_ups,
    held_follow_ups,
    recordings,
    voice_agents,
)
from dispatch.telephony import handlers, voice_samples
from dispatch.telephony import services as telephony
from dispatch.telephony.handlers import AgentConnection, AgentEnd, Connection, Document, Redirect, VoicePrompt
from dispatch.telephony.models import Call, InboundCall, Text
from dispatch.telephony.speech import speaking, speech_for

OPTED_OUT = mark("You will not be called again. Goodbye.")
CONNECTING = mark("One moment, please.")
NOBODY = mark("Nobody can take your call right now. Goodbye.")
ACCEPT = mark("Press 1 to take the call.")
ACCEPT_KEY = "1"
SILENCE = VoicePrompt(say=())
# Rows related to a campaign that its prompts take texts, voices and recordings from.
SPOKEN_WITH = ("organization", "recording", "voicemail_recording")


class LeadCallHandler:
    """The handler of calls with purpose `lead`. Their subject is a Lead."""

    def on_answer(self, call: Call) -> Document:
        """Connect to the campaign's voice agent, redirect to its TwiML URL, or return its recording or script.

        A machine hears the message for voicemail. After the agent, the script follows.
        """
        lead = _load_lead(call)
        campaign = lead.campaign
        if not _is_machine(campaign, call.answered_by):
            if campaign.agent_answers and not telephony.has_webhook(call, "agent"):
                return _agent(lead, call)
            if not campaign.answer_url:
                return _script(lead)
        return plain_document(lead, call.pk, call.answered_by)

    def on_key(self, call: Call, key: str) -> Document:
        """Opt the person out, or do what the key's branch says."""
        lead = _load_lead(call)
        campaign = lead.campaign
        if key and key == campaign.opt_out_key:
            branch = KeyBranch(key=key, action=Action.OPT_OUT)
        elif (found := branches.load_branches(campaign).get(key)) is not None:
            branch = found
        else:
            return self.on_answer(call)
        branches.apply_branch(lead, branch, call)
        said = tuple(filter(None, (fill_in(branch.say, lead.data),)))
        with speaking(_speech(campaign)):
            if branch.action == Action.OPT_OUT:
                return VoicePrompt(said or (gettext(OPTED_OUT),))
            if branch.action == Action.CONNECT:
                legs = branches.open_legs(branch, call)
                if legs:
                    words = said or (gettext(CONNECTING),)
                    return Connection(words, tuple(legs), branch.ring_s, branch.talk_limit_s)
                return VoicePrompt(_otherwise(branch, lead))
            if branch.action == Action.AGENT:
                return _agent(lead, call, said)
        return key_document(lead, branch)

    def on_connected(self, call: Call, is_connected: bool) -> VoicePrompt:
        """Record whether somebody took the call. If not, say what the branch says then."""
        lead = _load_lead(call)
        branch = branches.connecting_branch(lead.campaign, call.keys_pressed)
        branches.record_connection(lead, call, is_connected)
        if is_connected or branch is None:
            return SILENCE
        with speaking(_speech(lead.campaign)):
            return VoicePrompt(_otherwise(branch, lead))

    def on_agent_ended(self, call: Call, end: AgentEnd) -> VoicePrompt:
        """Record how the voice agent's conversation ended. Continue with the script, or apologize."""
        lead = _load_lead(call)
        voice_agents.record_end(lead, call, end)
        agent = voice_agents.agent_of(lead.campaign)
        if end.has_failed:
            return _apology(lead)
        if agent is not None and agent.then == agent.Then.SCRIPT and _has_script(lead.campaign):
            return _script(lead)
        return SILENCE

    def on_status_change(self, call: Call) -> None:
        """End the lead's attempt if its call has ended."""
        completion.call_changed(call)


class LegCallHandler:
    """The handler of calls with purpose `connect`, to people who may talk to a lead. Subject: the lead's Call."""

    def on_answer(self, call: Call) -> VoicePrompt:
        """Introduce the lead, and ask the person to accept. The lead does not hear it."""
        lead_call = _open_lead_call(call)
        if lead_call is None:
            return SILENCE
        lead = _load_lead(lead_call)
        branch = branches.connecting_branch(lead.campaign, lead_call.keys_pressed)
        introduction = fill_in(branch.introduction, lead.data) if branch else ""
        with speaking(_speech(lead.campaign)):
            return VoicePrompt(tuple(filter(None, (introduction, gettext(ACCEPT)))), keys=ACCEPT_KEY, times=2)

    def on_key(self, call: Call, key: str) -> VoicePrompt:
        """Let the person talk to the lead: the document ends without a hang-up.

        The connection is recorded now: its result may not be reported if the lead hangs up first.
        """
        if key != ACCEPT_KEY:
            return self.on_answer(call)
        if (lead_call := _open_lead_call(call)) is not None:
            branches.record_connection(_load_lead(lead_call), lead_call, is_connected=True)
        return VoicePrompt((), hangs_up=False)

    def on_status_change(self, call: Call) -> None:
        """Do nothing: the end of the connection is reported to the lead's call."""


class LeadSmsHandler:
    """The handler of texts to leads."""

    def should_send(self, text: Text) -> bool:
        """Return False for a follow-up to a phone that was listed, or whose consent was withdrawn, meanwhile."""
        if not text.context.get(follow_ups.OUTCOME):
            return True
        campaign_id = text.context["campaign_id"]
        return not follow_ups.why_unwanted(text.organization_id, str(text.to_phone), campaign_id)

    def on_status_change(self, text: Text) -> None:
        """Do nothing: no state depends on a text."""


class LeadInboundHandler:
    """The handler of what leads text. It has no conversation with them: an opt-out withdraws their consents."""

    def on_sms(self, text: Text) -> str | None:
        """Return None: leads' texts have no answer here."""
        return None

    def on_help(self, text: Text) -> str | None:
        """Return None: leads' texts have no answer here."""
        return None

    def on_stop(self, text: Text) -> None:
        """Withdraw the consents of the phone."""
        actor = Actor("provider", None, "Phone provider")
        consents.withdraw(text.organization_id, str(text.from_phone), by="text", actor=actor)

    def on_call(self, call: InboundCall) -> VoicePrompt | None:
        """Return None: leads' calls have no prompt."""
        return None

    def on_key(self, call: InboundCall, key: str, *, arrived_at: datetime, state: str = "") -> VoicePrompt:
        """Return an empty prompt: leads' calls have no keys."""
        return SILENCE

    def on_digits(
        self, call: InboundCall, digits: str, *, state: str = "", is_repeated: bool = False
    ) -> VoicePrompt:
        """Return an empty prompt: leads are not asked for digits."""
        return SILENCE


def plain_document(lead: Lead, call_id: int, answered_by: str, keys: str | None = None) -> VoicePrompt | Redirect:
    """Return what a person or machine hears first in a campaign without a voice agent. Reads no call.

    `keys`: those of the campaign; None: they are read.
    """
    campaign = lead.campaign
    if _is_machine(campaign, answered_by):
        return _voicemail(lead)
    if campaign.answer_url:
        return Redirect(_with_query(campaign.answer_url, lead=lead.pk, external_id=lead.external_id, call=call_id))
    return _script(lead, keys)


def key_document(lead: Lead, branch: KeyBranch) -> VoicePrompt:
    """Return what is said after a key that neither opts out nor connects the call to anybody."""
    said = tuple(filter(None, (fill_in(branch.say, lead.data),)))
    with speaking(_speech(lead.campaign)):
        if branch.action == Action.PLAY:
            return VoicePrompt(said, play=_address(branch.recording))
        return VoicePrompt(said) if said else SILENCE


def _is_machine(campaign: Campaign, answered_by: str) -> bool:
    return campaign.detect_machines and answered_by.startswith(("machine", "fax"))


def script_sentences(campaign: Campaign, data: dict[str, Any]) -> tuple[str, ...]:
    """Return the campaign's script with the lead's data in its placeholders, one sentence per line."""
    return _sentences(campaign.script, data)


def _sentences(text: str, data: dict[str, Any]) -> tuple[str, ...]:
    lines = (line.strip() for line in text.splitlines())
    return tuple(fill_in(line, data) for line in lines if line)


def _script(lead: Lead, keys: str | None = None) -> VoicePrompt:
    campaign = lead.campaign
    accepted = keys_of(campaign) if keys is None else keys
    with speaking(_speech(campaign)):
        return VoicePrompt(say=_opening(campaign, lead.data), keys=accepted, play=_address(campaign.recording))


def _opening(campaign: Campaign, data: dict[str, Any]) -> tuple[str, ...]:
    """Return the sentences of a campaign's script, or none if a recording is played instead."""
    return () if campaign.recording_id is not None else script_sentences(campaign, data)


def _has_script(campaign: Campaign) -> bool:
    return bool(campaign.script.strip()) or campaign.recording_id is not None


def _voicemail(lead: Lead) -> VoicePrompt:
    campaign = lead.campaign
    play = _address(campaign.voicemail_recording)
    say = () if play else _sentences(campaign.voicemail, lead.data)
    return VoicePrompt(say=say, speech=_speech(campaign), play=play)


def _address(recording: Recording | None) -> str:
    """Return the address at which the provider fetches a recording, or ""."""
    return "" if recording is None else recordings.address_of(recording)


def _agent(lead: Lead, call: Call, said: tuple[str, ...] = ()) -> AgentConnection | VoicePrompt:
    """Return the connection to the voice agent, or the apology if it may not be connected to."""
    with speaking(_speech(lead.campaign)):
        if (connection := voice_agents.connect(lead, call, said)) is not None:
            return connection
    voice_agents.record_end(lead, call, AgentEnd(step=0, has_failed=True))
    return _apology(lead)


def _apology(lead: Lead) -> VoicePrompt:
    agent = voice_agents.agent_of(lead.campaign)
    with speaking(_speech(lead.campaign)):
        words = fill_in(agent.otherwise, lead.data) if agent is not None else ""
        return VoicePrompt((words or gettext(NOBODY),))


def _otherwise(branch: KeyBranch, lead: Lead) -> tuple[str, ...]:
    return (fill_in(branch.otherwise, lead.data) or gettext(NOBODY),)


def _sample(campaign_id: int, key: str = "") -> VoicePrompt | AgentConnection:
    """Return the script as the preview of a campaign, or what follows a key. Placeholders show their names.

    A voice agent is connected to. It gets the parameter `preview`, and the names of its data as their values.
    """
    campaign = Campaign.objects.select_related("organization", "agent", "recording").get(pk=campaign_id)
    names = {name: name for name in (*VARIABLES, *split_names(campaign.variables))}
    with speaking(_speech(campaign)):
        opening = gettext("This is a preview of a campaign.")
        if not key and campaign.agent_answers:
            return _sample_of_agent(campaign, names, (opening,))
        if not key:
            say = (opening, *_opening(campaign, names))
            return VoicePrompt(say, keys=keys_of(campaign), times=1, play=_address(campaign.recording))
        branch = branches.load_branches(campaign).get(key)
        if branch is None or branch.action == Action.OPT_OUT:
            return VoicePrompt((gettext(OPTED_OUT),))
        words = fill_in(branch.say, names)
        if branch.action == Action.AGENT and voice_agents.agent_of(campaign) is not None:
            return _sample_of_agent(campaign, names, (words,) if words else ())
        said = (words, gettext(_PREVIEWED.get(branch.action, "")))
        play = _address(branch.recording) if branch.action == Action.PLAY else ""
        return VoicePrompt(tuple(filter(None, said)), play=play)


def _sample_of_agent(
    campaign: Campaign, names: dict[str, str], say: tuple[str, ...]
) -> VoicePrompt | AgentConnection:
    agent = campaign.agent
    if problem := voice_agents.url_problem(campaign.organization_id, agent.url, is_stream=not agent.is_relay):
        return VoicePrompt((*say, problem))
    given = {"preview": "1", "campaign": campaign.code}
    return voice_agents.build(agent, given, {**names, **{name: name for name in agent.names}}, say)


_PREVIEWED: dict[str, str] = {
    Action.CONNECT: mark("Preview: a person would be called now."),
    Action.AGENT: mark("Preview: a voice agent would talk now."),
    Action.LATER: mark("Preview: the lead would be called again later."),
    Action.TEXT: mark("Preview: a text would be sent."),
}


def _open_lead_call(leg: Call) -> Call | None:
    """Return the call of the lead that a leg may talk to, or None if the lead has hung up."""
    return Call.objects.filter(pk=leg.subject_id, purpose=PURPOSE, ended_at=None).first()


def _speech(campaign: Campaign) -> Any:
    return speech_for(campaign.organization, campaign)


def _load_lead(call: Call) -> Lead:
    lead = fast_rows.fetch_by_pk(Lead, call.subject_id, "campaign", *(f"campaign__{name}" for name in SPOKEN_WITH))
    agent = fast_rows.fetch_one(VoiceAgent, "t.campaign_id = %s", [lead.campaign_id])
    Campaign._meta.get_field("agent").set_cached_value(lead.campaign, agent)
    return lead


def keys_of(campaign: Campaign) -> str:
    """Return the keys that a person may press in a call of the campaign."""
    return offered_keys(campaign, branches.load_branches(campaign))


def offered_keys(campaign: Campaign, found: Iterable[str]) -> str:
    """Return the keys that the prompt offers, given those with a branch."""
    return "".join(sorted({*found, *campaign.opt_out_key}))


def _with_query(url: str, **params: Any) -> str:
    parts = urlsplit(url)
    query = "&".join(filter(None, [parts.query, urlencode({k: v for k, v in params.items() if v != ""})]))
    return urlunsplit(parts._replace(query=query))


def register() -> None:
    """Register the lead purposes with telephony."""
    handlers.register_calls(PURPOSE, LeadCallHandler())
    handlers.register_calls(telephony.CONNECT, LegCallHandler())
    handlers.register_texts(PURPOSE, LeadSmsHandler(), hold=held_follow_ups.hold)
    handlers.register_inbound(PURPOSE, LeadInboundHandler(), by_strangers=True)
    voice_samples.register("campaign", _sample)
