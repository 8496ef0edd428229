"""Define the tables of leads: campaigns and leads with their switches, and the calling rules."""

from dispatch.leads.models.calling_rules import (
    CallingRule,
    ClosedDay,
    CustomerRate,
    DoNotCall,
    DoNotCallEverywhere,
    Holiday,
    RetryRule,
)
from dispatch.leads.models.campaigns import Campaign, EngineSwitch, Lead, LeadDispatch, every_day
from dispatch.leads.models.consents import Consent
from dispatch.leads.models.recordings import Recording, RecordingFile
from dispatch.leads.models.scripts import DispositionRule, KeyBranch
from dispatch.leads.models.voice_agents import VoiceAgent

__all__ = [
    "CallingRule",
    "Campaign",
    "ClosedDay",
    "Consent",
    "CustomerRate",
    "DispositionRule",
    "DoNotCall",
    "DoNotCallEverywhere",
    "EngineSwitch",
    "Holiday",
    "KeyBranch",
    "Lead",
    "LeadDispatch",
    "Recording",
    "RecordingFile",
    "RetryRule",
    "VoiceAgent",
    "every_day",
]
