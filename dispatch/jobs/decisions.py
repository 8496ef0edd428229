"""What a person may decide about a job: the buttons, what each asks and what it will do, and doing it.

The admin's page of a job and the board's drawer ask in these words."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from django import forms

from dispatch.core.events import Actor
from dispatch.jobs import services
from dispatch.jobs.models import Job, Offer
from dispatch.jobs.rules import Action
from dispatch.technicians.models import Technician

# action → the button, what it asks, whether it is dangerous
BUTTONS: dict[Action, tuple[str, str, bool]] = {
    Action.ASSIGN: ("Assign…", "Assign this job by hand", False),
    Action.DISPATCH_AGAIN: ("Dispatch again…", "Call technicians again, with a fresh ranking", False),
    Action.CALL_NEXT: ("Call the next now…", "Call the next technician now", False),
    Action.EXTEND: ("Give more time…", "Give the technician more time", False),
    Action.PAUSE: ("Pause…", "Pause this job", False),
    Action.RESUME: ("Resume…", "Resume this job", False),
    Action.CANNOT_MAKE_IT: ("Cannot make it…", "The technician cannot make it", True),
    Action.CANCEL: ("Cancel…", "Cancel this job", True),
    Action.COMPLETE: ("Complete…", "Mark this job as completed", False),
}
# The one primary button, by status.
PRIMARY = {"dispatching": Action.ASSIGN, "pending": Action.ASSIGN, "assigned": Action.COMPLETE}


class ActionForm(forms.Form):
    """The fields of one action; `version` is what the person saw when they decided."""

    version = forms.IntegerField(widget=forms.HiddenInput)

    def __init__(self, *args: Any, action: Action, job: Job, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        if action is Action.ASSIGN:
            crew = Technician.objects.of(job.organization_id).filter(is_active=True).order_by("name")
            self.fields["technician"] = forms.ModelChoiceField(queryset=crew, empty_label="Choose a technician")
            self.fields["confirm_unfit"] = forms.BooleanField(
                required=False, label="Assign even if unfit", help_text="Off duty, too far, at their limit …"
            )
        if action is Action.DISPATCH_AGAIN:
            self.fields["address"] = forms.CharField(
                required=False, max_length=300, initial=job.address, help_text="Correct it if it is wrong."
            )
        if action is Action.EXTEND:
            self.fields["seconds"] = forms.IntegerField(min_value=1, max_value=3600, initial=120, label="Seconds")
        if action is Action.CANCEL:
            self.fields["reason"] = forms.CharField(
                max_length=500, label="Why", widget=forms.Textarea({"rows": 2})
            )
        else:
            self.fields["note"] = forms.CharField(
                max_length=500, required=False, label="Note", widget=forms.Textarea({"rows": 2})
            )


def perform(action: Action, job: Job, given: dict[str, Any], actor: Actor) -> tuple[str, ...]:
    """Does it; warnings that must be confirmed first. Raises Conflict, ValidationError."""
    decided = {"actor": actor, "version": given["version"]}
    note = {"note": given.get("note", "")}
    if action is Action.ASSIGN:
        result = services.assign(
            job.pk, given["technician"].pk, confirm_unfit=given["confirm_unfit"], **decided, **note
        )
        return () if result.assigned else result.warnings
    simple: dict[Action, Callable[..., Any]] = {
        Action.CALL_NEXT: services.call_next_now,
        Action.PAUSE: services.pause,
        Action.RESUME: services.resume,
        Action.CANNOT_MAKE_IT: services.cannot_make_it,
        Action.COMPLETE: services.complete,
    }
    if action is Action.CANCEL:
        services.cancel(job.pk, given["reason"], **decided)
    elif action is Action.EXTEND:
        services.extend(job.pk, given["seconds"], **decided, **note)
    elif action is Action.DISPATCH_AGAIN:
        corrected = given["address"] if given["address"] != job.address else ""
        services.dispatch_again(job.pk, correction=services.Correction(address=corrected), **decided, **note)
    else:
        simple[action](job.pk, **decided, **note)
    return ()


def consequence(action: Action, job: Job) -> str:
    """What will happen, in words, before it does."""
    live = job.offers.filter(status=Offer.Status.PENDING).select_related("technician").first()
    hangs_up = f" and hangs up on {live.technician.name}" if live else ""
    who = job.technician.name if job.technician else "the technician"
    return {
        Action.ASSIGN: f"Gives the job to the technician you choose{hangs_up}.",
        Action.DISPATCH_AGAIN: "Ranks who is near now and calls them one after another.",
        Action.CALL_NEXT: f"Calls the next technician at once{hangs_up}.",
        Action.EXTEND: f"{live.technician.name if live else 'The technician'} has so much longer to answer.",
        Action.PAUSE: f"Calls nobody until the job is resumed{hangs_up}.",
        Action.RESUME: "Goes on calling technicians where it stopped.",
        Action.CANNOT_MAKE_IT: f"Takes the job from {who} for good, and calls the next technician.",
        Action.CANCEL: f"Cancels the job{hangs_up}." + (f" {who} is freed." if job.technician else ""),
        Action.COMPLETE: f"Marks the job as done by {who}.",
    }[action]
