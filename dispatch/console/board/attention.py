"""List the problems that need attention: pending, paused and late jobs, and phone problems, with their owners.

The most urgent come first, then those that have waited longest.
"""

from __future__ import annotations

import re
import zlib
from collections import defaultdict
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from django.db.models import Count, Max, Min, Q

from accounts.models import Organization
from dispatch.capacity.models import ProviderAccount
from dispatch.console.board.cards import is_late, needing_attention, received_at, state_of, with_card_data
from dispatch.console.board.filters import Filters
from dispatch.console.board.thread import unanswered_texts
from dispatch.core import clock
from dispatch.core.languages import gettext as _
from dispatch.core.languages import ngettext
from dispatch.core.models import Event
from dispatch.jobs.models import Job, JobText, Priority
from dispatch.telephony.error_texts import describe_error
from dispatch.telephony.models import Call
from notifications.models import Claim
from notifications.services.ownership import CALL_ERROR, JOB, has_expired

# Number of jobs on the first page, and in the whole list (?show=all).
MAX_SHOWN, MAX_ALL = 40, 1000
# A call problem is listed for this long after the last affected call.
ERRORS_FOR = timedelta(hours=1)
MAX_OUTAGES = 20
# In the reason of an outage: "Authenticate (error 20003)".
_ERROR_CODE = re.compile(r"\(error (\w+)\)$")


@dataclass(frozen=True)
class AttentionItem:
    """One entry of the list.

    `kind` is job or call_error, `key` its id. `since`: when the customer sent the request or the problem began.
    `claim`: its ownership, if any.
    """

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
    duplicate: str = ""

    @property
    def sort(self) -> str:
        """Return the sort key, ascending: most urgent first, then longest waiting."""
        return f"{self.urgency}{int(self.since.timestamp() * 1000):014d}{self.key:020d}"


@dataclass(frozen=True)
class CallError:
    """The calls of the last hour that failed with the same error.

    `since`: when the first of them was requested. `newest`: id of the last one.
    """

    status: str
    error_code: str
    count: int
    since: datetime
    newest: int


@dataclass(frozen=True)
class Attention:
    """The list. `count`: number of all matches. `hidden`: number of entries that the filters hide."""

    items: list[AttentionItem]
    count: int
    hidden: int

    @property
    def more(self) -> int:
        return max(0, self.count - len(self.items))


def find_attention(organization: Organization, filters: Filters, most: int = MAX_SHOWN) -> Attention:
    """Return the first `most` jobs of the organization that need attention, and all its phone problems."""
    waiting = needing_attention(with_card_data(organization))
    matching = filters.apply(waiting)
    count = matching.count()
    hidden = waiting.count() - count if filters else 0
    jobs = list(matching.order_by("priority", "received_at", "id")[:most])
    errors = [] if filters else _call_errors(organization)
    claims = _claims(organization, [job.pk for job in jobs])
    texts = unanswered_texts(job.pk for job in jobs)
    items = [_of_job(job, claims.get((JOB, job.pk)), texts.get(job.pk)) for job in jobs]
    for error in errors:
        claim = claims.get((CALL_ERROR, error.key))
        if claim is not None and has_expired(claim):
            claim = None
        items.append(replace(error, claim=claim))
    return Attention(sorted(items, key=lambda item: item.sort), count + len(errors), hidden)


def _of_job(job: Job, claim: Claim | None, text: JobText | None) -> AttentionItem:
    tone, state = state_of(job)
    place = job.address or job.customer_name
    if text is not None and tone != "attention" and not (job.paused_at or is_late(job)):
        tone, state, place = (
            "texted",
            _("Text from {name}").format(name=text.technician.name),
            f"“{text.text.body}”",
        )
    return AttentionItem(
        kind=JOB,
        key=job.pk,
        tone=tone,
        state=state,
        title=job.service_type.name,
        place=place,
        since=received_at(job),
        urgency=job.priority,
        priority=_(str(job.get_priority_display())),
        claim=claim,
        duplicate=job.duplicate_words if job.is_possible_duplicate else "",
    )


def _claims(organization: Organization, jobs: list[int]) -> dict[tuple[str, int], Claim]:
    subject = Q(subject_type=JOB, subject_id__in=jobs) | Q(subject_type=CALL_ERROR)
    rows = Claim.objects.of(organization).filter(subject).select_related("user")
    return {(row.subject_type, row.subject_id): row for row in rows}


def _call_errors(organization: Organization) -> list[AttentionItem]:
    """Group rejected, lost and unanswered calls by their error."""
    since = clock.now() - ERRORS_FOR
    failed = Q(status__in=[Call.Status.REJECTED, Call.Status.UNKNOWN, Call.Status.LOST]) | (
        Q(status=Call.Status.FAILED) & ~Q(error_code="")
    )
    calls = Call.objects.of(organization).filter(failed, requested_at__gte=since)
    if not calls.exists():
        return []
    for outage in _ended_outages(organization, since):
        calls = calls.exclude(outage)
    groups = calls.order_by().values("status", "error_code")
    found = groups.annotate(count=Count("pk"), since=Min("requested_at"), newest=Max("pk"))
    errors = [CallError(**group) for group in found]
    newest = Call.objects.of(organization).filter(pk__in=[error.newest for error in errors])
    messages = dict(newest.values_list("pk", "error_message"))
    return [_of_calls(error, messages.get(error.newest, "")) for error in errors]


def _ended_outages(organization: Organization, since: datetime) -> list[Q]:
    """Select the calls of accounts whose outage has ended, with the errors of that outage.

    Such an error needs nobody's attention once the provider accepts the account again.
    """
    accounts = ProviderAccount.objects.of(organization).filter(outage="", outage_ended_at__gte=since)
    ended = {pk: at for pk, at in accounts.values_list("pk", "outage_ended_at") if at is not None}
    began = Event.objects.filter(
        organization_id=organization.pk, subject_type="account", subject_id__in=ended, kind="account.outage_began"
    )
    codes: dict[int, set[str]] = defaultdict(set)
    for account_id, data in began.order_by("-id").values_list("subject_id", "data")[:MAX_OUTAGES]:
        codes[account_id] |= set(_ERROR_CODE.findall(data.get("reason", "")))
    return [
        Q(account=pk, status=Call.Status.REJECTED, error_code__in=codes[pk], created_at__lt=at)
        for pk, at in ended.items()
    ]


def _of_calls(error: CallError, message: str) -> AttentionItem:
    """Describe the calls with an error. `message`: what the provider said about the newest one."""
    code = error.error_code
    words = {
        "rejected": _("The phone provider rejects calls"),
        "failed": _("Calls are failing"),
        "unknown": _("The phone provider isn't responding"),
        "lost": _("The phone provider didn't report the end of some calls"),
    }[error.status]
    detail = describe_error(code, message) or ("" if code else _("Checking whether these phones rang."))
    detail = detail[:1].upper() + detail[1:]
    calls = ngettext("{count} call in the last hour", "{count} calls in the last hour", error.count)
    return AttentionItem(
        kind=CALL_ERROR,
        key=error_key(error.status, code),
        tone="attention" if error.status == "rejected" else "late",
        state=_("Phone problem"),
        title=_("{problem} (error {code})").format(problem=words, code=code) if code else words,
        place=f"{calls.format(count=error.count)}. {detail}".strip(),
        since=error.since,
        urgency=Priority.URGENT,
        priority="",
        claim=None,
    )


def error_key(status: str, code: str) -> int:
    """Return the id under which this kind of problem is claimed."""
    return int(code) if code.isdecimal() and len(code) < 10 else zlib.crc32(f"{status}:{code}".encode())
