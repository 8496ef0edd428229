"""Read the data of the pages of leads, in a few statements."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

from django.db.models import Count, QuerySet, Window
from django.db.models.functions import RowNumber

from accounts.models import Organization
from dispatch.capacity.models import OutboundNumber
from dispatch.core import clock
from dispatch.core.api.serializers import MAX_LATEST
from dispatch.core.languages import gettext as _
from dispatch.core.languages import mark
from dispatch.leads import progress
from dispatch.leads.explain import describe_engine_hold
from dispatch.leads.models import Campaign, Lead, LeadDispatch
from dispatch.leads.progress import LeadCounts
from dispatch.leads.rules import descriptions
from dispatch.leads.rules.states import Mode, Outcome
from dispatch.telephony.models import Call

HOURS = 24
# Outcomes by the color of their bar; all others are late.
_GOOD = {Outcome.ANSWERED}
_OFF = {Outcome.CANCELLED, Outcome.DO_NOT_CALL, Outcome.PRECHECK_FAILED, Outcome.NO_CONSENT, Outcome.DRY_RUN}
# Outcomes of leads without a call.
_NOT_CALLED = {*_OFF, Outcome.OUTSIDE_WINDOW, Outcome.INVALID_NUMBER, Outcome.NOT_PLACED}


@dataclass
class CampaignRow:
    """A campaign with its counts.

    `called`: finished leads that were called. `share`: percentage of finished leads, 0 to 100. `mode`: the
    organization's mode. `hold`: on the campaign's page, the words for a switch of the organization or of all
    organizations that holds its leads, or "".
    """

    campaign: Campaign
    mode: str
    waiting: int = 0
    calling: int = 0
    finished: int = 0
    answered: int = 0
    called: int = 0
    hold: str = ""

    def add(self, counted: LeadCounts) -> None:
        """Add a group of leads to the counts."""
        if counted.status == Lead.Status.BACKLOG:
            self.waiting += counted.leads
        elif counted.status == Lead.Status.PROCESSING:
            self.calling += counted.leads
        else:
            self.finished += counted.leads
            self.answered += counted.leads if counted.outcome == Outcome.ANSWERED else 0
            self.called += 0 if counted.outcome in _NOT_CALLED else counted.leads

    @property
    def total(self) -> int:
        return self.waiting + self.calling + self.finished

    @property
    def share(self) -> float:
        return 100 * self.finished / self.total if self.total else 0.0

    @property
    def state(self) -> tuple[str, str]:
        if self.campaign.is_paused:
            return "late", mark("Paused")
        if self.calling:
            return "calling", mark("Calling")
        if not self.campaign.has_words:
            return "attention", mark("No script")
        if self.waiting:
            return "waiting", mark("Dry run") if self.mode == Mode.DRY_RUN else mark("Waiting")
        if self.called:
            return "good", mark("Done")
        return "idle", mark("No calls made") if self.total else mark("Empty")


@dataclass(frozen=True)
class Wait:
    """The number of leads that wait for one reason. `until`: when the first of them is tried next."""

    words: str
    count: int
    until: datetime | None
    tone: str


@dataclass(frozen=True)
class BarRow:
    """A bar: its label, its count, its length relative to the longest bar (0 to 100), its tone."""

    words: str
    count: int
    share: float
    tone: str = "calling"


@dataclass(frozen=True)
class NumberRow:
    """A number with its lines, `used` of `there`."""

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
    """All data of the page.

    `dispatch`: the organization's switch (unsaved and off if it was never set). `engine_hold`: the words for the
    switch that holds the due leads of all organizations, or "".
    """

    dispatch: LeadDispatch
    campaigns: list[CampaignRow]
    waits: list[Wait]
    outcomes: list[BarRow]
    hours: list[BarRow]
    numbers: list[NumberRow]
    waiting: int = 0
    due: int = 0
    calling: int = 0
    finished: int = 0
    answered: int = 0
    engine_hold: str = ""
    empty: bool = field(default=False)


def load_overview(organization: Organization) -> Overview:
    """Load the current state of an organization's leads."""
    now = clock.now()
    hours = next_hours(organization, now)
    counts = progress.count_leads(organization.pk, hours)
    dispatch = LeadDispatch.objects.of(organization).first() or LeadDispatch(organization=organization)
    lines = {
        campaign.pk: CampaignRow(campaign, dispatch.mode)
        for campaign in Campaign.objects.of(organization).select_related("pool", "agent").order_by("-id")
    }
    waits: dict[str, list[tuple[int, datetime]]] = {}
    outcomes: dict[str, int] = {}
    for counted in counts:
        if (line := lines.get(counted.campaign_id)) is None:
            continue  # its campaign was added meanwhile
        line.add(counted)
        if counted.status == Lead.Status.BACKLOG:
            if counted.leads > counted.due:
                waits.setdefault(counted.reason, []).append((counted.leads - counted.due, counted.first))
        elif counted.status == Lead.Status.FINISHED:
            outcomes[counted.outcome] = outcomes.get(counted.outcome, 0) + counted.leads
    due = sum(counted.due for counted in counts)
    hold = describe_engine_hold()
    overview = Overview(
        dispatch=dispatch,
        campaigns=list(lines.values()),
        waits=_waits(waits, due, now, hold),
        outcomes=build_bars(sorted(outcomes.items(), key=lambda item: -item[1])),
        hours=_hours(organization, hours, counts),
        numbers=_numbers(organization),
        due=due,
        engine_hold=hold,
    )
    for name in ("waiting", "calling", "finished", "answered"):
        setattr(overview, name, sum(getattr(line, name) for line in overview.campaigns))
    overview.empty = not overview.campaigns
    return overview


def leads_of_phone(organization: Organization, phone: str) -> QuerySet[Lead]:
    """Return the organization's leads with that phone number (E.164)."""
    return Lead.objects.of(organization).filter(phone=phone).select_related("campaign__pool", "organization")


def calls_of(leads: Iterable[Lead]) -> dict[int, list[Call]]:
    """Return the last MAX_LATEST calls made for each of these leads, in order: lead id → calls."""
    calls: dict[int, list[Call]] = {lead.pk: [] for lead in leads}
    position = Window(RowNumber(), partition_by="subject_id", order_by="-attempt")
    made = Call.objects.filter(purpose="lead", subject_id__in=list(calls)).annotate(position=position)
    for call in made.filter(position__lte=MAX_LATEST).order_by("attempt"):
        calls[call.subject_id].append(call)
    return calls


def _waits(reasons: dict[str, list[tuple[int, datetime]]], due: int, now: datetime, hold: str) -> list[Wait]:
    """Return the waits: due leads first, then by count. `hold`: why no due lead is called, or ""."""
    waiting = (hold, "late") if hold else (_("Waiting for a line"), "calling")
    rows = [Wait(waiting[0], due, None, waiting[1])] if due else []
    for reason, counted in reasons.items():
        count, first = sum(number for number, _ in counted), min(moment for _, moment in counted)
        words = descriptions.describe_waiting(reason)
        held = first > now + timedelta(days=60)
        until = first if not held and first > now else None
        rows.append(Wait(words, count, until, "late" if held else "waiting"))
    return (
        rows[:1] + sorted(rows[1:], key=lambda row: -row.count)
        if due
        else sorted(rows, key=lambda row: -row.count)
    )


def build_bars(counts: list[tuple[str, int]]) -> list[BarRow]:
    """Return a bar for each outcome and its count."""
    most = max((count for _, count in counts), default=0)
    return [
        BarRow(
            descriptions.describe_outcome(word).rstrip("."),
            count,
            100 * count / most,
            "good" if word in _GOOD else "off" if word in _OFF else "late",
        )
        for word, count in counts
    ]


def next_hours(organization: Organization, now: datetime) -> list[datetime]:
    """Return the start of the current hour in the organization's time zone and the starts of the next `HOURS`."""
    here = now.astimezone(ZoneInfo(organization.time_zone))
    since = timedelta(minutes=here.minute, seconds=here.second, microseconds=here.microsecond)
    first = here.astimezone(UTC) - since
    return [first + timedelta(hours=step) for step in range(HOURS + 1)]


def _hours(organization: Organization, hours: list[datetime], counts: Iterable[LeadCounts]) -> list[BarRow]:
    """Count the leads that are due in the next day by hour. Overdue leads count in the first hour."""
    zone = ZoneInfo(organization.time_zone)
    by_hour = [0] * HOURS
    for counted in counts:
        if counted.hour is not None and counted.hour <= HOURS:
            by_hour[max(counted.hour - 1, 0)] += counted.leads
    most = max(by_hour)
    return [
        BarRow(f"{hour.astimezone(zone):%H}", count, 100 * count / most if most else 0.0)
        for hour, count in zip(hours, by_hour, strict=False)
    ]


def _numbers(organization: Organization) -> list[NumberRow]:
    used = dict(
        Call.objects.of(organization)
        .filter(ended_at=None).values_list("number_id").annotate(count=Count("pk")).order_by()
    )  # fmt: skip
    return [
        NumberRow(
            str(number.phone),
            number.pool.name,
            used.get(number.pk, 0),
            number.max_channels,
            number.is_paused or number.pool.is_paused,
        )
        for number in OutboundNumber.objects.of(organization)
        .select_related("pool")
        .order_by("pool__name", "phone")
    ]
