"""The tables of leads: campaigns and leads with their switches, and the rulebook of when nobody may be called."""

from dispatch.leads.models.leads import Campaign, EngineSwitch, Lead, LeadDispatch, every_day
from dispatch.leads.models.rulebook import (
    CallingRule,
    ClosedDay,
    CustomerRate,
    DoNotCall,
    DoNotCallEverywhere,
    Holiday,
    RetryRule,
)

__all__ = [
    "CallingRule",
    "Campaign",
    "ClosedDay",
    "CustomerRate",
    "DoNotCall",
    "DoNotCallEverywhere",
    "EngineSwitch",
    "Holiday",
    "Lead",
    "LeadDispatch",
    "RetryRule",
    "every_day",
]
