"""What needs a person: pending, paused and late jobs, and trouble with the telephone; the most urgent and newest
first, with who has taken it on."""

from __future__ import annotations

import zlib
from collections import defaultdict
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from django.db.models import Q
from django.db.models.functions import Coalesce

from accounts.models import Organization
from dispatch.console.board.cards import is_late, needing_attention, shown, state_of
from dispatch.console.board.filters import Filters
from dispatch.core import clock
from dispatch.jobs.models import Job, Priority
from dispatch.telephony.models import Call
from notifications.claims import CALL_ERROR, JOB
from notifications.models import Claim

MOST = 40
# Trouble with calls is shown for this long after its last call.
ERRORS_FOR = timedelta(hours=1)
MOST_CALLS = 500
_LATEST = 10_000_000_000_000


@dataclass(frozen=True)
class Item:
    """`kind` is job or call_error, `key` its id there; `claim`: who has taken it on."""

    kind: str
    key: int
    tone: str
    state: str
    title: str
    place: str
    since: datetime
    urgency: int
    priority: str
    claim: Claim | None

    @property
    def sort(self) -> str:
        """Its place, ascending: the most urgent first, then the newest."""
        return f"{self.urgency}{_LATEST - int(self.since.timestamp() * 1000):014d}"


@dataclass(frozen=True)
class Attention:
    """`count` of all that match, `hidden` by the filters."""

    items: list[Item]
    count: int
    hidden: int

    @property
    def more(self) -> int:
        return max(0, self.count - len(self.items))


def attention(organization: Organization, filters: Filters, most: int = MOST) -> Attention:
    """What needs a person in the organization."""
    waiting = needing_attention(shown(organization))
    matching = filters.apply(waiting)
    count = matching.count()
    hidden = waiting.count() - count if filters else 0
    jobs = list(matching.order_by("priority", Coalesce("waiting_since", "created_at").desc(), "-id")[:most])
    errors = [] if filters else _call_errors(organization)
    claims = _claims(organization, [job.pk for job in jobs])
    items = [_of_job(job, claims.get((JOB, job.pk))) for job in jobs]
    for error in errors:
        claim = claims.get((CALL_ERROR, error.key))
        if claim is not None and claim.claimed_at < clock.now() - 2 * ERRORS_FOR:
            claim = None  # of the last time
        items.append(replace(error, claim=claim))
    return Attention(sorted(items, key=lambda one: one.sort), count + len(errors), hidden)


def _of_job(job: Job, claim: Claim | None) -> Item:
    tone, state = state_of(job, None)
    since = job.waiting_since or job.created_at
    if is_late(job) and job.next_action_at:
        since = job.next_action_at
    return Item(
        kind=JOB,
        key=job.pk,
        tone=tone,
        state=state,
        title=job.service_type.name,
        place=job.address or job.customer_name,
        since=since,
        urgency=job.priority,
        priority=job.get_priority_display(),
        claim=claim,
    )


def _claims(organization: Organization, jobs: list[int]) -> dict[tuple[str, int], Claim]:
    about = Q(subject_type=JOB, subject_id__in=jobs) | Q(subject_type=CALL_ERROR)
    rows = Claim.objects.of(organization).filter(about).select_related("user")
    return {(row.subject_type, row.subject_id): row for row in rows}


def _call_errors(organization: Organization) -> list[Item]:
    """Calls that the provider refused, lost or did not answer for, summed up by what was wrong."""
    since = clock.now() - ERRORS_FOR
    wrong = Q(status__in=[Call.Status.REJECTED, Call.Status.UNKNOWN, Call.Status.LOST]) | (
        Q(status=Call.Status.FAILED) & ~Q(error_code="")
    )
    calls = Call.objects.of(organization).filter(wrong, created_at__gte=since).order_by("-id")[:MOST_CALLS]
    groups: dict[tuple[str, str], list[Call]] = defaultdict(list)
    for call in calls:
        groups[(call.status, call.error_code)].append(call)
    return [_of_calls(status, code, some) for (status, code), some in groups.items()]


def _of_calls(status: str, code: str, calls: list[Call]) -> Item:
    newest = calls[0]
    words = {
        "rejected": "The provider refuses calls",
        "failed": "Calls fail",
        "unknown": "The provider did not answer",
        "lost": "The end of calls was never reported",
    }[status]
    told = newest.error_message or ("" if code else "Whether these phones rang is being looked into.")
    told = told[:1].upper() + told[1:]
    many = f"{len(calls)} call{'' if len(calls) == 1 else 's'} in the last hour"
    return Item(
        kind=CALL_ERROR,
        key=error_key(status, code),
        tone="attention" if status == "rejected" else "late",
        state="Telephone",
        title=f"{words} (error {code})" if code else words,
        place=f"{many}. {told}".strip(),
        since=newest.created_at,
        urgency=Priority.URGENT,
        priority="",
        claim=None,
    )


def error_key(status: str, code: str) -> int:
    """The number by which a kind of trouble is claimed."""
    return int(code) if code.isdecimal() and len(code) < 10 else zlib.crc32(f"{status}:{code}".encode())
