"""Jobs as the board shows them: in columns, a card each, read with a handful of queries however many there are."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from django.db.models import Count, Exists, OuterRef, Q, QuerySet

from accounts.models import Organization
from dispatch.console.board.filters import Filters
from dispatch.core import clock
from dispatch.jobs import policies, rules
from dispatch.jobs.models import OVERDUE, Candidate, Job, Offer
from dispatch.technicians.models import Technician

PAGE = 40
DONE_FOR = timedelta(hours=24)
COLUMNS = {
    "new": ("New", "Forms that came in and whose first call has not begun"),
    "calling": ("Calling", "Jobs that technicians are being called for"),
    "assigned": ("Assigned", "Jobs that a technician has taken"),
    "done": ("Done", "Completed or cancelled in the last 24 hours"),
}
EMPTY = {
    "new": "A form that is submitted over the API or the public form appears here at once.",
    "calling": "While technicians are called, their jobs stand here, with who rings and who is next.",
    "assigned": "A job moves here when a technician presses 1, or when you assign it.",
    "done": "What is completed or cancelled stays here for a day.",
}
_LATEST = 10_000_000_000_000


@dataclass(frozen=True)
class Live:
    """The offer that is live: who is being called, `answered` or ringing, until when, and who is next."""

    offer: Offer
    next_name: str

    @property
    def words(self) -> str:
        if self.offer.missed_at:
            return "missed the call, may still answer"
        if self.offer.answered_at:
            return "answered"
        return "ringing" if self.offer.ringing_since else "waits for a line"

    @property
    def counts_down(self) -> bool:
        return self.offer.ringing_since is not None


@dataclass(frozen=True)
class Card:
    """One job. `tone` and `state`: see UI.md; `sort`: its place, ascending; `attempts` of `attempts_of`."""

    job: Job
    column: str
    sort: str
    tone: str
    state: str
    attempts: int
    attempts_of: int
    live: Live | None

    @property
    def since(self) -> datetime:
        """What the card's age counts from."""
        if self.column == "done" and self.job.ended_at:
            return self.job.ended_at
        return self.job.created_at


@dataclass(frozen=True)
class Column:
    name: str
    title: str
    help: str
    empty: str
    count: int
    cards: list[Card]
    page: int

    @property
    def more(self) -> int:
        """How many stand below those that are shown."""
        return max(0, self.count - self.page * PAGE)

    @property
    def next_page(self) -> int:
        return self.page + 1


def shown(organization: Organization) -> QuerySet:
    """The organization's jobs with all that a card needs."""
    return Job.objects.of(organization).select_related("service_type", "technician")


def needing_attention(jobs: Any) -> QuerySet:
    """Those that wait for a person, or are late (the jobs slice's own question)."""
    found: QuerySet = jobs.needing_attention()
    return found


def column_filters() -> dict[str, Q]:
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


def columns(organization: Organization, filters: Filters) -> list[Column]:
    """The first page of each."""
    many = counts(organization, filters)
    wheres = column_filters()
    found = {name: _page(organization, filters, name, wheres[name], 1) if many[name] else [] for name in COLUMNS}
    cards = {card.job.pk: card for card in cards_of([job for rows in found.values() for job in rows])}
    return [_column(name, many[name], [cards[job.pk] for job in found[name]], 1) for name in COLUMNS]


def counts(organization: Organization, filters: Filters) -> dict[str, int]:
    """How many jobs stand in each column."""
    wheres = column_filters()
    anywhere = Q(status__in=[Job.Status.DISPATCHING, Job.Status.ASSIGNED]) | wheres["done"]
    jobs = filters.apply(Job.objects.of(organization)).filter(anywhere).order_by()
    return dict(jobs.aggregate(**{name: Count("pk", filter=where) for name, where in wheres.items()}))


def one_column(organization: Organization, filters: Filters, name: str, page: int) -> Column:
    """One page of one column. Raises KeyError for one that there is not."""
    where = column_filters()[name]
    count = filters.apply(Job.objects.of(organization)).filter(where).count()
    return _column(name, count, cards_of(_page(organization, filters, name, where, page)), page)


def _column(name: str, count: int, cards: list[Card], page: int) -> Column:
    title, told = COLUMNS[name]
    return Column(name, title, told, EMPTY[name], count, cards, page)


def _page(organization: Organization, filters: Filters, name: str, where: Q, page: int) -> list[Job]:
    jobs = filters.apply(shown(organization)).filter(where).order_by(*_ORDER[name])
    return list(jobs[(page - 1) * PAGE : page * PAGE])


def cards_of(jobs: Iterable[Job]) -> list[Card]:
    """A card for each, in this order."""
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
    nexts = {job.pk: next_technician(job, candidates[job.pk], offers[job.pk]) for job in rows if job.pk in active}
    called = {offer.technician_id for some in offers.values() for offer in some if offer.status == "pending"}
    names = dict(
        Technician.objects.filter(pk__in={*filter(None, nexts.values()), *called}).values_list("pk", "name")
    )
    return [_card(job, offers[job.pk], candidates[job.pk], nexts.get(job.pk), names) for job in rows]


def next_technician(job: Job, candidates: list[rules.CandidateRow], offers: list[Offer]) -> int | None:
    """Whose turn it will be after the live offer, as things stand now."""
    if job.status != Job.Status.DISPATCHING:
        return None
    step = rules.next_step(
        candidates,
        [rules.OfferRow(offer.technician_id, offer.round, offer.outcome) for offer in offers],
        policy=policies.frozen(job),
        round_=job.round,
        first_round=job.first_round,
        not_again=job.not_again,
    )
    return step.technician_id


def _card(
    job: Job,
    offers: list[Offer],
    candidates: list[rules.CandidateRow],
    next_id: int | None,
    names: dict[int, str],
) -> Card:
    pending = next((offer for offer in offers if offer.status == Offer.Status.PENDING), None)
    live = None
    if pending is not None:
        pending.name = names.get(pending.technician_id, "")  # type: ignore[attr-defined]
        live = Live(pending, names.get(next_id or 0, ""))
    column = column_of(job, bool(offers))
    tone, state = state_of(job, pending)
    fit = {one.technician_id for one in candidates} | {offer.technician_id for offer in offers}
    most = min(len(fit), policies.frozen(job).max_candidates) if offers or candidates else 0
    return Card(job, column, _sort(job, column), tone, state, len(offers), max(most, len(offers)), live)


def column_of(job: Job, called: bool) -> str:
    """The column in which a job stands; "" for one that stands in none (it is pending, or long over)."""
    if job.status == Job.Status.DISPATCHING:
        return "calling" if called else "new"
    if job.status == Job.Status.ASSIGNED:
        return "assigned"
    over = job.ended_at is not None and job.ended_at >= clock.now() - DONE_FOR
    return "done" if over and job.status in (Job.Status.COMPLETED, Job.Status.CANCELLED) else ""


def is_late(job: Job) -> bool:
    return (
        job.status == Job.Status.DISPATCHING
        and job.next_action_at is not None
        and job.next_action_at < clock.now() - OVERDUE
    )


def state_of(job: Job, live: Any) -> tuple[str, str]:
    """(tone, words) of a job's state."""
    match job.status:
        case Job.Status.PENDING:
            return "attention", job.get_pending_reason_display()
        case Job.Status.ASSIGNED:
            return "good", "Assigned"
        case Job.Status.COMPLETED:
            return "good", "Completed"
        case Job.Status.CANCELLED:
            return "off", "Cancelled"
    if job.paused_at is not None:
        return "late", "Paused"
    if is_late(job):
        return "late", "Late"
    if live is not None:
        if live.missed_at:
            return "waiting", "Missed, may still answer"
        if live.answered_at:
            return "calling", "Answered"
        return ("calling", "Ringing") if live.ringing_since else ("waiting", "Waits for a line")
    if job.waiting_for == Job.WaitingFor.LINE:
        return "waiting", "Waits for a line"
    if job.waiting_for == Job.WaitingFor.TECHNICIAN:
        return "waiting", "Waits for a technician"
    return "waiting", "Next call"


def _sort(job: Job, column: str) -> str:
    moment = {"assigned": job.assigned_at, "done": job.ended_at}.get(column)
    if moment is not None:
        return f"{_LATEST - int(moment.timestamp() * 1000):014d}"
    return f"{job.priority}{_LATEST - job.pk:014d}"
