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
from dispatch.leads.models.scripts import DispositionRule, KeyBranch

__all__ = [
    "CallingRule",
    "Campaign",
    "ClosedDay",
    "CustomerRate",
    "DispositionRule",
    "DoNotCall",
    "DoNotCallEverywhere",
    "EngineSwitch",
    "Holiday",
    "KeyBranch",
    "Lead",
    "LeadDispatch",
    "RetryRule",
    "every_day",
]
