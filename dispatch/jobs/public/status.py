"""The customer's page of a request, /s/<token>/: its progress, and the forms to cancel or correct it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any
from zoneinfo import ZoneInfo

from django.conf import settings
from django.core.exceptions import ValidationError
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.shortcuts import render

from accounts.auth import throttling
from dispatch.core import clock, languages
from dispatch.core.languages import gettext as _
from dispatch.core.languages import mark, translated
from dispatch.jobs import services, signed_links
from dispatch.jobs.models import Job, Submission
from dispatch.jobs.public.common import confirmation_of, language_choices, with_signed_link
from dispatch.jobs.public.forms import CorrectionForm
from dispatch.jobs.rules.customer_phrases import first_name, local_time
from dispatch.jobs.services import customer_actions, customer_texts, notices

# Seconds between refreshes of the page until the request is final.
REFRESH_S = 15
STEPS = (
    mark("Request received"),
    mark("Calling technicians"),
    mark("Technician assigned"),
    mark("On the way"),
    mark("Done"),
)
# Confirmations after the redirect. The URL carries only a code, so that no link can inject other text.
CONFIRMATIONS = {
    "cancelled": mark("Your request is canceled."),
    "corrected": mark("Your request has been updated."),
    "asked": mark(
        "Your request has been updated. The address has changed several times, so a dispatcher will check it "
        "and call you. No technician is called until then."
    ),
}


@dataclass(frozen=True)
class RequestStatus:
    """The progress of a request.

    `tone` is a UI state. `step`: 1 received, 2 calling, 3 assigned, 4 on the way, 5 done; 0: none.
    """

    tone: str
    icon: str
    title: str
    text: str
    step: int
    final: bool = False


@with_signed_link(signed_links.submission_of, lambda submission: submission.language)
def status_page(request: HttpRequest, submission: Submission) -> HttpResponse:
    """Show the progress of a request; on POST, cancel or correct it.

    The page refreshes itself until the request is final.
    """
    job: Job | None = getattr(submission, "job", None)
    form = CorrectionForm(job=job, organization=submission.organization)
    problem, status_code, wait_s = "", 200, 0
    if request.method == "POST":
        act = _ACTIONS.get(request.POST.get("do", "")) if job is not None else None
        chosen = request.POST.get("language", "") if request.POST.get("do") == "language" else ""
        if wait_s := _wait_s(submission):
            problem, status_code = _("Too many changes. Please wait and try again, or call us."), 429
        elif chosen in languages.CODES:
            customer_actions.change_language(submission, chosen)
            return HttpResponseRedirect(request.path, status=303)
        elif job is None or act is None:
            problem, status_code = _("The page was out of date. Please try again."), 400
        else:
            form = CorrectionForm(request.POST, job=job, organization=submission.organization)
            try:
                said = act(job, request.POST, form)
                path = signed_links.status_path(submission.pk)  # a corrected phone has ended the former link
                return HttpResponseRedirect(f"{path}?said={said}", status=303)
            except services.CustomerRefusal as refused:
                problem, status_code = str(refused), 409
            except ValidationError as refused:
                problem, status_code = " ".join(refused.messages), 400
            job.refresh_from_db()
    response = _render(request, submission, form, problem, status_code)
    if wait_s:
        response["Retry-After"] = str(wait_s)
    return response


def _render(
    request: HttpRequest, submission: Submission, form: CorrectionForm, problem: str, status_code: int
) -> HttpResponse:
    job: Job | None = getattr(submission, "job", None)
    status = describe_status(submission)
    return render(
        request,
        "pages/status.html",
        {
            "organization": submission.organization,
            "submission": submission,
            "address": job.address if job is not None else submission.address,
            "phone_end": str(submission.customer_phone if job is None else job.customer_phone)[-2:],
            "status": status,
            "arrival": job.arrival_words if job is not None and job.ended_at is None else "",
            "refresh_s": 0 if status.final else REFRESH_S,
            "languages": language_choices(),
            "steps": translated(STEPS),
            "form": form,
            "can_cancel": job is not None and customer_actions.can_cancel(job),
            "can_correct": job is not None and customer_actions.can_correct(job),
            "contact": customer_actions.contact_words(job) if job is not None else "",
            "said": "" if problem else confirmation_of(request, CONFIRMATIONS),
            "problem": problem,
            "is_correcting": bool(problem) and request.POST.get("do") == "correct",
        },
        status=status_code,
    )


def _cancel(job: Job, entered: Any, form: CorrectionForm) -> str:
    services.cancel_request(job.pk, entered.get("reason", "")[:300])
    return "cancelled"


def _correct(job: Job, entered: Any, form: CorrectionForm) -> str:
    if not form.is_valid():
        raise ValidationError(_("Please fix the errors below."))
    phone = form.cleaned_data["phone"]
    corrected = services.correct_request(job.pk, address=form.new_address, phone=phone.as_e164 if phone else "")
    return "asked" if corrected.pending_reason == Job.PendingReason.MOVED_OFTEN else "corrected"


_ACTIONS: dict[str, Callable[[Job, Any, CorrectionForm], str]] = {"cancel": _cancel, "correct": _correct}


def _wait_s(submission: Submission) -> int:
    """Return for how many seconds no change of this request is accepted; 0: it is accepted."""
    taken = throttling.take_token(f"request:{submission.pk}", throttling.parse_rate(settings.CUSTOMER_CHANGE_RATE))
    return -(-taken.wait_ms // 1000)


def describe_status(submission: Submission) -> RequestStatus:
    """Return the progress of a request in the customer's words."""
    job: Job | None = getattr(submission, "job", None)
    if job is None:
        return RequestStatus(
            "waiting", "clock", _("We received your request"), _("We are looking for technicians near you."), 1
        )
    match job.status:
        case Job.Status.ASSIGNED:
            return _describe_visit(job)
        case Job.Status.COMPLETED:
            return RequestStatus("good", "check", _("The work is done"), _("Thank you."), 5, final=True)
        case Job.Status.CANCELLED if job.duplicate_state == Job.DuplicateState.MERGED:
            text = _("You sent us two requests. We'll continue with the first one.")
            return RequestStatus("off", "dash", _("We combined this with your other request"), text, 0, final=True)
        case Job.Status.CANCELLED:
            text = _("If you didn't expect this, {contact}.").format(contact=customer_actions.contact_words(job))
            return RequestStatus("off", "dash", _("This request was canceled"), text, 0, final=True)
        case Job.Status.PENDING:
            return RequestStatus(
                "late", "bar", _("A dispatcher is handling your request"), _("We will call you."), 2
            )
    if job.paused_at:
        return RequestStatus("late", "bar", _("A dispatcher is handling your request"), _("We will call you."), 2)
    if job.waiting_for == Job.WaitingFor.QUIET_HOURS and job.next_action_at:
        end = job.next_action_at.astimezone(ZoneInfo(submission.organization.time_zone))
        text = _("We'll call technicians at {time}.").format(time=f"{end.hour}:{end.minute:02d}")
        return RequestStatus("waiting", "clock", _("We have your request"), text, 1)
    if job.waiting_for == Job.WaitingFor.WINDOW:
        return RequestStatus(
            "waiting", "clock", _("We have your request"), _("We'll find a technician in time."), 1
        )
    text = _("We'll send the first available technician. You'll see their name here.")
    return RequestStatus("calling", "phone", _("We are calling technicians"), text, 2)


def _describe_visit(job: Job) -> RequestStatus:
    """Return the progress of an assigned job: the technician and the arrival."""
    name = first_name(job.technician.name) if job.technician else _("A technician")
    if job.started_at is not None:
        text = _("{technician} has started the work.").format(technician=name)
        return RequestStatus(
            "good", "check", _("{technician} is working on your request").format(technician=name), text, 4
        )
    step = 3 if job.on_the_way_at is None else 4
    if customer_texts.is_delay_newest(job):
        text = _("They have your address and phone number.")
        title = _("{technician} is running about {minutes} minutes late")
        title = title.format(technician=name, minutes=job.late_minutes)
        return RequestStatus("late", "bar", title, text, step)
    if job.on_the_way_at is None:
        text = _("They have your address and phone number. You'll see here when they are on the way.")
        if notices.is_assignment_deferred(job):
            text = _("You'll see here when they are on the way.")
        return RequestStatus("good", "check", _("{technician} is coming").format(technician=name), text, step)
    if job.eta_at is None:
        text = _("They have your address and phone number.")
    elif job.eta_at < clock.now():
        text = _("They should be with you any moment.")
    else:
        text = _("Expected at about {time}.").format(time=local_time(job.eta_at, job.organization.time_zone))
    return RequestStatus("good", "check", _("{technician} is on the way").format(technician=name), text, step)
