"""Bulk actions of the admin's job list. Each asks first and acts on the versions of the jobs that it showed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from django.contrib import admin, messages
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse
from django.template.response import TemplateResponse
from django.utils.translation import gettext, ngettext
from django.utils.translation import gettext_lazy as _

from dispatch.core.ids import read_id, read_ids
from dispatch.jobs import services
from dispatch.jobs.models import Job
from dispatch.jobs.reasons import REFUSALS, explain_refusal
from dispatch.technicians.models import Technician

# Jobs in one request. The confirmation page sends two fields for each: Django accepts 1,000 fields.
MAX_JOBS = 200


def _assign_title(count: int) -> str:
    return ngettext("Assign {count} job", "Assign {count} jobs", count).format(count=count)


def _dispatch_title(count: int) -> str:
    words = ngettext("Call technicians again for {count} job", "Call technicians again for {count} jobs", count)
    return words.format(count=count)


class BulkActionsMixin:
    """Mixin of JobAdmin."""

    admin_site: Any
    model: type[Job]

    @admin.action(description=_("Assign to a technician…"), permissions=["act"])
    def assign_selected(self, request: HttpRequest, queryset: QuerySet) -> HttpResponse | None:
        """Ask for the technician, then assign each job, and report the jobs that need confirmation."""
        if (chosen_jobs := self._chosen(request, queryset)) is None:
            return None
        jobs, seen = chosen_jobs
        owners = {job.organization_id for job in jobs}
        if len(owners) != 1:
            messages.error(request, gettext("Select jobs of only one organization."))
            return None
        technicians = Technician.objects.of(owners.pop()).filter(is_active=True).order_by("name")
        applied, picked = "apply" in request.POST, read_id(request.POST.get("technician"))
        chosen = technicians.filter(pk=picked).first() if applied and picked is not None else None
        if chosen is None:
            return self._ask(
                request,
                "assign_many",
                _assign_title(len(jobs)),
                jobs,
                seen,
                technicians=technicians,
                missing=applied,
            )
        note, sure = _note(request), "confirm_unfit" in request.POST

        def assign(job: Job, version: int) -> None:
            result = services.assign(
                job.pk, chosen.pk, actor=request.actor, version=version, note=note, confirm_unfit=sure
            )
            if result.assigned:
                messages.success(
                    request, gettext("#{pk} was assigned to {name}.").format(pk=job.pk, name=chosen.name)
                )
            else:
                messages.warning(
                    request,
                    gettext("#{pk} was not assigned. {warnings}").format(
                        pk=job.pk, warnings=" ".join(result.warnings)
                    ),
                )

        _each(request, jobs, seen, assign)
        return None

    @admin.action(description=_("Call technicians again…"), permissions=["act"])
    def dispatch_selected_again(self, request: HttpRequest, queryset: QuerySet) -> HttpResponse | None:
        """Ask, then dispatch each job again and report the result of each."""
        if (chosen_jobs := self._chosen(request, queryset)) is None:
            return None
        jobs, seen = chosen_jobs
        if "apply" not in request.POST:
            return self._ask(request, "dispatch_many", _dispatch_title(len(jobs)), jobs, seen)
        note = _note(request)

        def dispatch(job: Job, version: int) -> None:
            after = services.dispatch_again(job.pk, actor=request.actor, version=version, note=note)
            messages.success(request, f"#{job.pk}: {_now(after)}.")

        _each(request, jobs, seen, dispatch)
        return None

    def _chosen(self, request: HttpRequest, queryset: QuerySet) -> tuple[list[Job], dict[int, int | None]] | None:
        """Return the jobs and the version of each that the person saw, now or on the confirmation page.

        None, with a message, if there are more than MAX_JOBS.
        """
        applied = "apply" in request.POST
        if applied:  # include jobs that no longer match the list's filter, so that they are reported
            ids = read_ids(request.POST.getlist("_selected_action"))
            queryset = self.get_queryset(request).filter(pk__in=ids).order_by("-pk")  # type: ignore[attr-defined]
        jobs = list(queryset[: MAX_JOBS + 1])
        if len(jobs) > MAX_JOBS:
            words = gettext("Select at most {count} jobs at once: filter the list, or select page by page.")
            messages.error(request, words.format(count=MAX_JOBS))
            return None
        return jobs, {job.pk: _version_seen(request, job) if applied else job.version for job in jobs}

    def _ask(
        self,
        request: HttpRequest,
        template: str,
        title: str,
        jobs: list[Job],
        seen: dict[int, int | None],
        **more: Any,
    ) -> HttpResponse:
        context = {
            **self.admin_site.each_context(request),
            "title": title,
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
    act: Callable[[Job, int], None],
) -> None:
    """Act on each job at the version seen. Report a job that is refused, locked or deleted, and continue."""
    for job in jobs:
        version = seen[job.pk]
        if version is None:
            messages.error(
                request,
                gettext(
                    "#{pk} was not changed: its version is missing. Reload the list and select it again."
                ).format(pk=job.pk),
            )
            continue
        try:
            act(job, version)
        except REFUSALS as error:
            messages.error(request, f"#{job.pk}: {explain_refusal(error)}")


def _version_seen(request: HttpRequest, job: Job) -> int | None:
    """Return the version of the job that the confirmation page showed."""
    return read_id(request.POST.get(f"version_{job.pk}"))


def _note(request: HttpRequest) -> str:
    return request.POST.get("note", "")[:500]


def _now(job: Job) -> str:
    if job.status == Job.Status.PENDING:
        return gettext("still pending ({reason})").format(reason=job.get_pending_reason_display().lower())
    return gettext("technicians are being called")
