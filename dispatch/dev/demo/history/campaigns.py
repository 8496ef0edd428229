"""Write two campaigns that are calling: called leads of the last weeks, and open leads for the next hours."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, time, timedelta
from typing import Any
from zoneinfo import ZoneInfo

from dispatch.capacity.models import DispatchPool, OutboundNumber
from dispatch.dev.demo.history.calls import CallWriter, PastCall
from dispatch.dev.demo.history.rows import Batch
from dispatch.leads.models import Campaign, Lead, LeadDispatch
from dispatch.leads.services.intake import NewLead, accept_leads

NUMBER = "+14805550110"
LINES = 4
FINISHED, OPEN, WEEKS = 420, 290, 4
OPEN_FOR_H = 8.0
# Outcome of one call: shares.
OUTCOMES = {"answered": 52, "no_answer": 24, "voicemail": 14, "busy": 6, "failed": 4}
MAX_ATTEMPTS = 3
# The reason of a lead that ended without being answered.
EXHAUSTED = ("attempts_exhausted", "most_attempts")


@dataclass(frozen=True)
class Place:
    """An area in which a campaign calls. Positions are degrees."""

    area_code: str
    lat: float
    lng: float
    zone: str


PHOENIX = (
    Place("623", 33.55, -112.25, "America/Phoenix"),
    Place("520", 32.22, -110.96, "America/Phoenix"),
    Place("928", 34.54, -112.47, "America/Phoenix"),
)
# From Maine to Hawaii, so that it is daytime somewhere for most of the day.
NATIONWIDE = (
    Place("207", 43.66, -70.26, "America/New_York"),
    Place("305", 25.77, -80.19, "America/New_York"),
    Place("312", 41.88, -87.63, "America/Chicago"),
    Place("512", 30.27, -97.74, "America/Chicago"),
    Place("303", 39.74, -104.99, "America/Denver"),
    Place("206", 47.61, -122.33, "America/Los_Angeles"),
    Place("415", 37.77, -122.42, "America/Los_Angeles"),
    Place("808", 21.31, -157.86, "Pacific/Honolulu"),
)


@dataclass(frozen=True)
class Plan:
    """A campaign, and where it calls."""

    code: str
    name: str
    script: str
    keys: dict[str, str]
    places: Sequence[Place]


PLANS = (
    Plan(
        "season-check", "Season check reminders",
        "Hello {name}, this is Desert Air and Plumbing.\nYour yearly system check is due.\n"
        "Press 1 to have us call you for an appointment, or 2 if you already have one.",
        {"1": "Thank you. We will call you tomorrow.", "2": "Thank you. Goodbye."}, PHOENIX,
    ),
    Plan(
        "filter-renewals", "Filter subscription renewals",
        "Hello {name}, your air filter subscription at Desert Air ends this month.\n"
        "Press 1 to renew it for a year, or 2 to let it end.",
        {"1": "Thank you. Your filters are on their way.", "2": "All right. Goodbye."}, NATIONWIDE,
    ),
)  # fmt: skip
NAMES = (
    "Alex",
    "Bianca",
    "Carlos",
    "Dolores",
    "Emil",
    "Fatima",
    "Gideon",
    "Hana",
    "Isaac",
    "Joy",
    "Kemal",
    "Lena",
)


def write_campaigns(batch: Batch, chance: random.Random, now: datetime) -> None:
    """Collect the called leads, and create the campaigns with their open leads."""
    organization = batch.organization
    pool = _pool(batch)
    LeadDispatch.objects.update_or_create(
        organization=organization, defaults={"mode": LeadDispatch.Mode.LIVE, "is_paused": False}
    )
    calls = CallWriter(batch, chance, pool)
    for plan in PLANS:
        created = now - timedelta(weeks=WEEKS, days=2)
        campaign = Campaign.objects.create(
            organization=organization, code=plan.code, name=plan.name, pool=pool, script=plan.script,
            keys=plan.keys, ring_timeout_s=20, time_limit_s=90, max_attempts=MAX_ATTEMPTS, created_at=created,
        )  # fmt: skip
        phones = _phones(chance, plan.places)
        for _ in range(FINISHED):
            phone, place = next(phones)
            _write_finished_lead(batch, chance, calls, campaign, phone, place, now)
        phones = _phones(chance, plan.places)
        leads = []
        for n in range(OPEN):
            phone, place = next(phones)
            # Every few seconds at first, then less often, so that the campaign is calling when a person looks.
            due_at = now + timedelta(hours=OPEN_FOR_H * (n / OPEN) ** 2)
            data = {"name": chance.choice(NAMES)}
            leads.append(NewLead(phone, due_at, place.lat, place.lng, data=data))
        accept_leads(campaign, leads)


def _pool(batch: Batch) -> DispatchPool:
    """Create the campaigns' pool, with a dedicated number, so that campaigns leave the jobs' lines free."""
    pool, _ = DispatchPool.objects.get_or_create(
        organization=batch.organization, code="campaigns", defaults={"name": "Campaigns", "concurrency": LINES}
    )
    main = OutboundNumber.objects.of(batch.organization).filter(pool__code="main").order_by("pk")[0]
    OutboundNumber.objects.get_or_create(
        organization=batch.organization,
        account=main.account,
        phone=NUMBER,
        defaults={"pool": pool, "name": "Campaigns", "max_channels": LINES},
    )
    return pool


def _phones(chance: random.Random, places: Sequence[Place]) -> Any:
    """Yield fictional numbers with their places, in random order; each once before any is repeated."""
    while True:
        numbers = [(f"+1{place.area_code}555{n:04d}", place) for place in places for n in range(100, 200)]
        chance.shuffle(numbers)
        yield from numbers


def _write_finished_lead(
    batch: Batch,
    chance: random.Random,
    calls: CallWriter,
    campaign: Campaign,
    phone: str,
    place: Place,
    now: datetime,
) -> None:
    """Collect a lead that was called until it was answered, or as often as the campaign allows."""
    wanted = _office_time(chance, now - timedelta(days=chance.uniform(1.5, WEEKS * 7)), place)
    lead = batch.add(
        Lead, campaign_id=campaign.pk, phone=phone, lat=place.lat, lng=place.lng,
        data={"name": chance.choice(NAMES)}, status="finished", wanted_at=wanted, due_at=wanted,
        created_at=wanted - timedelta(hours=2),
    )  # fmt: skip
    batch.event(wanted - timedelta(hours=2), "lead.created", lead["id"], campaign_id=campaign.pk)
    at = wanted
    for attempt in range(1, MAX_ATTEMPTS + 1):
        (outcome,) = chance.choices(list(OUTCOMES), list(OUTCOMES.values()))
        ringing = at + timedelta(seconds=1.2)
        is_answered = outcome in ("answered", "voicemail")
        answered = ringing + timedelta(seconds=chance.uniform(4, 16)) if is_answered else None
        ended = (answered or ringing) + timedelta(seconds=chance.uniform(12, 40) if answered else 20)
        key = chance.choices(("1", "2", ""), (5, 3, 2))[0] if outcome == "answered" else ""
        key_at = ended - timedelta(seconds=4)
        call = PastCall(phone, outcome, at, ringing, answered, ended, key, key_at)
        call_id = calls.write("lead", lead["id"], call, attempt=attempt, context={"campaign_id": campaign.pk})
        about: dict[str, Any] = {"call": call_id, "attempt": attempt, "campaign_id": campaign.pk}
        batch.event(at, "lead.processing", lead["id"], call_status="requesting", **about)
        lead.update(attempts=attempt, token=attempt, last_outcome=outcome)
        if outcome == "answered":
            lead.update(outcome="answered", reason="called", finished_at=ended)
            batch.event(ended, "lead.finished", lead["id"], outcome="answered", reason="called", **about)
            return
        if attempt < MAX_ATTEMPTS:
            at = _office_time(chance, ended + timedelta(hours=chance.uniform(1, 8)), place)
            if at > now - timedelta(minutes=10):
                break
            batch.event(
                ended, "lead.again", lead["id"], outcome=outcome, reason="retry", due_at=at.isoformat(), **about
            )
    lead.update(outcome=EXHAUSTED[0], reason=EXHAUSTED[1], finished_at=ended)
    batch.event(ended, "lead.finished", lead["id"], outcome=EXHAUSTED[0], reason=EXHAUSTED[1], **about)


def _office_time(chance: random.Random, at: datetime, place: Place) -> datetime:
    """Return `at`, or the first later time at which calls are usual there."""
    local = at.astimezone(ZoneInfo(place.zone))
    if 9 <= local.hour < 20:
        return at
    day = local.date() + timedelta(days=local.hour >= 20)
    return datetime.combine(day, time(9, chance.randrange(60)), ZoneInfo(place.zone))
