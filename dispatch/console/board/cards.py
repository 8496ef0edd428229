"""Build the board's columns and job cards, with a fixed number of queries."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from types import MappingProxyType
from typing import Any
from zoneinfo import ZoneInfo

from django.db.models import Count, Exists, OuterRef, Q, QuerySet
from django.db.models.functions import Coalesce

from accounts.models import Organization
from dispatch.console.board.filters import Filters
from dispatch.console.board.thread import unanswered_texts
from dispatch.core import clock
from dispatch.core.languages import gettext as _
from dispatch.core.languages import mark
from dispatch.jobs import policies, rules
from dispatch.jobs.models import OVERDUE, UNINFORMED_NOTICES, Candidate, Job, JobNote, Offer
from dispatch.jobs.rules.arrival_window import local_moment
from dispatch.jobs.rules.customer_phrases import local_time
from dispatch.technicians.models import Technician
from dispatch.technicians.rules import distance_words

PAGE = 40
# A full refetch returns at most this many cards of a column, however many the page has loaded.
MAX_REFETCHED = 200
DONE_FOR = timedelta(hours=24)
COLUMNS = {
    "new": (mark("New"), mark("New requests; no technician has been called yet")),
    "calling": (mark("Calling"), mark("Jobs being offered to technicians right now")),
    "assigned": (mark("Assigned"), mark("Jobs that a technician accepted")),
    "done": (mark("Done"), mark("Completed or canceled in the last 24 hours")),
}
EMPTY = {
    "new": mark("New requests appear here."),
    "calling": mark("Jobs being offered to technicians right now appear here."),
    "assigned": mark("A job moves here when a technician accepts it or you assign it."),
    "done": mark("Completed and canceled jobs from the last 24 hours appear here."),
}
# Above every id, and after every moment in microseconds since 1970.
_LATEST_ID = 10_000_000_000_000
_LATEST_US = 10_000_000_000_000_000
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)
# The columns that are sorted by a moment, the latest first. The others are sorted by priority.
_MOMENTS = {"assigned": "assigned_at", "done": "ended_at"}


@dataclass(frozen=True)
class LiveOffer:
    """A current offer, with its technician and deadline. An emergency can have several.

    `has_line`: a line is reserved, so a call that does not ring yet is requested, or its fate is unknown.
    """

    offer: Offer
    name: str
    has_line: bool

    @property
    def words(self) -> str:
        if self.offer.missed_at:
            return _("missed call, can still reply")
        if self.offer.answered_at:
            return _("answered")
        if self.offer.ringing_since:
            return _("ringing")
        return _("ringing not confirmed") if self.has_line else _("waiting for a line")

    @property
    def counts_down(self) -> bool:
        return self.offer.ringing_since is not None


@dataclass(frozen=True)
class Card:
    """One job.

    `tone` and `state`: its badge. `sort`: its place in the column, as an ascending sort key. `attempts` of
    `attempts_of`: offers. `live`: the current offers. `next_name`: who is next: a technician, or a wider round.
    `text`: the technician whose text is unanswered. `notes`: how many notes colleagues wrote.
    """

    job: Job
    column: str
    sort: str
    tone: str
    state: str
    attempts: int
    attempts_of: int
    live: tuple[LiveOffer, ...] = ()
    next_name: str = ""
    text: str = ""
    notes: int = 0

    @property
    def since(self) -> datetime:
        """Return the time that the card's age counts from."""
        if self.column == "done" and self.job.ended_at:
            return self.job.ended_at
        return received_at(self.job)


@dataclass(frozen=True)
class Column:
    """One column of the board. `count`: its jobs from the first of `cards` on."""

    name: str
    title: str
    help: str
    empty: str
    count: int
    cards: list[Card]

    @property
    def more(self) -> int:
        """Return the number of jobs that follow the cards."""
        return max(0, self.count - len(self.cards))

    @property
    def last(self) -> str:
        """Return the sort key of the last card, after which the next ones begin."""
        return self.cards[-1].sort if self.cards else ""


def with_card_data(organization: Organization) -> QuerySet:
    """Select the organization's jobs with everything a card needs."""
    jobs = Job.objects.of(organization).select_related(
        "service_type", "technician", "organization", "duplicate_of"
    )
    return jobs.annotate(received_at=Coalesce("submission__created_at", "created_at"))


def with_action_data(organization: Organization) -> QuerySet:
    """Select the organization's jobs with everything a card and `allowed_actions` need."""
    return with_card_data(organization).prefetch_related(UNINFORMED_NOTICES)


def received_at(job: Job) -> datetime:
    """Return when the customer sent the request."""
    return getattr(job, "received_at", job.created_at)


def needing_attention(jobs: Any) -> QuerySet:
    """Select the jobs that need attention, as defined by the jobs slice."""
    attention: QuerySet = jobs.needing_attention()
    return attention


def column_filters() -> dict[str, Q]:
    """Return the condition on jobs for each column."""
    called = Exists(Offer.objects.filter(job=OuterRef("pk")))
    return {
        "new": Q(status=Job.Status.DISPATCHING) & ~Q(called),
        "calling": Q(status=Job.Status.DISPATCHING) & Q(called),
        "assigned": Q(status=Job.Status.ASSIGNED),
        "done": Q(status__in=[Job.Status.COMPLETED, Job.Status.CANCELLED], ended_at__gte=clock.now() - DONE_FOR),
    }


_ORDER = {
    "new": ["priority", "-id"],
    "calling": ["priority", "-id"],
    "assigned": ["-assigned_at", "-id"],
    "done": ["-ended_at", "-id"],
}


def load_columns(
    organization: Organization, filters: Filters, shown: Mapping[str, int] = MappingProxyType({})
) -> list[Column]:
    """Return the first cards of each column: a page, or as many as `shown` says, at most MAX_REFETCHED."""
    counts = count_columns(organization, filters)
    wheres = column_filters()
    jobs = {
        name: _first_jobs(organization, filters, name, where, max(PAGE, min(shown.get(name, 0), MAX_REFETCHED)))
        if counts[name]
        else []
        for name, where in wheres.items()
    }
    cards = {card.job.pk: card for card in cards_of([job for rows in jobs.values() for job in rows])}
    return [_column(name, counts[name], [cards[job.pk] for job in jobs[name]]) for name in COLUMNS]


def count_columns(organization: Organization, filters: Filters) -> dict[str, int]:
    """Return the number of jobs in each column."""
    wheres = column_filters()
    anywhere = Q(status__in=[Job.Status.DISPATCHING, Job.Status.ASSIGNED]) | wheres["done"]
    jobs = filters.apply(Job.objects.of(organization)).filter(anywhere).order_by()
    return dict(jobs.aggregate(**{name: Count("pk", filter=where) for name, where in wheres.items()}))


def load_column(organization: Organization, filters: Filters, name: str, after: str = "") -> Column:
    """Return one page of one column: the jobs that follow the sort key `after`.

    Raise KeyError if there is no such column, and ValueError if there is no such key.
    """
    where = column_filters()[name]
    if after:
        where &= _follows(name, after)
    count = filters.apply(Job.objects.of(organization)).filter(where).count()
    return _column(name, count, cards_of(_first_jobs(organization, filters, name, where, PAGE)))


def _column(name: str, count: int, cards: list[Card]) -> Column:
    title, description = COLUMNS[name]
    return Column(name, title, description, EMPTY[name], count, cards)


def _first_jobs(organization: Organization, filters: Filters, name: str, where: Q, most: int) -> list[Job]:
    jobs = filters.apply(with_card_data(organization)).filter(where).order_by(*_ORDER[name])
    return list(jobs[:most])


def cards_of(jobs: Iterable[Job]) -> list[Card]:
    """Return a card for each job, in this order."""
    rows = list(jobs)
    active = [job.pk for job in rows if job.status in (Job.Status.DISPATCHING, Job.Status.PENDING)]
    offers: dict[int, list[Offer]] = defaultdict(list)
    for offer in Offer.objects.filter(job__in=active).order_by("attempt"):
        offers[offer.job_id].append(offer)
    candidates: dict[int, list[rules.CandidateRow]] = defaultdict(list)
    considered = Candidate.objects.filter(job__in=active).exclude(verdict="out", skipped_round=0)
    fields = ("job_id", "technician_id", "rank", "verdict", "skipped_round")
    for job_id, technician_id, rank, verdict, skipped in considered.values_list(*fields):
        candidates[job_id].append(rules.CandidateRow(technician_id, rank, verdict, skipped))
    nexts = {job.pk: _next_step(job, candidates[job.pk], offers[job.pk]) for job in rows if job.pk in active}
    called = {offer.technician_id for group in offers.values() for offer in group if offer.status == "pending"}
    following = {step.technician_id for step in nexts.values() if step and step.technician_id}
    names = dict(Technician.objects.filter(pk__in=following | called).values_list("pk", "name"))
    unanswered = unanswered_texts(job.pk for job in rows)
    texts = {job_id: _("Text from {name}").format(name=row.technician.name) for job_id, row in unanswered.items()}
    cards = [_card(job, offers[job.pk], candidates[job.pk], nexts.get(job.pk), names) for job in rows]
    notes = _count_notes(job.pk for job in rows)
    return [
        replace(
            card,
            text=texts.get(card.job.pk, "") if card.column != "done" else "",
            notes=notes.get(card.job.pk, 0),
        )
        for card in cards
    ]


def _count_notes(jobs: Iterable[int]) -> dict[int, int]:
    """Return the number of notes on each of these jobs that has any, by job."""
    counts = JobNote.objects.filter(job__in=list(jobs)).order_by().values("job_id").annotate(count=Count("pk"))
    return dict(counts.values_list("job_id", "count"))


def _next_step(job: Job, candidates: list[rules.CandidateRow], offers: list[Offer]) -> rules.NextStep | None:
    """Return what would happen after the current offers."""
    if job.status != Job.Status.DISPATCHING:
        return None
    return rules.next_step(
        candidates,
        [rules.OfferRow(offer.technician_id, offer.round, offer.outcome) for offer in offers],
        policy=policies.frozen_policy(job),
        round_=job.round,
        first_round=job.first_round,
        not_again=job.not_again,
    )


def _describe_next(job: Job, step: rules.NextStep | None, names: dict[int, str]) -> str:
    """Return who is called after the current offers: a technician, the technicians of a wider round, or nobody."""
    if step is None or step.kind != "round":
        return names.get(step.technician_id or 0, "") if step else ""
    nth = job.round - job.first_round + 1
    policy = policies.frozen_policy(job)
    if not policy.widens_after(nth):
        return ""
    radius = distance_words(policy.radius_in_round(nth + 1), job.organization.distance_unit)
    return _("round {number}, within {radius}").format(number=nth + 1, radius=radius)


def _card(
    job: Job,
    offers: list[Offer],
    candidates: list[rules.CandidateRow],
    next_step: rules.NextStep | None,
    names: dict[int, str],
) -> Card:
    pending = [offer for offer in offers if offer.status == Offer.Status.PENDING]
    has_line = job.waiting_for == Job.WaitingFor.ANSWER
    live = tuple(LiveOffer(offer, names.get(offer.technician_id, ""), has_line) for offer in pending)
    next_name = _describe_next(job, next_step, names) if live else ""
    column = column_of(job, bool(offers))
    tone, state = state_of(job, pending)
    eligible = {candidate.technician_id for candidate in candidates} | {offer.technician_id for offer in offers}
    most = min(len(eligible), policies.frozen_policy(job).max_candidates) if offers or candidates else 0
    made = sum(offer.outcome not in rules.UNCOUNTED_OUTCOMES for offer in offers)  # an outage makes no attempt
    return Card(job, column, _sort(job, column), tone, state, made, max(most, made), live, next_name)


def column_of(job: Job, called: bool) -> str:
    """Return the column of a job, or "" if it is in no column (pending, or closed long ago)."""
    if job.status == Job.Status.DISPATCHING:
        return "calling" if called else "new"
    if job.status == Job.Status.ASSIGNED:
        return "assigned"
    over = job.ended_at is not None and job.ended_at >= clock.now() - DONE_FOR
    return "done" if over and job.status in (Job.Status.COMPLETED, Job.Status.CANCELLED) else ""


def is_late(job: Job) -> bool:
    """Return whether the auditor should already have advanced the job."""
    return (
        job.status == Job.Status.DISPATCHING
        and job.next_action_at is not None
        and job.next_action_at < clock.now() - OVERDUE
    )


def state_of(job: Job, live: Sequence[Offer] = ()) -> tuple[str, str]:
    """Return (tone, words) of a job's state. `live`: its current offers."""
    match job.status:
        case Job.Status.PENDING:
            return "attention", _(job.get_pending_reason_display())
        case Job.Status.ASSIGNED if job.technician is not None and not job.technician.is_active:
            return "attention", _("Assigned to a technician who left")
        case Job.Status.ASSIGNED if job.attention_at is not None and job.attention_at <= clock.now():
            return "late", _("Not started") if job.started_at is None else _("Not completed in time")
        case Job.Status.ASSIGNED if job.late_words:
            return "late", job.late_words
        case Job.Status.ASSIGNED if job.started_at is not None:
            return "good", _("Started")
        case Job.Status.ASSIGNED if job.on_the_way_at is not None:
            eta = local_time(job.eta_at, job.organization.time_zone)
            return "good", _("On the way, arriving at about {eta}").format(eta=eta) if eta else _("On the way")
        case Job.Status.ASSIGNED:
            return "good", _("Assigned")
        case Job.Status.COMPLETED:
            return "good", _("Completed")
        case Job.Status.CANCELLED:
            return "off", _("Canceled")
    if job.paused_at is not None:
        return ("attention", _("Paused too long")) if job.reminded_at else ("late", _("Paused"))
    if is_late(job):
        return "late", _("Late")
    if live:
        return _state_of_offers(job, live)
    if job.waiting_for == Job.WaitingFor.LINE:
        return "waiting", _("Waiting for a line")
    if job.waiting_for == Job.WaitingFor.PROVIDER:
        return "late", _("Phone provider not responding")
    if job.waiting_for == Job.WaitingFor.ACCOUNT:
        return "late", _("Account refused by the phone provider")
    if job.waiting_for == Job.WaitingFor.SPEND_CAP:
        return "late", _("Daily spending cap reached")
    if job.waiting_for == Job.WaitingFor.TECHNICIAN:
        return "waiting", _("Waiting for a technician")
    if job.waiting_for == Job.WaitingFor.QUIET_HOURS and job.next_action_at:
        end = job.next_action_at.astimezone(ZoneInfo(job.organization.time_zone))
        return "waiting", _("Waiting until {time} (quiet hours)").format(time=f"{end.hour}:{end.minute:02d}")
    if job.waiting_for == Job.WaitingFor.WINDOW and job.next_action_at:
        return "waiting", _("Calls at {time}").format(
            time=local_moment(job.next_action_at, job.organization.time_zone, clock.now())
        )
    return "waiting", _("Waiting for the next call")


def _state_of_offers(job: Job, live: Sequence[Offer]) -> tuple[str, str]:
    """Return (tone, words) of the offer that is nearest to an answer, and how many phones ring."""
    called = [offer for offer in live if not offer.missed_at]
    if not called:
        return "waiting", _("Missed call, can still reply")
    if any(offer.answered_at for offer in called):
        return "calling", _("Answered")
    ringing = [offer for offer in called if offer.ringing_since]
    if ringing:
        return "calling", _("Ringing") if len(ringing) == 1 else _("{count} phones ringing").format(
            count=len(ringing)
        )
    if job.waiting_for == Job.WaitingFor.ANSWER:
        return "waiting", _("Ringing not confirmed")
    return "waiting", _("Waiting for a line")


def _sort(job: Job, column: str) -> str:
    """Return the job's place in the column's order: its priority, or the time since its moment, and its id."""
    first = str(job.priority)
    if column in _MOMENTS:
        moment = getattr(job, _MOMENTS[column])
        first = f"{_LATEST_US - (moment - _EPOCH) // _MICROSECOND if moment else 0:017d}"
    return f"{first}{_LATEST_ID - job.pk:014d}"


def _follows(column: str, sort: str) -> Q:
    """Return the condition on jobs whose place in the column is after `sort`."""
    match = re.fullmatch(r"([0-9]{17})([0-9]{14})" if column in _MOMENTS else r"([0-9])([0-9]{14})", sort)
    if match is None:
        raise ValueError("Not the sort key of a card in this column.")
    first, pk = int(match[1]), _LATEST_ID - int(match[2])
    if column not in _MOMENTS:
        return Q(priority__gt=first) | Q(priority=first, pk__lt=pk)
    moment = _EPOCH + max(0, _LATEST_US - first) * _MICROSECOND
    return Q(**{f"{_MOMENTS[column]}__lt": moment}) | Q(**{_MOMENTS[column]: moment, "pk__lt": pk})
