"""The customer's status page, /s/<token>/: the progress of a request."""

from __future__ import annotations

from dataclasses import dataclass
from zoneinfo import ZoneInfo

from django.http import HttpRequest, HttpResponse, HttpResponseNotAllowed
from django.shortcuts import render

from dispatch.jobs import signed_links
from dispatch.jobs.models import Job, Submission
from dispatch.jobs.public.common import with_signed_link

# Seconds between refreshes of the page until the request is final.
REFRESH_S = 15


@dataclass(frozen=True)
class RequestStatus:
    """The progress of a request.

    `tone` is a UI state. `step`: 1 received, 2 calling, 3 on the way, 4 done; 0: none.
    """

    tone: str
    icon: str
    title: str
    text: str
    step: int
    final: bool = False


@with_signed_link(signed_links.submission_of)
def status_page(request: HttpRequest, submission: Submission) -> HttpResponse:
    """Show the progress of a request. The page refreshes itself until the request is final."""
    if request.method == "POST":
        return HttpResponseNotAllowed(["GET", "HEAD"])
    status = describe_status(submission)
    return render(
        request,
        "pages/status.html",
        {
            "organization": submission.organization,
            "submission": submission,
            "status": status,
            "refresh_s": 0 if status.final else REFRESH_S,
            "steps": ("Request received", "Calling technicians", "Technician on the way", "Done"),
        },
    )


def describe_status(submission: Submission) -> RequestStatus:
    """Return the progress of a request in the customer's words."""
    job: Job | None = getattr(submission, "job", None)
    if job is None:
        return RequestStatus(
            "waiting", "clock", "We received your request", "We are looking for technicians near you.", 1
        )
    name = job.technician.name if job.technician else "A technician"
    match job.status:
        case Job.Status.ASSIGNED:
            return RequestStatus(
                "good", "check", f"{name} is on the way", "They have your address and phone number.", 3
            )
        case Job.Status.COMPLETED:
            return RequestStatus("good", "check", "The work is done", "Thank you.", 4, final=True)
        case Job.Status.CANCELLED if job.duplicate_state == Job.DuplicateState.MERGED:
            text = "You sent us two requests. We go on with the first one."
            return RequestStatus("off", "dash", "We combined this with your other request", text, 0, final=True)
        case Job.Status.CANCELLED:
            text = "If you didn't expect this, call us."
            return RequestStatus("off", "dash", "This request was cancelled", text, 0, final=True)
        case Job.Status.PENDING:
            return RequestStatus("late", "bar", "A dispatcher is handling your request", "We will call you.", 2)
    if job.paused_at:
        return RequestStatus("late", "bar", "A dispatcher is handling your request", "We will call you.", 2)
    if job.waiting_for == Job.WaitingFor.QUIET_HOURS and job.next_action_at:
        end = job.next_action_at.astimezone(ZoneInfo(submission.organization.time_zone))
        text = f"We'll call technicians at {end.hour}:{end.minute:02d}."
        return RequestStatus("waiting", "clock", "We have your request", text, 1)
    text = "We'll send the first available technician. You'll see their name here."
    return RequestStatus("calling", "phone", "We are calling technicians", text, 2)
