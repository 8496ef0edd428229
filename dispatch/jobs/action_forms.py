"""Actions on a job as forms: which are allowed, buttons, fields, consequences, and performing the action.

The admin's job page, the board's job panel and the API share them.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, NamedTuple

from django import forms
from django.utils.text import normalize_newlines
from phonenumber_field.formfields import PhoneNumberField

from dispatch.core.api.problems import Conflict
from dispatch.core.events import Actor
from dispatch.core.languages import gettext as _
from dispatch.core.languages import mark, ngettext
from dispatch.jobs import services
from dispatch.jobs.models import Job, Offer, Priority
from dispatch.jobs.rules import Action, actions_in
from dispatch.jobs.rules.duplicates import on_one_line
from dispatch.jobs.rules.on_the_way import MAX_ETA_MINUTES, MAX_LATE_MINUTES
from dispatch.jobs.rules.phrases import join_names
from dispatch.jobs.services.corrections import KEEP
from dispatch.jobs.services.notices import find_uninformed
from dispatch.jobs.window_fields import NAMES as WINDOW_FIELDS
from dispatch.jobs.window_fields import add_window_fields, clean_window
from dispatch.technicians.models import Technician

# action → button, title of the form, whether it is dangerous
BUTTONS: dict[Action, tuple[str, str, bool]] = {
    Action.ASSIGN: (mark("Assign…"), mark("Assign this job"), False),
    Action.DISPATCH_AGAIN: (mark("Call technicians again…"), mark("Call technicians again"), False),
    Action.CALL_NEXT: (mark("Call next now…"), mark("Call the next technician now"), False),
    Action.EXTEND: (mark("Give more time…"), mark("Give the technician more time"), False),
    Action.PAUSE: (mark("Pause…"), mark("Pause this job"), False),
    Action.RESUME: (mark("Resume…"), mark("Resume this job"), False),
    Action.CORRECT: (mark("Correct…"), mark("Correct this job"), False),
    Action.CANNOT_MAKE_IT: (mark("Can't make it…"), mark("The technician can't make it"), True),
    Action.CANCEL: (mark("Cancel job…"), mark("Cancel this job"), True),
    Action.ON_THE_WAY: (mark("On the way…"), mark("The technician is on the way"), False),
    Action.REPORT_LATE: (mark("Running late…"), mark("The technician is running late"), False),
    Action.MARK_STARTED: (mark("Mark started…"), mark("The technician has started"), False),
    Action.REOPEN: (mark("Reopen…"), mark("Reopen this job"), False),
    Action.COMPLETE: (mark("Complete…"), mark("Mark this job as completed"), False),
    Action.MERGE_DUPLICATE: (mark("Merge…"), mark("Merge this job into the other one"), True),
    Action.TECHNICIAN_TOLD: (mark("I told them…"), mark("The technician was informed of the change"), False),
    Action.NOT_A_DUPLICATE: (mark("Not a duplicate…"), mark("This is not a duplicate"), False),
}
# The fields of a correction.
CORRECTED = (
    "address",
    "customer_name",
    "customer_phone",
    "priority",
    *WINDOW_FIELDS,
    "expected_minutes",
    "notes",
)
# The primary button by status.
_HELD = (Job.WaitingFor.QUIET_HOURS, Job.WaitingFor.WINDOW)
PRIMARY = {"dispatching": Action.ASSIGN, "pending": Action.ASSIGN, "assigned": Action.COMPLETE}


def allowed_actions(job: Job, *, ringing: bool) -> list[Action]:
    """Return the actions that a dispatcher may take on the job now, in button order. `ringing`: a phone rings."""
    return actions_in(
        job.status,
        paused=job.paused_at is not None,
        ringing=ringing,
        started=job.started_at is not None,
        duplicate=job.is_possible_duplicate,
        uninformed=job.has_uninformed_technician,
    )


def button_of(action: Action, job: Job) -> tuple[str, str, bool]:
    """Return `BUTTONS` of the action, in the words for this job."""
    if action is Action.CALL_NEXT and job.waiting_for in _HELD:
        return (_("Call now…"), _("Call technicians now"), False)
    if action is Action.MERGE_DUPLICATE:
        other = job.duplicate_of_id
        return (
            _("Merge into #{job}…").format(job=other),
            _("Merge this job into job {job}").format(job=other),
            True,
        )
    button, title, is_dangerous = BUTTONS[action]
    return _(button), _(title), is_dangerous


def describe_obstacle(action: Action, job: Job) -> str:
    """Return why the job, as it is now, does not allow the action, with its last change. Empty: it does."""
    try:
        services.check_legal(job, action)
        if action in (Action.MERGE_DUPLICATE, Action.NOT_A_DUPLICATE):
            services.flagged_duplicate(job)
    except services.IllegalTransition as refusal:
        return str(refusal.detail)
    return ""


def describe_refusal(conflict: Conflict, obstacle: str = "") -> list[str]:
    """Return why an action was refused and what to do next, as sentences.

    `obstacle`: why the job does not allow the action now (`describe_obstacle`).
    """
    if obstacle or isinstance(conflict, services.IllegalTransition):  # a second confirmation would be refused too
        return [obstacle or str(conflict.detail), _("Nothing was changed.")]
    return [str(conflict.detail), _("Nothing was changed. Review the job and confirm again.")]


class AddressField(forms.CharField):
    """An address in as many lines as people like, read as one."""

    def __init__(self, **options: Any) -> None:
        super().__init__(
            label=_("Address"), required=False, max_length=300, widget=forms.Textarea({"rows": 2}), **options
        )

    def to_python(self, value: Any) -> str:
        return on_one_line(super().to_python(value) or "")


class ActionForm(forms.Form):
    """The fields of one action. `version` is the version of the job that the person saw.

    `seen` of a correction: the values that the person saw, as JSON. Only the fields that they changed are sent.
    """

    version = forms.IntegerField(widget=forms.HiddenInput)

    def __init__(self, *args: Any, action: Action, job: Job, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.action = action
        if action is Action.ASSIGN:
            technicians = Technician.objects.of(job.organization_id).filter(is_active=True).order_by("name")
            self.fields["technician"] = forms.ModelChoiceField(
                queryset=technicians, label=_("Technician"), empty_label=_("Choose a technician")
            )
            self.fields["confirm_unfit"] = forms.BooleanField(
                required=False,
                label=_("Assign anyway"),
                help_text=_("Even if off duty, too far away or at their limit."),
            )
            if "window_day" in (self.data or self.initial):  # dropped at a time on the timeline
                add_window_fields(self, job.organization.time_zone, job.arrival_window)
        if action is Action.DISPATCH_AGAIN:
            self.fields["address"] = AddressField(
                initial=job.address, help_text=_("Correct the address if it's wrong.")
            )
        if action is Action.CORRECT:
            self.fields["address"] = AddressField(initial=job.address)
            self.fields["customer_name"] = forms.CharField(
                max_length=120, initial=job.customer_name, label=_("Customer's name")
            )
            self.fields["customer_phone"] = PhoneNumberField(
                initial=job.customer_phone, region=job.organization.default_region, label=_("Customer's phone")
            )
            self.fields["priority"] = forms.TypedChoiceField(
                choices=[(value, _(label)) for value, label in Priority.choices],
                label=_("Priority"),
                coerce=int,
                empty_value=None,
                required=False,
                initial=job.priority,
            )
            add_window_fields(self, job.organization.time_zone, job.arrival_window)
            self.fields["expected_minutes"] = forms.IntegerField(
                min_value=5,
                max_value=1440,
                required=False,
                initial=job.expected_minutes,
                label=_("Minutes of work"),
            )
            self.fields["notes"] = forms.CharField(
                max_length=4000,
                required=False,
                initial=job.notes,
                label=_("Notes about the job"),
                widget=forms.Textarea({"rows": 3}),
            )
            self.fields["seen"] = forms.CharField(
                required=False, widget=forms.HiddenInput, initial=json.dumps(self._shown_values())
            )
        if action is Action.EXTEND:
            self.fields["seconds"] = forms.IntegerField(
                min_value=1, max_value=3600, initial=120, label=_("Extra seconds")
            )
        if action is Action.ON_THE_WAY:
            self.fields["eta_minutes"] = forms.IntegerField(
                min_value=1, max_value=MAX_ETA_MINUTES, required=False, label=_("Minutes until they arrive")
            )
        if action is Action.REPORT_LATE:
            self.fields["minutes"] = forms.IntegerField(
                min_value=1, max_value=MAX_LATE_MINUTES, initial=20, label=_("Minutes late")
            )
        if action is Action.TECHNICIAN_TOLD:
            uninformed = {notice.technician_id: notice.technician.name for notice in find_uninformed(job)}
            if len(uninformed) > 1:
                self.fields["who_knows"] = forms.TypedChoiceField(
                    choices=[("", _("All of them")), *uninformed.items()],
                    coerce=int,
                    empty_value=None,
                    required=False,
                    label=_("Who was informed"),
                )
        if action is Action.CANCEL:
            self.fields["reason"] = forms.CharField(
                max_length=500, label=_("Reason"), widget=forms.Textarea({"rows": 2})
            )
        else:
            self.fields["note"] = forms.CharField(
                max_length=500, required=False, label=_("Note"), widget=forms.Textarea({"rows": 2})
            )

    def clean(self) -> dict[str, Any]:
        values = super().clean() or self.cleaned_data
        if self.action is Action.CORRECT:
            changed = values["changed"] = self._changed_fields()
            for name in (name for name in CORRECTED if name not in changed):
                self.errors.pop(name, None)
            values["window"] = KEEP
            if not changed.isdisjoint(WINDOW_FIELDS):
                clean_window(self, values)
            if "notes" in values:
                values["notes"] = normalize_newlines(values["notes"])  # browsers send CRLF
        if self.action is Action.ASSIGN and "window_day" in self.fields:
            clean_window(self, values)
        return values

    def show_current(self, job: Job) -> None:
        """Show the job as it is now, with what the person entered, for another attempt."""
        self.data = {**dict(self.data.items()), "version": str(job.version)}
        if self.action is Action.CORRECT:
            now = ActionForm(action=self.action, job=job)._shown_values()
            changed = self.cleaned_data["changed"]
            self.data |= {name: text for name, text in now.items() if name not in changed}
            self.data["seen"] = json.dumps(now)

    def _shown_values(self) -> dict[str, str]:
        """Return the job's values as the fields of a correction show them."""
        shown = {}
        for name in CORRECTED:
            field = self.fields[name]
            text = field.widget.format_value(field.prepare_value(field.initial))
            shown[name] = str((text[0] if isinstance(text, list) else text) or "")
        return shown

    def _changed_fields(self) -> set[str]:
        """Return the fields that differ from what the person saw. Without `seen`, compare with the job."""
        try:
            seen = json.loads(self.data.get("seen") or "null")
        except (ValueError, RecursionError):
            seen = None
        if not isinstance(seen, dict):
            seen = self._shown_values()

        def read(name: str, text: Any) -> Any:
            try:
                return self.fields[name].clean(normalize_newlines(str(text)))
            except forms.ValidationError:
                return str(text)

        values = {name: read(name, self.data.get(name, "")) for name in CORRECTED}
        return {name for name, value in values.items() if value != read(name, seen.get(name, ""))}


class ActionResult(NamedTuple):
    """Whether the action was performed. If not, nothing has changed, and the warnings need confirmation."""

    is_done: bool
    warnings: tuple[str, ...] = ()


def perform_action(action: Action, job: Job, values: dict[str, Any], actor: Actor) -> ActionResult:
    """Perform the action. Raises Conflict and ValidationError."""
    decision = {"actor": actor, "version": values["version"]}
    note = {"note": values.get("note", "")}
    if action is Action.ASSIGN:
        result = services.assign(
            job.pk,
            values["technician"].pk,
            confirm_unfit=values["confirm_unfit"],
            window=values.get("window"),
            **decision,
            **note,
        )
        return ActionResult(result.assigned, result.warnings)
    simple: dict[Action, Callable[..., Any]] = {
        Action.CALL_NEXT: services.call_next_now,
        Action.PAUSE: services.pause,
        Action.RESUME: services.resume,
        Action.CANNOT_MAKE_IT: services.cannot_make_it,
        Action.MARK_STARTED: services.mark_started,
        Action.COMPLETE: services.complete,
        Action.REOPEN: services.reopen,
        Action.MERGE_DUPLICATE: services.merge_duplicate,
        Action.NOT_A_DUPLICATE: services.dismiss_duplicate,
    }
    if action is Action.CANCEL:
        services.cancel(job.pk, values["reason"], **decision)
    elif action is Action.EXTEND:
        services.extend(job.pk, values["seconds"], **decision, **note)
    elif action is Action.ON_THE_WAY:
        services.report_on_the_way(job.pk, eta_minutes=values["eta_minutes"], **decision, **note)
    elif action is Action.REPORT_LATE:
        services.report_late(job.pk, values["minutes"], **decision, **note)
    elif action is Action.TECHNICIAN_TOLD:
        services.mark_technician_told(job.pk, values.get("who_knows"), **decision, **note)
    elif action is Action.DISPATCH_AGAIN:
        is_same = on_one_line(values["address"]) == on_one_line(job.address)
        corrected = "" if is_same else values["address"]
        services.dispatch_again(job.pk, correction=services.Correction(address=corrected), **decision, **note)
    elif action is Action.CORRECT:
        changed = values["changed"]
        details = {name: values[name] for name in changed & {"customer_name", "notes", "expected_minutes"}}
        services.correct(
            job.pk,
            correction=services.Correction(address=values["address"] if "address" in changed else ""),
            customer_phone=str(values["customer_phone"]) if "customer_phone" in changed else "",
            priority=values["priority"] if "priority" in changed else None,
            details=services.Details(window=values["window"], **details),
            **decision,
            **note,
        )
    else:
        simple[action](job.pk, **decision, **note)
    return ActionResult(is_done=True)


def describe_consequence(action: Action, job: Job) -> str:
    """Return a sentence that says what the action will do."""
    live = job.offers.filter(status=Offer.Status.PENDING).select_related("technician").order_by("slot")
    called = join_names(offer.technician.name for offer in live) if live else ""
    hangs_up = _(" and hangs up on {names}").format(names=called) if called else ""
    name = job.technician.name if job.technician else _("the technician")
    if action is Action.CALL_NEXT and job.waiting_for == Job.WaitingFor.QUIET_HOURS:
        return _("Starts calling technicians now, during quiet hours.")
    if action is Action.CALL_NEXT and job.waiting_for == Job.WaitingFor.WINDOW:
        return _("Starts calling technicians now, without waiting for the arrival window.")
    if action is Action.TECHNICIAN_TOLD:
        found = find_uninformed(job)
        known = [
            _("{name} knows that {news}").format(name=notice.technician.name, news=_(notice.get_news_display()))
            for notice in found
        ]
        effect = (
            _("No text or call about it follows.")
            if found and all(notice.is_deferred for notice in found)
            else _("Ends the alert.")
        )
        facts = _(" and that ").join(known) or _("the technician was informed")
        return _("Records that {facts}.").format(facts=facts) + f" {effect}"
    if action is Action.CANNOT_MAKE_IT and (hold := services.describe_hold(job))[0]:
        if hold[0] == Job.WaitingFor.QUIET_HOURS:
            words = _("Removes {name} from this job. Technicians are called from {time}, when quiet hours end.")
        else:
            words = _(
                "Removes {name} from this job. Technicians are called from {time}, in time for the arrival window."
            )
        return words.format(name=name, time=hold[1])
    return {
        Action.ASSIGN: _("Assigns the job to the technician you choose{hangs_up}.").format(hangs_up=hangs_up),
        Action.DISPATCH_AGAIN: _(
            "Ranks the available technicians again under the current policy and calls them in that order, except "
            "those who declined or can't make it."
        ),
        Action.CALL_NEXT: ngettext(
            "Calls the next technician immediately{hangs_up}.",
            "Calls the next technicians immediately{hangs_up}.",
            max(1, len(live)),
        ).format(hangs_up=hangs_up),
        Action.EXTEND: _("Gives {name} more time to answer.").format(name=called or _("the technician")),
        Action.PAUSE: _("Stops calling{hangs_up}. Calling continues when you resume the job.").format(
            hangs_up=hangs_up
        ),
        Action.RESUME: _("Continues calling from the next technician."),
        Action.CORRECT: (
            _("Changes the job and notifies {name} of a new address, phone or arrival window.").format(name=name)
            if job.technician
            else _("Changes the job.")
        )
        + (
            _(" A new address or window starts the calls over{hangs_up}.").format(hangs_up=hangs_up)
            if job.status == "dispatching"
            else ""
        ),
        Action.CANNOT_MAKE_IT: _("Removes {name} from this job and calls the technicians available now.").format(
            name=name
        ),
        Action.CANCEL: _("Cancels the job{hangs_up}.").format(hangs_up=hangs_up)
        + (_(" Notifies {name}.").format(name=name) if job.technician else ""),
        Action.ON_THE_WAY: _("Records that {name} is on the way. The customer's page shows it.").format(name=name),
        Action.REPORT_LATE: _("Records that {name} is running late. The customer's page shows it.").format(
            name=name
        ),
        Action.MARK_STARTED: _("Records that {name} has started the work.").format(name=name),
        Action.COMPLETE: _("Marks the job as done by {name}. You can reopen it.").format(name=name),
        Action.REOPEN: _("Undoes the completion. {name} has the job again and is notified.").format(name=name),
        Action.MERGE_DUPLICATE: _(
            "Cancels this job as a duplicate of job {job}{hangs_up}. Its notes are added to that job's history."
        ).format(job=job.duplicate_of_id, hangs_up=hangs_up)
        + (_(" Notifies {name}.").format(name=name) if job.technician else ""),
        Action.NOT_A_DUPLICATE: _("Removes the flag. This job and job {job} both go on.").format(
            job=job.duplicate_of_id
        ),
    }[action]
