"""Personal data of customers: their submissions and jobs, and the texts about them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from django.db.models import Q

from dispatch.core.models import Event
from dispatch.core.privacy import personal_data
from dispatch.core.privacy.personal_data import ERASED, DataSubject, EventReference, PersonalDataHandler
from dispatch.jobs.models import CustomerText, Job, JobText, Offer, Submission, TechnicianNotice
from dispatch.telephony.models import Text

EMAIL_FIELDS = ("email", "customer_email", "e-mail", "mail")


def _submissions(person: DataSubject) -> Any:
    matches = Q(pk__in=[])
    if person.phone:
        matches |= Q(customer_phone=person.phone)
    if person.email:
        for name in EMAIL_FIELDS:
            matches |= Q(**{f"extra__{name}__iexact": person.email}) | Q(**{f"form__{name}__iexact": person.email})
    return Submission.objects.of(person.organization_id).filter(matches)


def _jobs(person: DataSubject) -> Any:
    matches = Q(submission__in=_submissions(person))
    if person.phone:
        matches |= Q(customer_phone=person.phone)
    return Job.objects.of(person.organization_id).filter(matches)


def _texts(jobs: Iterable[int]) -> Any:
    """Select the texts to and from technicians about these jobs, which may name the customer and the address."""
    ids = list(jobs)
    offers = Offer.objects.filter(job__in=ids).values("pk")
    notices = TechnicianNotice.objects.filter(job__in=ids).values("pk")
    about = Q(purpose="job", subject_id__in=ids) | Q(purpose="offer", subject_id__in=offers)
    about |= Q(purpose="job_news", subject_id__in=notices)
    threads = JobText.objects.filter(job__in=ids).values("text_id")
    return Text.objects.filter(Q(about, direction=Text.Direction.OUT) | Q(pk__in=threads))


def _texts_to_customer(jobs: Iterable[int]) -> Any:
    """Select the texts to the customers of these jobs, including those to a phone that was corrected later."""
    ids = CustomerText.objects.filter(job__in=list(jobs)).values("pk")
    return Text.objects.filter(purpose="customer", subject_id__in=ids, direction=Text.Direction.OUT)


def rows(person: DataSubject) -> dict[str, list[dict[str, Any]]]:
    """Return the person's submissions and jobs, and the texts about them, for the export."""
    jobs = list(_jobs(person).values_list("pk", flat=True))
    return {
        "submissions": personal_data.as_rows(_submissions(person)),
        "jobs": personal_data.as_rows(_jobs(person)),
        "texts_to_technicians": personal_data.as_rows(_texts(jobs)),
        "customer_texts": personal_data.as_rows(CustomerText.objects.filter(job__in=jobs)),
        "texts_to_the_customer": personal_data.as_rows(_texts_to_customer(jobs)),
    }


def blocked_by(person: DataSubject) -> Iterable[str]:
    """Yield the reasons why the person can't be erased yet: open jobs and unprocessed submissions."""
    for pk in _jobs(person).filter(ended_at=None).order_by("pk").values_list("pk", flat=True):
        yield f"Job {pk} is open. Complete or cancel it first."
    waiting = _texts_to_customer(_jobs(person).values_list("pk", flat=True)).filter(ended_at=None)
    if waiting.exists():
        yield "A text to them is in progress. Try again in a few minutes."
    for pk in _submissions(person).filter(status=Submission.Status.RECEIVED).values_list("pk", flat=True):
        yield f"Submission {pk} is about to become a job. Try again in a minute."


def traces(person: DataSubject) -> list[EventReference]:
    """Return the subjects whose events name the person."""
    jobs = list(_jobs(person).values_list("pk", "customer_name"))
    forms = list(_submissions(person).values_list("pk", "customer_name"))
    return [
        EventReference("job", [pk for pk, _ in jobs], [name for _, name in jobs]),
        EventReference("submission", [pk for pk, _ in forms], [name for _, name in forms]),
    ]


def erase(person: DataSubject) -> int:
    """Clear everything that identifies the person and return the number of rows changed."""
    blank: dict[str, Any] = {
        "customer_name": ERASED, "customer_phone": "", "address": "", "lat": None, "lng": None, "notes": "",
        "extra": {},
    }  # fmt: skip
    jobs = list(_jobs(person).values_list("pk", "submission_id"))
    forms = {*_submissions(person).values_list("pk", flat=True), *(submission for _, submission in jobs)}
    Submission.objects.filter(pk__in=forms).update(form={}, idempotency_key="", **blank)
    Job.objects.filter(pk__in=[pk for pk, _ in jobs]).update(address_key="", **blank)
    texts = _texts(pk for pk, _ in jobs).update(body="")
    texts += _texts_to_customer(pk for pk, _ in jobs).update(body="", to_phone="", context={})
    _erase_words_of_customer([pk for pk, _ in jobs])
    return len(forms) + len(jobs) + texts


def _erase_words_of_customer(jobs: Iterable[int]) -> None:
    """Erase what the customers wrote: their texts, and the reason of a cancellation."""
    wrote = Q(actor_type="customer") & (Q(data__has_key="body") | Q(data__has_key="reason"))
    for event in Event.objects.filter(wrote, subject_type="job", subject_id__in=list(jobs)):
        Text.objects.filter(pk=event.data.get("text_id")).update(body="", from_phone="")
        event.data |= {name: ERASED for name in ("body", "reason") if name in event.data}
        event.save(update_fields=["data"])


PART = PersonalDataHandler(rows, erase, traces, blocked_by)
