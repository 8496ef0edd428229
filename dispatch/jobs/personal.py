"""Personal data of customers: their submissions and jobs, and the texts about them.

And of technicians: the calls and texts to them about jobs, which may have gone to an earlier phone.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from django.db.models import Q

from accounts.models import User
from dispatch.core.models import Event, RememberedAnswer
from dispatch.core.privacy import personal_data
from dispatch.core.privacy.personal_data import (
    ERASED,
    DataSubject,
    EventReference,
    Identifiers,
    PersonalDataHandler,
)
from dispatch.jobs.models import CustomerText, Job, JobNote, JobText, Offer, Submission, TechnicianNotice
from dispatch.jobs.models.notes import notes_endpoint
from dispatch.technicians.models import Technician
from dispatch.telephony.models import Call, Text

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


def _notes(jobs: Iterable[int]) -> Any:
    """Select the notes on these jobs, whose text may name the customer."""
    return JobNote.objects.filter(job__in=list(jobs))


def _notes_by_user(person: DataSubject) -> Any:
    """Select the notes that the member wrote."""
    notes = JobNote.objects.of(person.organization_id)
    return notes.filter(author=person.user_id) if person.user_id is not None else notes.none()


def _notes_about_user(person: DataSubject) -> Any:
    """Select the notes that mention the member."""
    notes = JobNote.objects.of(person.organization_id)
    if person.user_id is None:
        return notes.none()
    return notes.filter(mentions__contains=[{"users": [person.user_id]}])


def _texts_to_technician(person: DataSubject) -> Any:
    """Select the texts to and from the technician about jobs, including those of an earlier phone."""
    if person.technician_id is None:
        return Text.objects.none()
    offers = Offer.objects.filter(technician=person.technician_id).values("pk")
    notices = TechnicianNotice.objects.filter(technician=person.technician_id).values("pk")
    threads = JobText.objects.filter(technician=person.technician_id).values("text_id")
    about = Q(purpose="offer", subject_id__in=offers) | Q(purpose="job_news", subject_id__in=notices)
    return Text.objects.of(person.organization_id).filter(about | Q(pk__in=threads))


def _calls_to_technician(person: DataSubject) -> Any:
    if person.technician_id is None:
        return Call.objects.none()
    offers = Offer.objects.filter(technician=person.technician_id).values("pk")
    return Call.objects.of(person.organization_id).filter(purpose="offer", subject_id__in=offers)


def identifiers(person: DataSubject) -> Identifiers:
    """Return phones, emails, names and addresses of the person's submissions and jobs.

    Phones and emails of technicians and members identify these, not the customer who gave one of them.
    """
    submissions, jobs = _submissions(person), _jobs(person)
    phones, emails, names = set[str](), set[str](), set[str]()
    for rows in (submissions, jobs):
        for phone, name, address in rows.values_list("customer_phone", "customer_name", "address"):
            phones.add(str(phone or ""))
            names |= {name, address} - {ERASED}
    for form, extra in submissions.values_list("form", "extra"):
        for given in (form, extra):
            emails |= {str(given.get(key) or "").strip().lower() for key in EMAIL_FIELDS}
    texted = _texts_to_customer(list(jobs.values_list("pk", flat=True)))
    phones |= {str(phone or "") for phone in texted.values_list("to_phone", flat=True)}
    phones -= set(map(str, _phones_of_staff(person.organization_id, phones)))
    emails -= set(User.objects.filter(email__in=emails).values_list("email", flat=True))
    return Identifiers(frozenset(phones - {""}), frozenset(emails - {""}), frozenset(names - {""}))


def _phones_of_staff(organization_id: int, phones: Iterable[str]) -> set[str]:
    technicians = Technician.objects.of(organization_id).filter(phone__in=phones)
    members = User.objects.filter(memberships__organization_id=organization_id, phone__in=phones)
    return {*technicians.values_list("phone", flat=True), *members.values_list("phone", flat=True)}


def rows(person: DataSubject) -> dict[str, list[dict[str, Any]]]:
    """Return the person's submissions and jobs, and the texts about them, for the export."""
    jobs = list(_jobs(person).values_list("pk", flat=True))
    return {
        "submissions": personal_data.as_rows(_submissions(person)),
        "jobs": personal_data.as_rows(_jobs(person)),
        "texts_to_technicians": personal_data.as_rows(_texts(jobs)),
        "customer_texts": personal_data.as_rows(CustomerText.objects.filter(job__in=jobs)),
        "texts_to_the_customer": personal_data.as_rows(_texts_to_customer(jobs)),
        "texts_about_jobs": personal_data.as_rows(_texts_to_technician(person)),
        "notes_on_jobs": personal_data.as_rows(_notes(jobs), "id", "job_id", "text", "written_at"),
        "notes_written": personal_data.as_rows(
            _notes_by_user(person), "id", "job_id", "author_label", "text", "written_at"
        ),
        "notes_that_mention_them": personal_data.as_rows(
            _notes_about_user(person), "id", "job_id", "author_label", "text", "written_at"
        ),
        "calls_about_jobs": personal_data.as_rows(_calls_to_technician(person)),
    }


def blocked_by(person: DataSubject) -> Iterable[str]:
    """Yield the reasons why the person can't be erased yet: open jobs and unprocessed submissions."""
    for pk in _jobs(person).filter(ended_at=None).order_by("pk").values_list("pk", flat=True):
        yield f"Job {pk} is open. Complete or cancel it first."
    waiting = _texts_to_customer(_jobs(person).values_list("pk", flat=True)).filter(ended_at=None)
    if waiting.exists():
        yield "A text to them is in progress. Try again in a few minutes."
    if _texts_to_technician(person).filter(ended_at=None).exists():
        yield "A text to them is in progress. Try again in a few minutes."
    for pk in _submissions(person).filter(status=Submission.Status.RECEIVED).values_list("pk", flat=True):
        yield f"Submission {pk} is about to become a job. Try again in a minute."


def traces(person: DataSubject) -> list[EventReference]:
    """Return the subjects whose events name the person."""
    jobs = list(_jobs(person).values_list("pk", "customer_name"))
    forms = list(_submissions(person).values_list("pk", "customer_name"))
    texts, calls = _texts_to_technician(person), _calls_to_technician(person)
    ids = [pk for pk, _ in jobs]
    about = {row.pk for rows in (_texts(ids), _texts_to_customer(ids)) for row in rows.only("pk")}
    return [
        EventReference("job", [pk for pk, _ in jobs], [name for _, name in jobs]),
        EventReference("submission", [pk for pk, _ in forms], [name for _, name in forms]),
        EventReference("text", sorted(about)),
        *(
            EventReference(kind, list(rows.values_list("pk", flat=True)), _earlier_phones(rows))
            for kind, rows in (("text", texts), ("call", calls))
        ),
    ]


def _earlier_phones(rows: Any) -> list[str]:
    return [str(phone) for phone in rows.values_list("to_phone", flat=True).distinct() if phone]


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
    notes = _notes(pk for pk, _ in jobs).update(text=ERASED, mentions=[])
    notes += _erase_responses(person.organization_id, [pk for pk, _ in jobs])
    notes += _erase_member_in_notes(person)
    _erase_words_of_customer([pk for pk, _ in jobs])
    about = _texts_to_technician(person)
    texts += about.filter(direction=Text.Direction.IN).update(from_phone="", body="")
    texts += about.exclude(direction=Text.Direction.IN).update(to_phone="", body="", context={})
    calls = _calls_to_technician(person).update(to_phone="", context={})
    return len(forms) + len(jobs) + texts + notes + calls


def _erase_member_in_notes(person: DataSubject) -> int:
    """Replace the member's name in the notes that they wrote or that mention them. Return how many notes."""
    own, about = _notes_by_user(person), _notes_about_user(person)
    jobs = [*own.values_list("job_id", flat=True), *about.values_list("job_id", flat=True)]
    count: int = _erase_responses(person.organization_id, jobs)
    count += own.update(author_label=ERASED)
    for note in about.select_for_update(no_key=True).order_by("pk"):
        text, mentions, shift = note.text, [], 0
        for mention in note.mentions:
            start, end = mention["start"] + shift, mention["end"] + shift
            if person.user_id in mention["users"]:
                text = f"{text[:start]}@{ERASED}{text[end:]}"
                shift += 1 + len(ERASED) - (end - start)
            else:
                mentions.append({**mention, "start": start, "end": end})
        note.text, note.mentions = text, mentions
        note.save(update_fields=["text", "mentions"])
        count += 1
    return count


def _erase_responses(organization_id: int, jobs: Iterable[int]) -> int:
    """Delete the API's stored responses with notes on these jobs. Return how many."""
    endpoints = [notes_endpoint(job) for job in set(jobs)]
    stored = RememberedAnswer.objects.filter(organization_id=organization_id, endpoint__in=endpoints)
    count: int = stored.delete()[0]
    return count


def _erase_words_of_customer(jobs: Iterable[int]) -> None:
    """Erase what the customers wrote: their texts, and the reason of a cancellation."""
    wrote = Q(actor_type="customer") & (Q(data__has_key="body") | Q(data__has_key="reason"))
    for event in Event.objects.filter(wrote, subject_type="job", subject_id__in=list(jobs)):
        Text.objects.filter(pk=event.data.get("text_id")).update(body="", from_phone="")
        event.data |= {name: ERASED for name in ("body", "reason") if name in event.data}
        event.save(update_fields=["data"])


PART = PersonalDataHandler(
    rows, erase, traces, blocked_by, identifiers, keeps=("jobs.CustomerTextPolicy", "jobs.PublicForm")
)
