"""Actions on several jobs that were selected in *Needs attention*: claim them, call technicians again, cancel."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import structlog
from django import forms
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseRedirect
from django.views.decorators.http import require_POST

from accounts.tenancy import user_of
from dispatch.console import views_base
from dispatch.console.board.cards import with_action_data
from dispatch.console.views_base import console_view
from dispatch.core.api.problems import Conflict
from dispatch.core.ids import read_id
from dispatch.core.languages import gettext as _
from dispatch.core.languages import mark, ngettext
from dispatch.jobs import services
from dispatch.jobs.action_forms import allowed_actions, perform_action
from dispatch.jobs.models import Job
from dispatch.jobs.reasons import REFUSALS, explain_refusal
from dispatch.jobs.rules import Action
from notifications.services import ownership

log = structlog.get_logger(__name__)

# The maximum number of jobs in one request, which bounds its cost.
MAX_JOBS = 50
# name → action, button, what it does
ACTIONS: dict[str, tuple[Action, str, str]] = {
    "dispatch-again": (
        Action.DISPATCH_AGAIN,
        mark("Call technicians again"),
        mark(
            "Ranks the available technicians again under the current policy and calls them in that order, except "
            "those who declined or can't make it."
        ),
    ),
    "cancel": (
        Action.CANCEL,
        mark("Cancel jobs"),
        mark("Cancels the jobs and ends their calls that are ringing."),
    ),
}


class CancelForm(forms.Form):
    """The reason, which every canceled job shows."""

    reason = forms.CharField(max_length=500, widget=forms.Textarea({"rows": 2}))


@dataclass
class BulkResult:
    """The ids of the jobs that were changed, and why others were not: (job id, sentence)."""

    done: list[int] = field(default_factory=list)
    refused: list[tuple[int, str]] = field(default_factory=list)


@require_POST
@console_view
def handle_selected(request: HttpRequest) -> HttpResponse:
    """Claim the selected jobs, or ask to confirm another action on them; with `confirmed`, perform it.

    `job`: a job id, or "id:version" once confirmed, so that a job that changed after the question stays as it is.
    """
    name = request.POST.get("do", "")
    versions = _read_selection(request.POST.getlist("job"))
    found = with_action_data(request.organization).in_bulk(list(versions))
    jobs = [found[pk] for pk in versions if pk in found]
    if name == "claim":
        return _claim(request, jobs)
    if name not in ACTIONS:
        raise Http404
    action = ACTIONS[name][0]
    form = CancelForm(request.POST if "confirmed" in request.POST else None) if action is Action.CANCEL else None
    if not versions or "confirmed" not in request.POST or (form is not None and not form.is_valid()):
        return _render_question(request, name, jobs, form)
    values = form.cleaned_data if form is not None else {}
    return _render_result(request, name, perform_on_each(action, found, versions, values, request.actor))


def perform_on_each(
    action: Action, jobs: Mapping[int, Job], versions: dict[int, int], values: dict[str, Any], actor: Any
) -> BulkResult:
    """Perform the action on each job of `versions` (by id) whose version is still the given one.

    A job that is refused, locked or deleted, also before the request, does not stop the others.
    """
    result = BulkResult()
    for pk, version in versions.items():
        try:
            if (job := jobs.get(pk)) is None:
                raise Job.DoesNotExist
            _check_possible(action, job, version)
            perform_action(action, job, {**values, "address": job.address, "version": version}, actor)
        except REFUSALS as error:
            result.refused.append((pk, explain_refusal(error)))
        else:
            result.done.append(pk)
    log.info("jobs_changed_in_bulk", action=str(action), done=len(result.done), refused=len(result.refused))
    return result


def _read_selection(given: Sequence[str]) -> dict[int, int]:
    """Return versions by job id, in the given order. Without a version it is 0, which no job has."""
    versions: dict[int, int] = {}
    for entry in given[:MAX_JOBS]:
        job_id, _, version = entry.partition(":")
        if (pk := read_id(job_id)) is not None:
            versions[pk] = read_id(version) or 0
    return versions


def _why_not(action: Action, job: Job) -> str:
    """Return why the action is not possible in bulk, or "".

    A job without a position would be geocoded over the network, and needs another address anyway.
    """
    if action not in allowed_actions(job, ringing=False):
        return _(str(job.get_status_display()).lower())
    return _("address not found") if action is Action.DISPATCH_AGAIN and job.lat is None else ""


def _check_possible(action: Action, job: Job, version: int) -> None:
    """Raise Conflict if the action is not possible in bulk: with the job's last change, if it is a newer one."""
    if why := _why_not(action, job):
        services.check_version(job, version)
        raise Conflict(why)


def _claim(request: HttpRequest, jobs: Sequence[Job]) -> HttpResponse:
    claimed: list[int] = []
    refused = []
    for job in jobs:
        try:
            ownership.claim(
                request.organization, ownership.JOB, job.pk, user=user_of(request), actor=request.actor
            )
        except Conflict as conflict:
            refused.append(f"#{job.pk}: {conflict.detail}")
        else:
            claimed.append(job.pk)
    if not views_base.is_fragment(request):
        return HttpResponseRedirect(views_base.return_url(request))
    said = _("Claimed {jobs}.").format(jobs=_count(len(claimed))) if claimed else _("No job was claimed.")
    return views_base.with_dom_events(
        HttpResponse(status=204),
        {
            "dispatch:note": {"text": " ".join([said, *refused[:3]]), "tone": "late" if refused else "good"},
            "claimed": "",
            "dispatch:selected": {"done": [job.pk for job in jobs]},
        },
    )


def _render_question(
    request: HttpRequest, name: str, jobs: Sequence[Job], form: CancelForm | None
) -> HttpResponse:
    action, words, consequence = ACTIONS[name]
    reasons = {job.pk: _why_not(action, job) for job in jobs}
    possible = [job for job in jobs if not reasons[job.pk]]
    context = {
        "name": name,
        "words": _(words),
        "consequence": _(consequence),
        "dangerous": action is Action.CANCEL,
        "possible": possible,
        "left_out": [(job_id, why) for job_id, why in reasons.items() if why],
        "beyond": max(0, len(request.POST.getlist("job")) - MAX_JOBS),
        "most": MAX_JOBS,
        "count": _count(len(possible)),
        "form": form,
    }
    status = 422 if form is not None and form.is_bound else 200
    return _render(request, "_bulk.html", context, status)


def _render_result(request: HttpRequest, name: str, result: BulkResult) -> HttpResponse:
    done = {"dispatch-again": _("Calling technicians again for {jobs}."), "cancel": _("Canceled {jobs}.")}[name]
    said = done.format(jobs=_count(len(result.done))) if result.done else _("Nothing was changed.")
    if not result.refused and views_base.is_fragment(request):
        answer = HttpResponse("")
        # The second event closes the panel that sent the form, so it is the last.
        events = {"dispatch:note": {"text": said, "tone": "good"}, "dispatch:selected": {"done": result.done}}
        return views_base.with_dom_events(answer, events)
    context = {"said": said, "refused": result.refused, "left": _count(len(result.refused))}
    answer = _render(request, "_bulk_result.html", context, 200)
    return views_base.with_dom_events(answer, {"dispatch:selected": {"done": result.done, "keeps_panel": True}})


def _render(request: HttpRequest, part: str, context: dict[str, Any], status: int) -> HttpResponse:
    if views_base.is_fragment(request):
        return views_base.render_fragment(request, f"console/board/{part}", context, status=status)
    context |= {"part": f"console/board/{part}", "current": "board"}
    return views_base.render_page(request, "console/board/bulk.html", context, status=status)


def _count(count: int) -> str:
    return ngettext("{count} job", "{count} jobs", count).format(count=count)
