"""What the engine hands to the gates, and what they answer."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import date, datetime, time
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from dispatch.leads.rules.words import Outcome, Reason

if TYPE_CHECKING:
    from dispatch.leads.rules.retries import Retry


class LeadFacts(NamedTuple):
    """A lead as it was locked. Moments are aware. `attempts` are those that count: a call that the provider never
    took does not. `token` is the attempt number of its newest Call, whatever became of it."""

    id: int
    organization_id: int
    campaign_id: int
    phone: str
    lat: float | None
    lng: float | None
    customer: str
    external_id: str
    attempts: int
    token: int
    wanted_at: datetime  # when it was first to be called
    due_at: datetime
    reason: str


@dataclass(frozen=True, slots=True)
class Go:
    """Call it now."""


@dataclass(frozen=True, slots=True)
class Defer:
    """Not before `until`."""

    until: datetime
    reason: Reason


@dataclass(frozen=True, slots=True)
class End:
    """Never again."""

    outcome: Outcome
    reason: Reason


Verdict = Go | Defer | End
GO = Go()


class CampaignFacts(Protocol):
    """What the engine itself reads of a campaign; the gates' own class adds what they need."""

    id: int
    organization_id: int
    pool_id: int
    mode: str  # words.Mode, of its organization
    ring_timeout_s: int
    time_limit_s: int
    detect_machines: bool
    precheck_url: str  # empty: nobody is asked
    dial: Mapping[str, Any]  # said again in the Call's context


@dataclass(frozen=True)
class CampaignRules:
    """All that the gates know of a campaign, with its organization's switches and the countries it may call.

    `week`: (weekday from Monday = 0, from, until) in the called person's local time; `closed_days`: the dates on
    which it calls nobody anywhere. `retries`: what follows an outcome; one that is not there ends the lead."""

    id: int
    organization_id: int
    pool_id: int
    mode: str
    ring_timeout_s: int
    time_limit_s: int
    detect_machines: bool
    precheck_url: str
    dial: Mapping[str, Any]
    is_paused: bool
    organization_paused: bool
    countries: Collection[str]
    customer: str
    week: tuple[tuple[int, time, time], ...]
    keeps_holidays: bool
    closed_days: frozenset[date]
    patience_h: int
    max_attempts: int
    max_attempts_24h: int
    retries: Mapping[Outcome, Retry]
    code: str = ""
    precheck_secret: str = ""  # sealed, as its column holds it
    precheck_timeout_s: float = 2.0
    precheck_without_answer: str = "later"


class Context(Protocol):
    """What `gating.read` has read for a batch: the campaigns by id, and whatever else the gates need.

    `stopped`: the kill switch is on, or dispatch cannot go on for another reason; nobody is called."""

    now: datetime
    stopped: bool
    campaigns: Mapping[int, CampaignFacts]
