"""What is kept of a customer: their forms and jobs."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from django.db.models import Q

from dispatch.core import personal
from dispatch.core.personal import ERASED, Part, Person, Trace
from dispatch.jobs.models import Job, Offer, Submission
from dispatch.telephony.models import Text

EMAIL_FIELDS = ("email", "customer_email", "e-mail", "mail")


def _submissions(person: Person) -> Any:
    found = Q(pk__in=[])
    if person.phone:
        found |= Q(customer_phone=person.phone)
    if person.email:
        for name in EMAIL_FIELDS:
            found |= Q(**{f"extra__{name}__iexact": person.email}) | Q(**{f"form__{name}__iexact": person.email})
    return Submission.objects.of(person.organization_id).filter(found)


def _jobs(person: Person) -> Any:
    found = Q(submission__in=_submissions(person))
    if person.phone:
        found |= Q(customer_phone=person.phone)
    return Job.objects.of(person.organization_id).filter(found)


def _texts(jobs: Iterable[int]) -> Any:
    """What technicians were texted of these jobs: it names the customer and the place."""
    ids = list(jobs)
    offers = Offer.objects.filter(job__in=ids).values("pk")
    about = Q(purpose="job", subject_id__in=ids) | Q(purpose="offer", subject_id__in=offers)
    return Text.objects.filter(about, direction=Text.Direction.OUT)


def rows(person: Person) -> dict[str, list[dict[str, Any]]]:
    return {
        "submissions": personal.as_rows(_submissions(person)),
        "jobs": personal.as_rows(_jobs(person)),
        "texts_to_technicians": personal.as_rows(_texts(_jobs(person).values_list("pk", flat=True))),
    }


def blocked_by(person: Person) -> Iterable[str]:
    for pk in _jobs(person).filter(ended_at=None).order_by("pk").values_list("pk", flat=True):
        yield f"Job {pk} is open: complete or cancel it first."
    for pk in _submissions(person).filter(status=Submission.Status.RECEIVED).values_list("pk", flat=True):
        yield f"Submission {pk} is about to become a job."


def traces(person: Person) -> list[Trace]:
    jobs = list(_jobs(person).values_list("pk", "customer_name"))
    forms = list(_submissions(person).values_list("pk", "customer_name"))
    return [
        Trace("job", [pk for pk, _ in jobs], [name for _, name in jobs]),
        Trace("submission", [pk for pk, _ in forms], [name for _, name in forms]),
    ]


def erase(person: Person) -> int:
    gone: dict[str, Any] = {
        "customer_name": ERASED, "customer_phone": "", "address": "", "lat": None, "lng": None, "notes": "",
        "extra": {},
    }  # fmt: skip
    jobs = list(_jobs(person).values_list("pk", "submission_id"))
    forms = {*_submissions(person).values_list("pk", flat=True), *(submission for _, submission in jobs)}
    Submission.objects.filter(pk__in=forms).update(form={}, idempotency_key="", **gone)
    Job.objects.filter(pk__in=[pk for pk, _ in jobs]).update(**gone)
    told = _texts(pk for pk, _ in jobs).update(body="")
    return len(forms) + len(jobs) + told


PART = Part(rows, erase, traces, blocked_by)
