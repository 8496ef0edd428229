"""Build the timeline: the shifts and jobs of each technician by day, and the unassigned jobs."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from datetime import UTC, date, datetime, time, timedelta
from itertools import pairwise
from zoneinfo import ZoneInfo

from django.db.models import Exists, OuterRef, Q, QuerySet

from accounts.models import Organization
from dispatch.console.board.cards import received_at, state_of, with_card_data
from dispatch.core import clock
from dispatch.core.languages import date_words
from dispatch.jobs.models import Job, Offer
from dispatch.jobs.rules.workload import USUAL_MINUTES
from dispatch.technicians.models import Shift, Technician

# Technicians and unassigned jobs on one page.
MAX_ROWS, MAX_UNASSIGNED = 100, 40
# The hours that a day always shows.
FIRST_HOUR, LAST_HOUR = 7, 19
SHORTEST = timedelta(minutes=15)


@dataclass(frozen=True)
class Bar:
    """One job of a technician. `place` and `travel`: where it and the trip to it are in the row, as CSS.

    `is_planned`: the work has not begun, so the bar can be moved. `lane`: 0 for the first line of the row.
    `begins`: the local time of its start, or the date if that is before the day of the row.
    """

    job: Job
    start: datetime
    end: datetime
    tone: str
    state: str
    is_planned: bool
    lane: int = 0
    place: str = ""
    travel: str = ""
    begins: str = ""

    @property
    def minutes(self) -> int:
        return round((self.end - self.start).total_seconds() / 60)

    @property
    def window_minutes(self) -> int:
        return _window_minutes(self.job)


@dataclass(frozen=True)
class Row:
    """One technician on one day. `shifts`: their places, as CSS; `hours`: the same in words.

    `is_anytime`: the technician has no shifts and works whenever on duty.
    """

    technician: Technician
    shifts: list[str]
    hours: str
    bars: list[Bar]
    is_anytime: bool

    @property
    def lanes(self) -> int:
        return max((bar.lane for bar in self.bars), default=0) + 1


@dataclass(frozen=True)
class UnassignedJob:
    """An open job without a technician. `minutes`: its expected duration."""

    job: Job
    tone: str
    state: str
    since: datetime
    minutes: int

    @property
    def window_minutes(self) -> int:
        return _window_minutes(self.job)


@dataclass(frozen=True)
class Day:
    """One day in local time. `hours`: (label, place). `now_at`: the place of the current time, or ""."""

    day: date
    begin: datetime
    end: datetime
    hours: list[tuple[str, str]]
    rows: list[Row]
    now_at: str
    is_today: bool


@dataclass
class UnassignedJobs:
    """The unassigned jobs. `items` are the most urgent ones; there are `more`."""

    items: list[UnassignedJob] = field(default_factory=list)
    more: int = 0


def load_days(organization: Organization, first: date, count: int, who: str = "") -> tuple[list[Day], int]:
    """Return `count` days with the same technicians in the same order, and how many technicians are not shown.

    `who`: part of the technicians' names. Technicians with jobs or a shift come first. A deactivated technician is
    shown while jobs are assigned to them.
    """
    zone = ZoneInfo(organization.time_zone)
    midnights = [datetime.combine(first + timedelta(days=nth), time(), tzinfo=zone) for nth in range(count + 1)]
    has_jobs = Exists(Job.objects.filter(technician=OuterRef("pk"), status=Job.Status.ASSIGNED))
    named = Technician.objects.of(organization).filter(Q(is_active=True) | has_jobs)
    if who:
        named = named.filter(name__icontains=who)
    technicians = list(named.order_by("name")[: MAX_ROWS * 5])
    bars = _load_bars(organization, midnights[0], midnights[-1], [technician.pk for technician in technicians])
    shifts: dict[int, list[Shift]] = defaultdict(list)
    for shift in Shift.objects.filter(technician__in=technicians):
        shifts[shift.technician_id].append(shift)
    technicians.sort(key=lambda row: (not bars[row.pk], not shifts[row.pk] and not row.on_duty))
    shown = technicians[:MAX_ROWS]
    hidden = named.count() - len(shown)
    return [_build_day(begin, end, shown, shifts, bars) for begin, end in pairwise(midnights)], hidden


def load_unassigned(organization: Organization, first: date, last: date) -> UnassignedJobs:
    """Return the open jobs without a technician whose arrival window begins from `first` until before `last`.

    If today is within, also those without a window, and those whose window has begun.
    """
    zone = ZoneInfo(organization.time_zone)
    begin, end = (datetime.combine(day, time(), tzinfo=zone) for day in (first, last))
    open_jobs = with_card_data(organization).filter(status__in=[Job.Status.DISPATCHING, Job.Status.PENDING])
    wanted = Q(window_start__gte=begin, window_start__lt=end)
    if begin <= clock.now() < end:
        wanted |= Q(window_start=None) | Q(window_start__lt=begin)
    jobs = open_jobs.filter(wanted).order_by("priority", "received_at", "pk")
    shown = list(jobs[:MAX_UNASSIGNED])
    live: dict[int, list[Offer]] = defaultdict(list)
    for offer in Offer.objects.filter(job__in=shown, status=Offer.Status.PENDING).order_by("attempt"):
        live[offer.job_id].append(offer)
    items = []
    for job in shown:
        tone, state = state_of(job, live[job.pk])
        items.append(UnassignedJob(job, tone, state, received_at(job), minutes_of(job)))
    return UnassignedJobs(items, max(0, jobs.count() - len(items)) if len(items) == MAX_UNASSIGNED else 0)


def minutes_of(job: Job) -> int:
    """Return how long the job should take, in minutes."""
    return job.expected_minutes or job.service_type.expected_minutes or USUAL_MINUTES


def _window_minutes(job: Job) -> int:
    window = job.arrival_window
    return round((window.end - window.start).total_seconds() / 60) if window else 0


def _load_bars(
    organization: Organization, begin: datetime, end: datetime, technician_ids: list[int]
) -> dict[int, list[Bar]]:
    """Return the bars of each technician that overlap the time, in order."""
    bars: dict[int, list[Bar]] = defaultdict(list)
    for job in _jobs_between(organization, begin, end).filter(technician__in=technician_ids):
        bar = _bar_of(job, clock.now())
        if bar.start < end and bar.end > begin:
            assert job.technician_id is not None
            bars[job.technician_id].append(bar)
    for row in bars.values():
        row.sort(key=lambda bar: (bar.start, bar.job.pk))
    return bars


def _jobs_between(organization: Organization, begin: datetime, end: datetime) -> QuerySet:
    """Select the assigned jobs, and the completed ones that may have taken place in this time."""
    done = Q(status=Job.Status.COMPLETED, ended_at__gte=begin, assigned_at__lt=end)
    return with_card_data(organization).filter(Q(status=Job.Status.ASSIGNED) | done)


def _bar_of(job: Job, now: datetime) -> Bar:
    """Return when the job took or should take place. A job that should have begun is planned to begin now."""
    tone, state = state_of(job)
    length = timedelta(minutes=minutes_of(job))
    assert job.assigned_at is not None
    if job.ended_at is not None:
        start = job.started_at or job.on_the_way_at or job.assigned_at
        return Bar(job, start, max(job.ended_at, start + SHORTEST), "off", state, is_planned=False)
    if job.started_at is not None:
        return Bar(job, job.started_at, max(job.started_at + length, now), tone, state, is_planned=False)
    start = max(job.eta_at or job.window_start or job.assigned_at, now)
    return Bar(job, start, start + length, tone, state, is_planned=True)


def _build_day(
    begin: datetime,
    end: datetime,
    shown: list[Technician],
    shifts: dict[int, list[Shift]],
    bars: dict[int, list[Bar]],
) -> Day:
    today = clock.now().astimezone(begin.tzinfo)
    spans = {row.pk: _shift_spans(shifts[row.pk], row.time_zone, begin, end) for row in shown}
    own = {row.pk: [bar for bar in bars[row.pk] if bar.start < end and bar.end > begin] for row in shown}
    moments = [moment for row in spans.values() for pair in row for moment in pair]
    moments += [moment for row in own.values() for bar in row for moment in (bar.start, bar.end)]
    first, last = _shown_hours(moments, begin, end)
    rows = [
        Row(
            row,
            [_place(start, stop, first, last) for start, stop in spans[row.pk]],
            ", ".join(f"{_wall(start, begin)}–{_wall(stop, begin)}" for start, stop in spans[row.pk]),
            _placed(own[row.pk], first, last),
            not shifts[row.pk],
        )
        for row in shown
    ]
    is_today = begin <= today < end
    now_at = _place(today, today, first, last) if is_today and first <= today <= last else ""
    return Day(begin.date(), first, last, _hour_marks(first, last), rows, now_at, is_today)


def _shift_spans(
    shifts: Iterable[Shift], zone: str, begin: datetime, end: datetime
) -> list[tuple[datetime, datetime]]:
    """Return when the technician works on this day, as moments within it. `zone`: the technician's, or empty."""
    local = ZoneInfo(zone) if zone else begin.tzinfo
    spans = []
    for shift in shifts:
        for day in (begin.date() + timedelta(days=nth) for nth in (-1, 0, 1)):
            if shift.weekday != day.weekday():
                continue
            start = datetime.combine(day, shift.starts, tzinfo=local)
            last = day if shift.ends > shift.starts else day + timedelta(days=1)
            stop = datetime.combine(last, shift.ends, tzinfo=local)
            if start < end and stop > begin:
                spans.append((max(start, begin), min(stop, end)))
    return sorted(spans)


def _shown_hours(moments: list[datetime], begin: datetime, end: datetime) -> tuple[datetime, datetime]:
    """Return the first and the last full hour to show: the usual ones, widened to hold every moment of the day."""
    first = begin.replace(hour=FIRST_HOUR)
    last = begin.replace(hour=LAST_HOUR)
    for moment in moments:
        local = min(max(moment.astimezone(begin.tzinfo), begin), end)
        first = min(first, local.replace(minute=0, second=0, microsecond=0))
        whole = local.replace(minute=0, second=0, microsecond=0)
        last = max(last, whole if whole == local else min(whole + timedelta(hours=1), end))
    return first, last


def _begins(start: datetime, day: datetime) -> str:
    """Return when a bar of the day begins: "23:43", or "Nov 29" if that is an earlier day."""
    local = start.astimezone(day.tzinfo)
    return _wall(start, day) if local.date() >= day.date() else date_words(local, weekday=False)


def _wall(moment: datetime, day: datetime) -> str:
    return f"{moment.astimezone(day.tzinfo):%H:%M}"


def _hour_marks(first: datetime, last: datetime) -> list[tuple[str, str]]:
    count = round((last.timestamp() - first.timestamp()) / 3600)
    hours = [first.astimezone(UTC) + timedelta(hours=nth) for nth in range(count)]
    return [(_wall(moment, first), _place(moment, moment, first, last)) for moment in hours]


def _place(start: datetime, end: datetime, first: datetime, last: datetime, lane: int = 0) -> str:
    """Return where a time is in a row from `first` to `last`, as CSS properties."""
    begin, shown = first.timestamp(), last.timestamp() - first.timestamp()
    left, right = (min(max((moment.timestamp() - begin) / shown * 100, 0), 100) for moment in (start, end))
    return f"--l:{left:.3f}%;--w:{right - left:.3f}%;--lane:{lane}"


def _placed(bars: list[Bar], first: datetime, last: datetime) -> list[Bar]:
    """Return the bars with their places; those that overlap are in different lanes."""
    placed: list[Bar] = []
    free_from: list[datetime] = []  # the end of the last bar of each lane
    for bar in bars:
        lane = next((nth for nth, end in enumerate(free_from) if end <= bar.start), len(free_from))
        free_from[lane : lane + 1] = [bar.end]
        trip = bar.job.on_the_way_at if bar.job.started_at is None and bar.job.eta_at is not None else None
        travel = _place(trip, bar.start, first, last, lane) if trip is not None and trip < bar.start else ""
        place = _place(bar.start, bar.end, first, last, lane)
        placed.append(replace(bar, lane=lane, place=place, travel=travel, begins=_begins(bar.start, first)))
    return placed
