"""A customer's status page: /s/<token>/. Where their request stands, in their words."""

from __future__ import annotations

from dataclasses import dataclass

from django.http import HttpRequest, HttpResponse, HttpResponseNotAllowed
from django.shortcuts import render

from dispatch.jobs import links
from dispatch.jobs.models import Job, Submission
from dispatch.jobs.pages.common import signed

# How often a page that is not at its end looks again, in seconds.
LOOK_AGAIN_S = 15


@dataclass(frozen=True)
class Told:
    """`tone` is a state of the design; `step` how far it is: 1 received, 2 calling, 3 somebody comes, 4 done."""

    tone: str
    icon: str
    title: str
    text: str
    step: int
    final: bool = False


@signed(links.submission_of)
def status_page(request: HttpRequest, submission: Submission) -> HttpResponse:
    if request.method == "POST":
        return HttpResponseNotAllowed(["GET", "HEAD"])
    told = tell(submission)
    return render(
        request,
        "pages/status.html",
        {
            "organization": submission.organization,
            "submission": submission,
            "told": told,
            "refresh_s": 0 if told.final else LOOK_AGAIN_S,
            "steps": ("Request received", "Calling technicians", "A technician is coming", "Done"),
        },
    )


def tell(submission: Submission) -> Told:
    """The state of a request as its customer reads it."""
    job: Job | None = getattr(submission, "job", None)
    if job is None:
        return Told("waiting", "clock", "We have your request", "We are looking for technicians near you.", 1)
    who = job.technician.name if job.technician else "A technician"
    match job.status:
        case Job.Status.ASSIGNED:
            return Told("good", "check", f"{who} is on the way", "They have your address and your number.", 3)
        case Job.Status.COMPLETED:
            return Told("good", "check", "The work is done", "Thank you for your trust.", 4, final=True)
        case Job.Status.CANCELLED:
            text = "If that is a surprise, please call us."
            return Told("off", "dash", "This request was cancelled", text, 0, final=True)
        case Job.Status.PENDING:
            return Told("late", "bar", "A dispatcher is taking care of your request", "We will call you.", 2)
    if job.paused_at:
        return Told("late", "bar", "A dispatcher is taking care of your request", "We will call you.", 2)
    text = "The first who accepts comes to you. This page tells you who."
    return Told("calling", "phone", "We are calling technicians", text, 2)
