"""What the pages of leads show, read in a few statements."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

from django.db.models import Count, QuerySet

from accounts.models import Organization
from dispatch.capacity.models import OutboundNumber
from dispatch.core import clock
from dispatch.leads import progress
from dispatch.leads.models import Campaign, Lead, LeadDispatch
from dispatch.leads.progress import Counted
from dispatch.leads.rules import telling
from dispatch.leads.rules.words import Outcome
from dispatch.telephony.models import Call

HOURS = 24
# What somebody was reached by, and what went wrong, for the colour of a bar.
_GOOD = {Outcome.ANSWERED}
_OFF = {Outcome.CANCELLED, Outcome.DO_NOT_CALL, Outcome.PRECHECK_FAILED, Outcome.DRY_RUN}


@dataclass
class CampaignLine:
    """A campaign with its counts. `share` of those that have ended, 0 to 100."""

    campaign: Campaign
    waiting: int = 0
    calling: int = 0
    finished: int = 0
    answered: int = 0

    @property
    def total(self) -> int:
        return self.waiting + self.calling + self.finished

    @property
    def share(self) -> float:
        return 100 * self.finished / self.total if self.total else 0.0

    @property
    def state(self) -> tuple[str, str]:
        if self.campaign.is_paused:
            return "late", "Paused"
        if self.calling:
            return "calling", "Calling"
        if self.waiting:
            return "waiting", "Waiting"
        return ("good", "Done") if self.total else ("off", "Empty")


@dataclass(frozen=True)
class Wait:
    """So many leads wait for this, the first of them until `until`."""

    words: str
    count: int
    until: datetime | None
    tone: str


@dataclass(frozen=True)
class Tally:
    """A bar: its words, its count, its share of the largest (0 to 100), its tone."""

    words: str
    count: int
    share: float
    tone: str = "calling"


@dataclass(frozen=True)
class NumberLine:
    """A number with its lines: used of there."""

    phone: str
    pool: str
    used: int
    there: int
    is_paused: bool

    @property
    def share(self) -> float:
        return min(100.0, 100 * self.used / self.there) if self.there else 0.0


@dataclass
class Overview:
    """Everything on the page. `dispatch`: the organization's switch (unsaved and off when it was never set)."""

    dispatch: LeadDispatch
    campaigns: list[CampaignLine]
    waits: list[Wait]
    outcomes: list[Tally]
    hours: list[Tally]
    numbers: list[NumberLine]
    waiting: int = 0
    due: int = 0
    calling: int = 0
    finished: int = 0
    answered: int = 0
    empty: bool = field(default=False)


def overview(organization: Organization) -> Overview:
    """The state of an organization's leads, now."""
    now = clock.now()
    hours = _next_hours(organization, now)
    counts = progress.counted(organization.pk, hours)
    lines = {
        campaign.pk: CampaignLine(campaign)
        for campaign in Campaign.objects.of(organization).select_related("pool").order_by("-id")
    }
    waits: dict[str, list[tuple[int, datetime]]] = {}
    outcomes: dict[str, int] = {}
    for one in counts:
        if (line := lines.get(one.campaign_id)) is None:
            continue  # of a campaign that came after
        if one.status == Lead.Status.BACKLOG:
            line.waiting += one.leads
            if one.leads > one.due:
                waits.setdefault(one.reason, []).append((one.leads - one.due, one.first))
        elif one.status == Lead.Status.PROCESSING:
            line.calling += one.leads
        else:
            line.finished += one.leads
            line.answered += one.leads if one.outcome == Outcome.ANSWERED else 0
            outcomes[one.outcome] = outcomes.get(one.outcome, 0) + one.leads
    due = sum(one.due for one in counts)
    found = Overview(
        dispatch=LeadDispatch.objects.of(organization).first() or LeadDispatch(organization=organization),
        campaigns=list(lines.values()),
        waits=_waits(waits, due, now),
        outcomes=_bars(sorted(outcomes.items(), key=lambda item: -item[1])),
        hours=_hours(organization, hours, counts),
        numbers=_numbers(organization),
        due=due,
    )
    for name in ("waiting", "calling", "finished", "answered"):
        setattr(found, name, sum(getattr(line, name) for line in found.campaigns))
    found.empty = not found.campaigns
    return found


def of_phone(organization: Organization, phone: str) -> QuerySet[Lead]:
    """The organization's leads of one phone (E.164), the newest first."""
    return Lead.objects.of(organization).filter(phone=phone).select_related("campaign__pool", "organization")


def calls_of(leads: Iterable[Lead]) -> dict[int, list[Call]]:
    """The calls made for these leads, by lead."""
    found: dict[int, list[Call]] = {lead.pk: [] for lead in leads}
    for call in Call.objects.filter(purpose="lead", subject_id__in=list(found)).order_by("attempt"):
        found[call.subject_id].append(call)
    return found


def _waits(found: dict[str, list[tuple[int, datetime]]], due: int, now: datetime) -> list[Wait]:
    """Those that are due first, then by how many."""
    rows = [Wait("Due now: waiting for a free line", due, None, "calling")] if due else []
    for reason, counted in found.items():
        count, first = sum(one for one, _ in counted), min(moment for _, moment in counted)
        words = telling.waits(reason) if reason else "Scheduled for later"
        held = first > now + timedelta(days=60)
        until = first if not held and first > now else None
        rows.append(Wait(words, count, until, "late" if held else "waiting"))
    return (
        rows[:1] + sorted(rows[1:], key=lambda row: -row.count)
        if due
        else sorted(rows, key=lambda row: -row.count)
    )


def _bars(counts: list[tuple[str, int]]) -> list[Tally]:
    most = max((count for _, count in counts), default=0)
    return [
        Tally(
            telling.how_it_ended(word).rstrip("."),
            count,
            100 * count / most,
            "good" if word in _GOOD else "off" if word in _OFF else "late",
        )
        for word, count in counts
    ]


def _next_hours(organization: Organization, now: datetime) -> list[datetime]:
    """When the present hour began where the organization is, each of the next, and the end of the last."""
    here = now.astimezone(ZoneInfo(organization.time_zone))
    since = timedelta(minutes=here.minute, seconds=here.second, microseconds=here.microsecond)
    first = here.astimezone(UTC) - since
    return [first + timedelta(hours=step) for step in range(HOURS + 1)]


def _hours(organization: Organization, hours: list[datetime], counts: Iterable[Counted]) -> list[Tally]:
    """The waiting leads of the next day, by the hour in which they are due; what is overdue is in the first."""
    zone = ZoneInfo(organization.time_zone)
    by_hour = [0] * HOURS
    for one in counts:
        if one.hour is not None and one.hour <= HOURS:
            by_hour[max(one.hour - 1, 0)] += one.leads
    most = max(by_hour)
    return [
        Tally(f"{hour.astimezone(zone):%H}", count, 100 * count / most if most else 0.0)
        for hour, count in zip(hours, by_hour, strict=False)
    ]


def _numbers(organization: Organization) -> list[NumberLine]:
    used = dict(
        Call.objects.of(organization)
        .filter(ended_at=None).values_list("number_id").annotate(count=Count("pk")).order_by()
    )  # fmt: skip
    return [
        NumberLine(
            str(one.phone),
            one.pool.name,
            used.get(one.pk, 0),
            one.max_channels,
            one.is_paused or one.pool.is_paused,
        )
        for one in OutboundNumber.objects.of(organization).select_related("pool").order_by("pool__name", "phone")
    ]
