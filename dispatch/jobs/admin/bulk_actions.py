"""Bulk actions of the admin's job list. Each asks first and acts on the versions of the jobs that it showed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from django.contrib import admin, messages
from django.core.exceptions import ValidationError
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse
from django.template.response import TemplateResponse

from dispatch.core.api.problems import Conflict
from dispatch.core.ids import read_id, read_ids
from dispatch.jobs import services
from dispatch.jobs.models import Job
from dispatch.technicians.models import Technician


class BulkActionsMixin:
    """Mixin of JobAdmin."""

    admin_site: Any
    model: type[Job]

    @admin.action(description="Assign to a technician…", permissions=["act"])
    def assign_selected(self, request: HttpRequest, queryset: QuerySet) -> HttpResponse | None:
        """Ask for the technician, then assign each job, and report the jobs that need confirmation."""
        jobs, seen = self._chosen(request, queryset)
        owners = {job.organization_id for job in jobs}
        if len(owners) != 1:
            messages.error(request, "Select jobs of only one organization.")
            return None
        technicians = Technician.objects.of(owners.pop()).filter(is_active=True).order_by("name")
        applied, picked = "apply" in request.POST, read_id(request.POST.get("technician"))
        chosen = technicians.filter(pk=picked).first() if applied and picked is not None else None
        if chosen is None:
            return self._ask(
                request, "assign_many", "Assign", jobs, seen, technicians=technicians, missing=applied
            )
        note, sure = _note(request), "confirm_unfit" in request.POST

        def assign(job: Job, version: int) -> None:
            result = services.assign(
                job.pk, chosen.pk, actor=request.actor, version=version, note=note, confirm_unfit=sure
            )
            if result.assigned:
                messages.success(request, f"#{job.pk} was assigned to {chosen.name}.")
            else:
                messages.warning(request, f"#{job.pk} was not assigned. {' '.join(result.warnings)}")

        _each(request, jobs, seen, "assigned", assign)
        return None

    @admin.action(description="Call technicians again…", permissions=["act"])
    def dispatch_selected_again(self, request: HttpRequest, queryset: QuerySet) -> HttpResponse | None:
        """Ask, then dispatch each job again and report the result of each."""
        jobs, seen = self._chosen(request, queryset)
        if "apply" not in request.POST:
            return self._ask(request, "dispatch_many", "Call technicians again for", jobs, seen)
        note = _note(request)

        def dispatch(job: Job, version: int) -> None:
            after = services.dispatch_again(job.pk, actor=request.actor, version=version, note=note)
            messages.success(request, f"#{job.pk}: {_now(after)}.")

        _each(request, jobs, seen, "dispatched again", dispatch)
        return None

    def _chosen(self, request: HttpRequest, queryset: QuerySet) -> tuple[list[Job], dict[int, int | None]]:
        """Return the jobs and the version of each that the person saw, now or on the confirmation page."""
        applied = "apply" in request.POST
        if applied:  # include jobs that no longer match the list's filter, so that they are reported
            ids = read_ids(request.POST.getlist("_selected_action"))
            queryset = self.get_queryset(request).filter(pk__in=ids).order_by("-pk")  # type: ignore[attr-defined]
        jobs = list(queryset)
        return jobs, {job.pk: _version_seen(request, job) if applied else job.version for job in jobs}

    def _ask(
        self,
        request: HttpRequest,
        template: str,
        verb: str,
        jobs: list[Job],
        seen: dict[int, int | None],
        **more: Any,
    ) -> HttpResponse:
        context = {
            **self.admin_site.each_context(request),
            "title": f"{verb} {len(jobs)} job{'' if len(jobs) == 1 else 's'}",
            "jobs": [(job, seen[job.pk]) for job in jobs],
            "opts": self.model._meta,
            "media": self.media,  # type: ignore[attr-defined]
            **more,
        }
        return TemplateResponse(request, f"admin/jobs/{template}.html", context)


def _each(
    request: HttpRequest,
    jobs: list[Job],
    seen: dict[int, int | None],
    done_to: str,
    act: Callable[[Job, int], None],
) -> None:
    """Act on each job at the version seen. Report a refused job and continue with the next."""
    for job in jobs:
        version = seen[job.pk]
        if version is None:
            messages.error(
                request,
                f"#{job.pk} was not {done_to}: its version is missing. Reload the list and select it again.",
            )
            continue
        try:
            act(job, version)
        except Conflict as refused:
            messages.error(request, f"#{job.pk}: {refused.detail}")
        except ValidationError as refused:
            messages.error(request, f"#{job.pk}: {' '.join(refused.messages)}")


def _version_seen(request: HttpRequest, job: Job) -> int | None:
    """Return the version of the job that the confirmation page showed."""
    return read_id(request.POST.get(f"version_{job.pk}"))


def _note(request: HttpRequest) -> str:
    return request.POST.get("note", "")[:500]


def _now(job: Job) -> str:
    if job.status == Job.Status.PENDING:
        return f"still pending ({job.get_pending_reason_display().lower()})"
    return "technicians are being called"
