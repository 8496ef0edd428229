"""Keep customers informed by text, if their organization wants it: at most one text of each kind for each job.

"Who is coming" is sent once for each technician, and "running late" again for a longer delay, so that no change
leaves the customer misled. A corrected phone gets its own texts.

Call these in the transaction that changes the job, after the change. A text that can't be sent never stops the
change: the reason is an event of the job. Just before a text is sent, `is_current` compares it with the job.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import structlog
from django.conf import settings
from django.db import transaction
from django.db.models import Q

from dispatch.core import clock, events, languages
from dispatch.core.db import fast_rows
from dispatch.core.events import Actor
from dispatch.core.models import Event
from dispatch.jobs import signed_links
from dispatch.jobs.models import CustomerText, CustomerTextKind, CustomerTextPolicy, Job
from dispatch.jobs.rules import customer_phrases
from dispatch.jobs.rules.customer_phrases import CustomerFacts
from dispatch.jobs.services import notices
from dispatch.telephony import services as telephony
from dispatch.telephony.models import Text
from dispatch.telephony.services import NoTextNumber, TextNotAllowed

log = structlog.get_logger(__name__)

Kind = CustomerTextKind
PURPOSE = Text.Purpose.CUSTOMER
CUSTOMER = Actor("customer", None, "The customer")
# A text that could not be sent within this time is out of date.
LIFETIME = timedelta(hours=1)
# Texts to one phone are counted over this time: anybody can enter somebody else's phone in a public form.
COUNTED_FOR = timedelta(days=1)
TOO_MANY = "the phone had too many texts within a day"
# Phones that are texted about one job: a link lets its holder enter any number of them.
MAX_PHONES = 3
TOO_MANY_PHONES = "the phone was corrected too often"
# Texts that say that somebody is coming.
ABOUT_COMING = (Kind.ASSIGNED, Kind.ON_THE_WAY, Kind.RUNNING_LATE)
# Statuses after which a text will not arrive. A canceled one was withdrawn, or its recipient opted out.
FAILED = frozenset({"undelivered", "failed", "rejected", "not_sent"})


def load_policy(organization_id: int) -> CustomerTextPolicy | None:
    """Return which texts the organization sends to customers, or None if it never chose any."""
    return find_policy(organization_id)()


def find_policy(organization_id: int) -> Callable[[], CustomerTextPolicy | None]:
    """Return a function for what `load_policy` returns. A pipeline does not wait for it."""
    find = fast_rows.find_many(CustomerTextPolicy, "t.organization_id = %s", [organization_id])
    return lambda: next(iter(find()), None)


def sender_name(job: Job) -> str:
    """Return the name that begins the texts to the job's customer."""
    policy = load_policy(job.organization_id)
    return (policy.sender_name if policy else "") or job.organization.name


def inform_customer(job: Job, kind: CustomerTextKind) -> None:
    """Text the customer about the change, if the organization wants it and they had no such text about this job.

    "Who is coming" counts for each technician separately. The job must be locked or new. An unsent text of this
    kind is replaced.
    """
    inform_by_policy(job, kind, load_policy(job.organization_id))


def inform_by_policy(job: Job, kind: CustomerTextKind, policy: CustomerTextPolicy | None) -> None:
    """Text the customer like `inform_customer`, with the policy that `load_policy` returned a moment ago."""
    if policy is None or not policy.sends(kind):
        return
    try:
        with transaction.atomic():
            _write(job, kind, policy)
    except Exception as error:
        log.exception("customer_text_failed", job=job.pk, kind=str(kind))
        _append_failure(job, kind, f"an internal error ({type(error).__name__})")


def inform_of_technician(job: Job) -> None:
    """Text the customer who is coming, unless a text about the trip has said so. The job must be locked."""
    if job.status != Job.Status.ASSIGNED or job.started_at is not None:
        return
    about_trip = CustomerText.objects.filter(job_id=job.pk, kind__in=(Kind.ON_THE_WAY, Kind.RUNNING_LATE))
    said = Text.objects.filter(pk__in=about_trip.values("text_id"), context__technician_id=job.technician_id)
    if not said.exists():
        inform_customer(job, Kind.ASSIGNED)


def inform_new_phone(job: Job) -> None:
    """Withdraw the unsent texts to the former phone, and text the news, with a new link, to the corrected one."""
    withdraw(job, *Kind)
    policy = load_policy(job.organization_id)
    wanted = [kind for kind in _news_of(job) if policy is not None and policy.sends(kind)]
    if wanted:
        inform_customer(job, wanted[0])


def _news_of(job: Job) -> list[CustomerTextKind]:
    """Return the kinds of texts that are true of an open job, the newest first."""
    news = [Kind.RECEIVED]
    if job.status == Job.Status.ASSIGNED and job.started_at is None:
        if not notices.is_assignment_deferred(job):
            news.insert(0, Kind.ASSIGNED)
        if job.on_the_way_at is not None and (job.eta_at is None or job.eta_at > clock.now()):
            news.insert(0, Kind.ON_THE_WAY)
        if is_delay_newest(job):
            news.insert(0, Kind.RUNNING_LATE)
    return news


def is_delay_newest(job: Job) -> bool:
    """Return whether a delay is the last news of the arrival: later, nobody set out or gave an arrival time."""
    if job.late_reported_at is None or job.on_the_way_at is None:
        return job.late_reported_at is not None
    if job.on_the_way_at >= job.late_reported_at:
        return False
    arrivals = Event.objects.filter(
        subject_type="job",
        subject_id=job.pk,
        kind="job.on_the_way",
        at__gt=job.late_reported_at,
        data__has_key="eta_minutes",
    )
    return not arrivals.exists()


def withdraw(job: Job, *kinds: CustomerTextKind) -> None:
    """Cancel the unsent texts of these kinds, because they are no longer true. The job must be locked."""
    rows = list(CustomerText.objects.filter(job_id=job.pk, kind__in=kinds).values_list("pk", flat=True))
    if rows:
        telephony.cancel_texts(Q(purpose=PURPOSE, subject_id__in=rows))


def is_current(text: Text) -> bool:
    """Return whether the text is still true, wanted, and addressed to the job's customer."""
    row = CustomerText.objects.filter(text_id=text.pk).select_related("job").first()
    if row is None or str(row.job.customer_phone) != str(text.to_phone):
        return False
    policy = load_policy(row.organization_id)
    if policy is None or not policy.sends(row.kind):
        return False
    job = row.job
    match row.kind:
        case Kind.RECEIVED:
            return job.ended_at is None
        case Kind.ASSIGNED | Kind.ON_THE_WAY | Kind.RUNNING_LATE:
            if job.status != Job.Status.ASSIGNED or job.technician_id != text.context.get("technician_id"):
                return False
            is_coming = row.kind != Kind.ON_THE_WAY or job.on_the_way_at is not None
            is_late = row.kind != Kind.RUNNING_LATE or (
                job.late_minutes == text.context.get("late_minutes") and is_delay_newest(job)
            )
            return is_coming and is_late and job.started_at is None
        case Kind.COMPLETED:
            return job.status == Job.Status.COMPLETED
    return job.status == Job.Status.CANCELLED


def report_delivery(text: Text) -> None:
    """Append an event, once, if the text will not arrive."""
    if text.status not in FAILED:
        return
    with transaction.atomic():
        row = CustomerText.objects.filter(text_id=text.pk).select_related("job").first()
        if row is None or not CustomerText.objects.filter(pk=row.pk, failed_at=None).update(failed_at=clock.now()):
            return
        code = f" (error {text.error_code})" if text.error_code.strip("0") else ""
        _append_failure(row.job, Kind(row.kind), f"{text.error_message or Text.Status(text.status).label}{code}")


def receive(text: Text, job: Job, *, opted_out: bool = False) -> bool:
    """Record a text from the job's customer, once; the event notifies the dispatchers.

    Return False if it was recorded before.
    """
    with transaction.atomic():
        fast_rows.fetch_by_pk(Job, job.pk, lock=True)
        kind = "job.customer_opted_out" if opted_out else "job.customer_replied"
        about = Event.objects.filter(subject_type="job", subject_id=job.pk, kind=kind)
        if about.filter(data__text_id=text.pk).exists():
            return False
        said = text.body.strip()[:500]
        events.append(job.organization_id, kind, job.pk, actor=CUSTOMER, text_id=text.pk, body=said)
    return True


def job_of_customer(organization_id: int, phone: str) -> Job | None:
    """Return the latest job, open or just ended, whose customer has that phone and was texted about it."""
    jobs = Job.objects.of(organization_id).filter(customer_phone=phone, customer_texts__text_id__isnull=False)
    recent = jobs.filter(Q(ended_at=None) | Q(ended_at__gt=clock.now() - timedelta(days=2)))
    job: Job | None = recent.select_related("organization").order_by("-pk").first()
    return job


def _write(job: Job, kind: CustomerTextKind, policy: CustomerTextPolicy) -> None:
    technician_id = job.technician_id if kind == Kind.ASSIGNED else None
    rows = CustomerText.objects.filter(job_id=job.pk, kind=kind)
    row = rows.filter(technician_id=technician_id or 0).first() if kind == Kind.ASSIGNED else rows.first()
    if row is None:
        row = CustomerText(
            organization_id=job.organization_id, job_id=job.pk, kind=kind, technician_id=technician_id
        )
    elif row.text_id is not None:
        telephony.cancel_texts(Q(pk=row.text_id))
        last = Text.objects.filter(pk=row.text_id).first()
        if last is None or not (_never_left(last) or _is_outdated(last, job, kind)):
            return
        row.attempt, row.text_id, row.reason, row.failed_at = row.attempt + 1, None, "", None
    row.save()
    try:
        text = _create_text(job, row, policy)
    except (NoTextNumber, TextNotAllowed) as error:
        if row.reason != str(error):
            _append_failure(job, kind, str(error))
        row.reason = str(error)[:160]
        row.save(update_fields=["reason"])
        return
    row.text_id, row.reason = text.pk, ""
    row.save(update_fields=["text_id", "reason"])
    _append(job, "job.customer_texted", kind)


def _never_left(text: Text) -> bool:
    return text.status in ("canceled", "not_sent") and text.requested_at is None


def _is_outdated(text: Text, job: Job, kind: CustomerTextKind) -> bool:
    """Return whether a sent text misleads: it went to a phone that was corrected, or named a shorter delay."""
    if str(text.to_phone) != str(job.customer_phone):
        return True
    if kind != Kind.RUNNING_LATE:
        return False
    is_about_another = text.context.get("technician_id") != job.technician_id
    return is_about_another or text.context.get("late_minutes", 0) < (job.late_minutes or 0)


def _create_text(job: Job, row: CustomerText, policy: CustomerTextPolicy) -> Text:
    if why := telephony.why_texts_fail(job.organization_id, job.customer_phone):
        raise TextNotAllowed(why)
    if _count_recent(job) >= settings.CUSTOMER_TEXTS_PER_DAY:
        raise TextNotAllowed(TOO_MANY)
    phones = set(_texts_about(job).values_list("to_phone", flat=True))
    is_first = str(job.customer_phone) not in map(str, phones)
    if is_first and len(phones) >= MAX_PHONES:
        raise TextNotAllowed(TOO_MANY_PHONES)
    now, zone = clock.now(), job.organization.time_zone
    lifetime = LIFETIME
    if row.kind == Kind.ON_THE_WAY and job.eta_at is not None:
        lifetime = min(lifetime, max(job.eta_at - now, timedelta(minutes=1)))
    technician = job.technician if row.kind in ABOUT_COMING else None
    with languages.override(job.submission.customer_language):
        facts = CustomerFacts(
            sender=policy.sender_name or job.organization.name,
            service=job.service_type.name,
            technician=customer_phrases.first_name(technician.name) if technician else "",
            instead_of=_replaced_technician(job) if row.kind == Kind.ASSIGNED else "",
            eta=customer_phrases.told_time(job.eta_at, zone),
            late_minutes=job.late_minutes or 0,
            contact=policy.contact_phone.as_national if policy.contact_phone else "",
            url=signed_links.request_url(job.submission_id),
            is_first=is_first,
        )
        body = customer_phrases.customer_text(row.kind, facts)
    context: dict[str, Any] = {"job_id": job.pk}
    if technician is not None:
        context["technician_id"] = technician.pk
    if row.kind == Kind.RUNNING_LATE:
        context["late_minutes"] = job.late_minutes
    return telephony.create_text(
        organization=job.organization,
        to_phone=job.customer_phone,
        body=body,
        purpose=PURPOSE,
        subject_id=row.pk,
        attempt=row.attempt,
        not_after=now + lifetime,
        context=context,
    )


def _texts_about(job: Job) -> Any:
    """Select the texts to the job's customer that were not withdrawn, also to a phone that was corrected later."""
    rows = CustomerText.objects.filter(job_id=job.pk).values("pk")
    texts = Text.objects.filter(purpose=PURPOSE, subject_id__in=rows)
    return texts.exclude(status__in=("canceled", "not_sent"), requested_at=None)


def _count_recent(job: Job) -> int:
    """Return how many texts about any job the customer's phone had lately. Withdrawn ones don't count."""
    recent = Text.objects.of(job.organization_id).filter(
        purpose=PURPOSE, to_phone=str(job.customer_phone), created_at__gt=clock.now() - COUNTED_FOR
    )
    count: int = recent.exclude(status__in=("canceled", "not_sent")).count()
    return count


def _replaced_technician(job: Job) -> str:
    """Return the first name of the technician whom the customer expects so far; empty if nobody was announced."""
    announced = CustomerText.objects.filter(job_id=job.pk, kind=Kind.ASSIGNED, text_id__isnull=False)
    others = announced.exclude(technician_id=job.technician_id or 0).values_list("text_id", "technician__name")
    names = {text_id or 0: name for text_id, name in others}
    arrived = Text.objects.filter(pk__in=names, requested_at__isnull=False, to_phone=str(job.customer_phone))
    left = arrived.exclude(status__in=FAILED | {"canceled"})
    last = left.order_by("-pk").values_list("pk", flat=True).first()
    return customer_phrases.first_name(names[last]) if last else ""


def _append_failure(job: Job, kind: CustomerTextKind, reason: str) -> None:
    _append(job, "job.customer_text_failed", kind, reason=reason[:160])


def _append(job: Job, event: str, kind: CustomerTextKind, **data: Any) -> None:
    news, said = str(kind), str(kind.label)
    events.append(job.organization_id, event, job.pk, news=news, news_text=said, **data)
