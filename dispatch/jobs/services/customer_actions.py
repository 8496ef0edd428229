"""Do what customers ask for on their page: cancel or correct their request, and choose its language.

A refusal gives the customer a reason in plain words and never names a dispatcher.
"""

from __future__ import annotations

from django.core.exceptions import ValidationError
from django.db import transaction

from dispatch.core import events
from dispatch.core.api.problems import Conflict
from dispatch.core.languages import gettext as _
from dispatch.core.languages import is_english, mark
from dispatch.jobs.models import Job, Submission
from dispatch.jobs.rules import Action, status_after
from dispatch.jobs.services import transitions
from dispatch.jobs.services.actions import AddressNotFound, Correction, cancel
from dispatch.jobs.services.corrections import BY_CUSTOMER, correct
from dispatch.jobs.services.customer_texts import CUSTOMER, load_policy

NOT_FOUND = mark("We can't find this address. Add the city and the ZIP code.")


class CustomerRefusal(Exception):
    """Raised if an action is not possible now. The message is for the customer."""


def can_cancel(job: Job) -> bool:
    """Return whether the customer can still cancel: the work has not started."""
    return status_after(job.status, Action.CANCEL) is not None and job.started_at is None


def can_correct(job: Job) -> bool:
    """Return whether the customer can still correct the address and the phone."""
    return can_cancel(job) and status_after(job.status, Action.CORRECT) is not None and job.paused_at is None


def contact_words(job: Job) -> str:
    """Return whom the customer can call, as an imperative without a period."""
    policy = load_policy(job.organization_id)
    name = job.organization.name
    if policy is not None and policy.contact_phone:
        return _("call {name} at {phone}").format(name=name, phone=policy.contact_phone.as_national)
    return _("call {name}").format(name=name)


def cancel_request(job_id: int, reason: str = "") -> Job:
    """Cancel the customer's job. A job that is already canceled stays as it is. Raises CustomerRefusal."""
    said = reason.strip()
    with transaction.atomic():
        job = transitions.lock_job(job_id, "organization")
        if job.status == Job.Status.CANCELLED:
            return job
        _require(job, can_cancel(job), "cancel")
        try:
            return cancel(job_id, said or "by the customer", actor=CUSTOMER, by=BY_CUSTOMER)
        except Conflict:
            raise _refusal(job, "cancel") from None


def correct_request(job_id: int, *, address: str = "", phone: str = "") -> Job:
    """Correct the address or the phone (E.164) of the customer's job. Empty keeps the current one.

    The job is `pending` afterwards if the customer has moved it too often. Call it outside any transaction,
    because it may call a geocoder. Raises CustomerRefusal, and ValidationError {address} if the address can't be
    found or nothing would change.
    """
    job = Job.objects.select_related("organization").get(pk=job_id)
    _require(job, can_correct(job), "change")
    try:
        return correct(
            job_id,
            actor=CUSTOMER,
            version=job.version,
            correction=Correction(address=address.strip()),
            customer_phone=phone,
            by=BY_CUSTOMER,
        )
    except Conflict:
        job.refresh_from_db()
        _require(job, can_correct(job), "change")
        raise CustomerRefusal(_("Your request has just changed. Please try again.")) from None
    except AddressNotFound:
        raise ValidationError({"address": _(NOT_FOUND)}) from None
    except ValidationError:
        if is_english():
            raise
        raise ValidationError({"address": _("Please check the address and the phone number.")}) from None


def change_language(submission: Submission, language: str) -> None:
    """Change the language of the customer's page and texts."""
    with transaction.atomic():
        changed = Submission.objects.filter(pk=submission.pk).exclude(language=language).update(language=language)
        if changed:
            kind = "submission.language_changed"
            events.append(submission.organization_id, kind, submission.pk, actor=CUSTOMER, language=language)


def _require(job: Job, is_allowed: bool, what: str) -> None:
    if not is_allowed:
        raise _refusal(job, what)


def _refusal(job: Job, what: str) -> CustomerRefusal:
    is_cancel = what == "cancel"
    if job.status == Job.Status.CANCELLED:
        words = _("Your request was canceled. If you didn't expect this, {contact}.")
    elif job.status == Job.Status.COMPLETED:
        words = _("The work is already done. If something is wrong, {contact}.")
    elif job.started_at is not None and is_cancel:
        words = _("The technician has already started. To cancel your request, {contact}.")
    elif job.started_at is not None:
        words = _("The technician has already started. To change your request, {contact}.")
    elif is_cancel:
        words = _("You can't cancel your request here right now. Please {contact}.")
    else:
        words = _("You can't change your request here right now. Please {contact}.")
    return CustomerRefusal(words.format(contact=contact_words(job)))
