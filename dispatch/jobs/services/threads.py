"""Keep the thread of a job: texts between its technicians and the dispatchers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from datetime import timedelta

from django.core.exceptions import ValidationError
from django.db import transaction
from django.db.models import Q

from dispatch.core import clock, events
from dispatch.core.api.problems import Conflict
from dispatch.core.events import Actor
from dispatch.core.languages import gettext as _
from dispatch.core.languages import mark
from dispatch.core.models import Event
from dispatch.core.stored_texts import translate_stored
from dispatch.jobs import signed_links
from dispatch.jobs.models import Job, JobText, Offer
from dispatch.jobs.rules import phrases
from dispatch.jobs.rules.customer_phrases import told_time
from dispatch.jobs.services import sms, transitions
from dispatch.jobs.services.follow_up import report_on_the_way
from dispatch.technicians.models import Technician
from dispatch.telephony import services as telephony
from dispatch.telephony.models import Text
from dispatch.telephony.services import NoTextNumber, OptedOut, TextNotAllowed

# The longest text a dispatcher can write: four segments.
LONGEST = 600
# A technician who writes again within this time gets no further confirmation.
CONFIRM_AGAIN = timedelta(hours=1)
# Statuses after which a text will not arrive.
FAILED = frozenset({"undelivered", "failed", "rejected", "canceled", "not_sent"})
NO_RECIPIENT = mark(
    "Nobody can be texted about this job: no technician has it, is being called for it or has texted about it."
)
NOT_A_RECIPIENT = mark(
    "You can't text this technician here: they don't have this job, aren't being called for it and haven't texted "
    "about it."
)


def open_jobs(technician: Technician) -> list[Job]:
    """Return the jobs that the technician has or is being offered, oldest first."""
    has = Q(status=Job.Status.ASSIGNED, technician=technician)
    offered = Q(
        status=Job.Status.DISPATCHING,
        pk__in=Offer.objects.filter(technician=technician, status=Offer.Status.PENDING).values("job_id"),
    )
    jobs = Job.objects.of(technician.organization_id).filter(has | offered)
    return list(jobs.select_related("service_type").order_by("pk"))


def receive(text: Text, technician: Technician) -> bool:
    """Record a technician's text, once, on each of their open jobs, and notify the dispatchers.

    Return False if the technician has no open job.
    """
    with transaction.atomic():
        jobs = open_jobs(technician)
        new = _record(jobs, text, technician)
        main = _main_job(jobs, text)
        for job in new:
            others = [str(one.pk) for one in jobs if one is not job]
            transitions.append_job_event(
                job, "job.text_received", actor=_actor(technician), technician_id=technician.pk,
                technician=technician.name, text_id=text.pk, body=text.body[:500], is_main=job is main,
                also=f"job {', '.join(others)}" if others else "",
            )  # fmt: skip
    return bool(jobs)


def receive_on_the_way(text: Text, technician: Technician, minutes: int | None) -> str | None:
    """Record that the technician is on the way to their only job that is not started, and return the reply.

    `minutes`: the ETA. With several such jobs, the text goes to the dispatchers. Return None
    if they have no such job.
    """
    if JobText.objects.filter(text=text).exists():
        return ""  # processed before
    with transaction.atomic():
        theirs = [job for job in open_jobs(technician) if job.status == Job.Status.ASSIGNED]
        waiting = [job for job in theirs if job.started_at is None]
        if not waiting:
            return None
        if len(waiting) > 1:
            receive(text, technician)
            return phrases.which_job(len(waiting), signed_links.technician_url(technician))
        (job,) = waiting
        actor = _actor(technician)
        job = report_on_the_way(
            job.pk, actor=actor, eta_minutes=minutes, said_at=text.created_at, version=job.version
        )
        JobText.objects.create(
            organization_id=job.organization_id, job=job, text=text, technician=technician, handled_at=clock.now()
        )
    return phrases.on_the_way_recorded(told_time(job.eta_at, technician.organization.time_zone))


def receive_opt_out(text: Text, technician: Technician) -> None:
    """Record a technician's opt-out on their open jobs, and alert the dispatchers, once."""
    with transaction.atomic():
        jobs = open_jobs(technician)
        for job in _record(jobs, text, technician):
            transitions.append_job_event(
                job, "job.text_received", actor=_actor(technician), technician_id=technician.pk,
                technician=technician.name, text_id=text.pk, body=text.body[:500],
            )  # fmt: skip
        said = Event.objects.filter(
            subject_type="technician", subject_id=technician.pk, kind="technician.opted_out", data__text_id=text.pk
        )
        if said.exists():
            return
        named = "; ".join(f"Job {job.pk}: {job.service_type.name}, {job.address}".strip(", ") for job in jobs)
        data = {"name": technician.name, "word": text.body.strip()[:40], "text_id": text.pk, "jobs": named[:400]}
        actor = _actor(technician)
        events.append(technician.organization_id, "technician.opted_out", technician.pk, actor=actor, **data)
        if jobs:
            kind = "technician.may_not_come"
            events.append(technician.organization_id, kind, technician.pk, actor=actor, **data)


def needs_confirmation(text: Text, technician: Technician) -> bool:
    """Return whether to confirm this text: it is the technician's first one for a while."""
    earlier = JobText.objects.filter(
        technician=technician, text__direction=Text.Direction.IN, created_at__gt=clock.now() - CONFIRM_AGAIN
    )
    return not earlier.exclude(text=text).exists()


def recipients(job: Job) -> list[Technician]:
    """Return whom a dispatcher can text about the job: its technician, who is being called, who has texted."""
    called = job.offers.filter(status=Offer.Status.PENDING).values_list("technician_id", flat=True)
    texted = job.texts.order_by("-pk").values_list("technician_id", flat=True)
    ids = list(dict.fromkeys([*([job.technician_id] if job.technician_id else []), *called, *texted]))
    found = Technician.objects.filter(is_active=True).in_bulk(ids)
    return [found[pk] for pk in ids if pk in found]


def why_not_textable(job: Job, technician: Technician) -> str:
    """Return why the technician can't be texted now, or an empty string."""
    if telephony.is_opted_out(job.organization_id, technician.phone):
        return _("{name} has opted out of texts. Call {phone} instead.").format(
            name=technician.name, phone=technician.phone.as_national
        )
    if not telephony.may_text(job.organization_id, technician.phone):
        return _("No number may send texts. An admin can allow it under Outbound numbers.")
    return ""


def send(job_id: int, body: str, *, technician_id: int | None = None, actor: Actor) -> JobText:
    """Text a technician about the job; by default, the first of `recipients`. Their texts count as answered.

    Raises Job.DoesNotExist, ValidationError {body} and, if nobody can be texted, Conflict with the reason.
    """
    body = body.strip()
    if not body:
        raise ValidationError({"body": _("Enter a text.")})
    if len(body) > LONGEST:
        raise ValidationError({"body": _("Must be at most {most} characters.").format(most=LONGEST)})
    with transaction.atomic():
        job = transitions.lock_job(job_id, "organization")
        technician = next((one for one in recipients(job) if technician_id in (None, one.pk)), None)
        if technician is None:
            raise Conflict(_(NO_RECIPIENT if technician_id is None else NOT_A_RECIPIENT))
        last = telephony.texts_of(Text.Purpose.THREAD, job.pk).first()
        try:
            text = telephony.create_text(
                organization=job.organization,
                to_phone=technician.phone,
                body=body,
                purpose=Text.Purpose.THREAD,
                subject_id=job.pk,
                attempt=last.attempt + 1 if last else 1,
                context={"job_id": job.pk},
                actor=actor,
            )
        except (OptedOut, NoTextNumber) as error:
            raise Conflict(why_not_textable(job, technician) or str(error)) from error
        except TextNotAllowed as error:
            raise Conflict(
                _("{name} can't be texted: {reason}.").format(
                    name=technician.name, reason=translate_stored(error.reason)
                )
            ) from error
        row = JobText.objects.create(
            organization_id=job.organization_id, job=job, text=text, technician=technician, handled_at=clock.now()
        )
        _mark_handled(job, actor, technician)
        transitions.append_job_event(
            job, "job.text_sent", actor=actor, technician_id=technician.pk, technician=technician.name,
            text_id=text.pk, body=body[:500],
        )  # fmt: skip
    return row


def mark_handled(job_id: int, *, actor: Actor) -> int:
    """Mark the job's inbound texts as needing no reply. Return how many were unanswered."""
    with transaction.atomic():
        job = transitions.lock_job(job_id)
        count = _mark_handled(job, actor)
        if count:
            transitions.append_job_event(job, "job.texts_handled", actor=actor, count=count)
    return count


def report_delivery(text: Text) -> None:
    """Notify the dispatchers, once, that a text of the thread will not arrive."""
    if text.status not in FAILED:
        return
    with transaction.atomic():
        row = JobText.objects.select_related("technician", "job").filter(text=text).first()
        if row is None or not JobText.objects.filter(pk=row.pk, failed_at=None).update(failed_at=clock.now()):
            return
        code = f" (error {text.error_code})" if text.error_code.strip("0") else ""
        reason = f"{text.error_message or Text.Status(text.status).label}{code}"
        if text.status == Text.Status.CANCELED and not sms.goes_to(text, row.technician):
            reason = "their phone number has changed"
        transitions.append_job_event(
            row.job, "job.text_failed", technician_id=row.technician_id, technician=row.technician.name,
            text_id=text.pk, phone=row.technician.phone.as_national, reason=reason,
        )  # fmt: skip


def _record(jobs: Iterable[Job], text: Text, technician: Technician) -> list[Job]:
    """Add the text to the threads of the locked jobs. Return the jobs that did not have it."""
    handled_at = clock.now() if phrases.word_of(text.body) in phrases.CONFIRMATIONS else None
    new = []
    for job in jobs:
        transitions.lock_job(job.pk)
        _, is_new = JobText.objects.get_or_create(
            job=job,
            text=text,
            defaults={
                "organization_id": job.organization_id,
                "technician": technician,
                "handled_at": handled_at,
            },
        )
        if is_new:
            new.append(job)
    return new


def _main_job(jobs: list[Job], text: Text) -> Job | None:
    """Return the job that the text is probably about: the last one that we texted to this phone."""
    known = {job.pk: job for job in jobs}
    sent = Text.objects.filter(
        organization_id=text.organization_id,
        direction=Text.Direction.OUT,
        to_phone=text.from_phone,
        context__job_id__in=list(known),
        created_at__lte=text.created_at,
    )
    last = sent.order_by("-id").values_list("context__job_id", flat=True).first()
    return known.get(last or 0) or (jobs[-1] if jobs else None)


def _mark_handled(job: Job, actor: Actor, technician: Technician | None = None) -> int:
    """Mark unanswered texts of this job, and their copies in other threads, as handled."""
    open_rows = JobText.objects.filter(job=job, handled_at=None)
    if technician is not None:
        open_rows = open_rows.filter(technician=technician)
    ids = list(open_rows.values_list("text_id", flat=True))
    copies = JobText.objects.filter(text_id__in=ids, handled_at=None)
    counts = Counter(copies.exclude(job=job).values_list("job_id", flat=True))
    copies.update(handled_at=clock.now())
    for other in Job.objects.filter(pk__in=list(counts)).order_by("pk"):  # their cards change, too
        transitions.append_job_event(other, "job.texts_handled", actor=actor, count=counts[other.pk])
    return len(ids)


def _actor(technician: Technician) -> Actor:
    return Actor("technician", technician.pk, technician.name)
