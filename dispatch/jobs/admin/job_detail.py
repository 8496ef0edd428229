"""The admin page of a job: facts, history, and available actions."""

from __future__ import annotations

from typing import Any

from django.contrib import messages
from django.core.exceptions import PermissionDenied, ValidationError
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseRedirect
from django.template.response import TemplateResponse
from django.urls import reverse
from django.utils.translation import gettext

from accounts.admin.stored_values import list_pairs
from dispatch.core import clock
from dispatch.core.api.problems import Conflict
from dispatch.jobs import policies, rules
from dispatch.jobs.action_forms import (
    BUTTONS,
    PRIMARY,
    ActionForm,
    allowed_actions,
    button_of,
    describe_consequence,
    describe_obstacle,
    describe_refusal,
    perform_action,
)
from dispatch.jobs.badges import exact_time, job_badge, offer_badge, relative_time, verdict_badge
from dispatch.jobs.models import Candidate, Job
from dispatch.jobs.rules import Action
from dispatch.jobs.services.notices import describe_deferred
from dispatch.jobs.timeline import MAX_ENTRIES, Entry, load_timeline
from dispatch.technicians.rules import distance_words, rest_words, road_words


class JobDetailMixin:
    """Mixin of JobAdmin."""

    admin_site: Any
    model: type[Job]

    def change_view(
        self, request: HttpRequest, object_id: str, form_url: str = "", extra_context: Any = None
    ) -> HttpResponse:
        job = self._job(request, object_id, "view")
        template = "admin/jobs/_job.html" if request.headers.get("HX-Request") else "admin/jobs/job.html"
        context = {
            **self.admin_site.each_context(request),
            **detail_context(job, may_act=self.has_act_permission(request, job)),  # type: ignore[attr-defined]
            "title": gettext("Job #{pk}").format(pk=job.pk),
            "opts": self.model._meta,
            "original": job,
            "media": self.media,  # type: ignore[attr-defined]
        }
        return TemplateResponse(request, template, context)

    def act_view(self, request: HttpRequest, object_id: int, action: str) -> HttpResponse:
        """Show the confirmation page of an action and its consequence; perform the action on POST."""
        job = self._job(request, object_id, "act")
        try:
            chosen = Action(action.replace("-", "_"))
            _, title, dangerous = button_of(chosen, job)
        except (ValueError, KeyError):
            raise Http404 from None
        sent = request.POST if request.method == "POST" else None
        form = ActionForm(sent, action=chosen, job=job, initial={"version": job.version})
        refused: list[str] = []
        conflict = None
        if sent is not None and form.is_valid():
            try:
                result = perform_action(chosen, job, form.cleaned_data, request.actor)
            except Conflict as raised:
                conflict = raised
            except ValidationError as error:
                refused = error.messages
            else:
                if result.is_done:
                    messages.success(
                        request,
                        gettext("Job #{pk}: {done}.").format(pk=job.pk, done=gettext(rules.DONE_TO[chosen])),
                    )
                    for warning in result.warnings:
                        messages.warning(request, warning)
                    return HttpResponseRedirect(reverse("admin:jobs_job_change", args=[job.pk]))
                refused = [*result.warnings, gettext("To assign the job anyway, check “Assign anyway”.")]
            job = self._job(request, object_id, "act")
            form.show_current(job)
        obstacle = describe_obstacle(chosen, job)
        if conflict is not None:
            refused = describe_refusal(conflict, obstacle)
        context = {
            **self.admin_site.each_context(request),
            "title": title,
            "job": job,
            "state": job_badge(job),
            "form": form,
            "refused": refused,
            "obstacle": obstacle,
            "dangerous": dangerous,
            "consequence": describe_consequence(chosen, job),
            "button": button_of(chosen, job)[0].rstrip("…"),
            "opts": self.model._meta,
            "media": self.media,  # type: ignore[attr-defined]
        }
        return TemplateResponse(request, "admin/jobs/act.html", context, status=409 if refused else 200)

    def _job(self, request: HttpRequest, object_id: Any, permission: str) -> Job:
        job: Job | None = self.get_object(request, str(object_id))  # type: ignore[attr-defined]
        if job is None:
            raise Http404
        if not getattr(self, f"has_{permission}_permission")(request, job):
            raise PermissionDenied
        return job


def detail_context(job: Job, *, may_act: bool) -> dict[str, Any]:
    """Return the template context of a job's page."""
    zone, unit = job.organization.time_zone, job.organization.distance_unit
    offers = list(job.offers.select_related("technician"))
    legal = allowed_actions(job, ringing=any(offer.is_ringing for offer in offers))
    primary = PRIMARY.get(job.status)
    policy = policies.frozen_policy(job)
    return {
        "job": job,
        "state": job_badge(job),
        "zone": zone,
        "received": relative_time(job.created_at, zone),
        "is_live": job.status == Job.Status.DISPATCHING and job.paused_at is None,
        "next_in_s": _seconds_to(job),
        "waits": job.get_waiting_for_display() if job.waiting_for else "",
        "buttons": [
            {
                "url": reverse("admin:jobs_job_act", args=[job.pk, str(action).replace("_", "-")]),
                "words": button_of(action, job)[0],
                "kind": "primary" if action is primary else "danger" if BUTTONS[action][2] else "quiet",
            }
            for action in (
                sorted(legal, key=lambda option: (option is not primary, BUTTONS[option][2])) if may_act else []
            )
        ],
        "offers": [
            {
                "row": offer,
                "state": offer_badge(offer),
                "made": relative_time(offer.created_at, zone),
                "distance": distance_words(offer.distance_m, unit),
            }
            for offer in offers
        ],
        "deferred": describe_deferred(job),
        "candidates": [
            {"row": row, "state": verdict_badge(row), "distance": _travel_words(row, unit)}
            for row in job.candidates.select_related("technician")
        ],
        "rest": rest_words(job.out_of_reach),
        "entries": [_line(entry, zone) for entry in reversed(load_timeline(job))],
        "max_entries": MAX_ENTRIES,
        "policy": policy,
        "at_once": rules.offers_wanted(policy, job.priority),
        "radius": distance_words(policies.search_radius(job), unit),
        "widest": distance_words(widest, unit) if (widest := policies.widest_radius(job)) else "",
        "extra": list_pairs(job.extra),
    }


def _seconds_to(job: Job) -> int | None:
    if job.next_action_at is None:
        return None
    return max(0, int((job.next_action_at - clock.now()).total_seconds()))


def _line(entry: Entry, zone: str) -> dict[str, Any]:
    exact = exact_time(entry.at, zone)
    return {"entry": entry, "exact": exact, "clock": exact.split(" ")[1], "minor": entry.subject_type == "call"}


def _travel_words(row: Candidate, unit: str) -> str:
    if row.distance_m is None:
        return "—"
    if row.travel_s is not None:
        return gettext("{time} by road").format(time=road_words(row.travel_s).removesuffix(" by road"))
    return gettext("{distance} straight line").format(distance=distance_words(row.distance_m, unit))
