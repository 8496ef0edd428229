"""Jobs and submissions in the admin. What people set up is in `admin_setup`, a job's own page in `admin_page`."""

from __future__ import annotations

from typing import Any

from django.contrib import admin, messages
from django.core.exceptions import ValidationError
from django.db.models import Count, QuerySet
from django.http import HttpRequest, HttpResponse
from django.template.response import TemplateResponse
from django.urls import path, reverse
from django.utils.html import format_html
from django.utils.text import Truncator

from accounts.admin_base import ACT, VIEW, OwnedAdmin
from dispatch.core.problems import Conflict
from dispatch.jobs import admin_setup, services
from dispatch.jobs.admin_page import JobPage
from dispatch.jobs.admin_words import badge, job_badge, since
from dispatch.jobs.models import Job, Submission
from dispatch.technicians.models import Technician

__all__ = ["JobAdmin", "SubmissionAdmin", "admin_setup"]


class NeedsAHand(admin.SimpleListFilter):
    """What waits for a dispatcher, one click away."""

    title = "needs a hand"
    parameter_name = "needs"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        return [("attention", "Anything that needs a hand"), ("failed", "Failed (pending)"), ("paused", "Paused")]

    def queryset(self, request: HttpRequest, queryset: Any) -> QuerySet:
        match self.value():
            case "attention":
                queryset = queryset.needing_attention()
            case "failed":
                queryset = queryset.filter(status=Job.Status.PENDING)
            case "paused":
                queryset = queryset.filter(paused_at__isnull=False)
        return queryset


@admin.register(Job)
class JobAdmin(JobPage, OwnedAdmin):
    """Nobody edits a job: people act on it."""

    admin_may = ACT
    dispatcher_may = ACT
    list_display = ["number", "state", "service", "customer", "place", "attempts", "given_to", "age"]
    list_display_links = ["number"]
    list_filter = [NeedsAHand, "status", "pending_reason", "service_type", "priority", "technician"]
    list_filter_sheet = True
    search_fields = ["=id", "customer_name", "customer_phone", "address"]
    search_help_text = "Number, customer, phone or address"
    ordering = ["-id"]
    actions = ["assign_selected", "dispatch_selected_again"]
    fields = ["status"]

    class Media:
        css = {"all": ["dispatch/jobs_admin.css"]}

    def get_queryset(self, request: HttpRequest) -> QuerySet:
        rows = super().get_queryset(request).select_related("organization", "service_type", "technician")
        return rows.annotate(offers_made=Count("offers"))

    def get_urls(self) -> list:
        own = [
            path(
                "<int:object_id>/do/<slug:action>/",
                self.admin_site.admin_view(self.act_view),
                name="jobs_job_act",
            )
        ]
        return own + super().get_urls()

    # --- the list -------------------------------------------------------------------------------------------
    @admin.display(description="job", ordering="id")
    def number(self, job: Job) -> str:
        return f"#{job.pk}"

    @admin.display(description="state", ordering="status")
    def state(self, job: Job) -> str:
        return job_badge(job)

    @admin.display(description="service", ordering="service_type__name")
    def service(self, job: Job) -> str:
        tones = {1: "attention", 2: "late"}
        if job.priority in tones:
            return format_html(
                "{} {}", job.service_type.name, badge(tones[job.priority], job.get_priority_display())
            )
        return job.service_type.name

    @admin.display(description="customer", ordering="customer_name")
    def customer(self, job: Job) -> str:
        return job.customer_name

    @admin.display(description="place", ordering="address")
    def place(self, job: Job) -> str:
        if job.address:
            return format_html('<span title="{}">{}</span>', job.address, Truncator(job.address).chars(60))
        return f"{job.lat:.4f}, {job.lng:.4f}" if job.lat is not None else "unknown"

    @admin.display(description="offers", ordering="offers_made")
    def attempts(self, job: Any) -> int:
        return int(job.offers_made)

    @admin.display(description="technician", ordering="technician__name")
    def given_to(self, job: Job) -> str:
        return job.technician.name if job.technician else "—"

    @admin.display(description="received", ordering="created_at")
    def age(self, job: Job) -> str:
        return since(job.created_at, job.organization.time_zone)

    # --- actions on many ------------------------------------------------------------------------------------
    @admin.action(description="Assign to a technician…", permissions=["act"])
    def assign_selected(self, request: HttpRequest, queryset: QuerySet) -> HttpResponse | None:
        """Asks for the technician, then assigns each job; those that do not fit are named."""
        applied = "apply" in request.POST
        if applied:  # also those that left the list's filter since the page was shown: they are told of
            picked_ids = [pk for pk in request.POST.getlist("_selected_action") if pk.isdecimal()]
            queryset = self.get_queryset(request).filter(pk__in=picked_ids).order_by("-pk")
        jobs = list(queryset)
        seen = {job.pk: _version_seen(request, job) if applied else job.version for job in jobs}
        owners = {job.organization_id for job in jobs}
        if len(owners) != 1:
            self.message_user(request, "Choose jobs of one organization.", messages.ERROR)
            return None
        crew = Technician.objects.of(owners.pop()).filter(is_active=True).order_by("name")
        picked = request.POST.get("technician", "")
        chosen = crew.filter(pk=picked).first() if applied and picked.isdecimal() else None
        if chosen is None:
            return TemplateResponse(
                request,
                "admin/jobs/assign_many.html",
                {
                    **self.admin_site.each_context(request),
                    "title": f"Assign {len(jobs)} job{'' if len(jobs) == 1 else 's'}",
                    "jobs": [(job, seen[job.pk]) for job in jobs],
                    "technicians": crew,
                    "opts": self.model._meta,
                    "media": self.media,
                    "missing": applied,
                },
            )
        note, sure = request.POST.get("note", "")[:500], "confirm_unfit" in request.POST
        for job in jobs:
            version = seen[job.pk]
            if version is None:
                self.message_user(
                    request,
                    f"#{job.pk} was not assigned: the page did not say as what you saw it. Choose it again.",
                    messages.ERROR,
                )
                continue
            self._assign_one(request, job, version, chosen, note, sure)
        return None

    def _assign_one(
        self, request: HttpRequest, job: Job, version: int, chosen: Technician, note: str, sure: bool
    ) -> None:
        try:
            result = services.assign(
                job.pk, chosen.pk, actor=request.actor, version=version, note=note, confirm_unfit=sure
            )
        except Conflict as refused:
            self.message_user(request, f"#{job.pk}: {refused.detail}", messages.ERROR)
            return
        except ValidationError as refused:
            self.message_user(request, f"#{job.pk}: {' '.join(refused.messages)}", messages.ERROR)
            return
        if result.assigned:
            self.message_user(request, f"#{job.pk} is assigned to {chosen.name}.", messages.SUCCESS)
        else:
            self.message_user(
                request, f"#{job.pk} was not assigned. {' '.join(result.warnings)}", messages.WARNING
            )

    @admin.action(description="Dispatch again", permissions=["act"])
    def dispatch_selected_again(self, request: HttpRequest, queryset: QuerySet) -> None:
        for job in queryset:
            try:
                after = services.dispatch_again(job.pk, actor=request.actor, version=job.version)
            except Conflict as refused:
                self.message_user(request, f"#{job.pk}: {refused.detail}", messages.ERROR)
            except ValidationError as refused:
                self.message_user(request, f"#{job.pk}: {' '.join(refused.messages)}", messages.ERROR)
            else:
                self.message_user(request, f"#{job.pk}: {_now(after)}.", messages.SUCCESS)


def _version_seen(request: HttpRequest, job: Job) -> int | None:
    """The version of the job that the page showed on which the person decided."""
    sent = request.POST.get(f"version_{job.pk}", "")
    return int(sent) if sent.isdecimal() else None


def _now(job: Job) -> str:
    if job.status == Job.Status.PENDING:
        return f"still pending ({job.get_pending_reason_display().lower()})"
    return "technicians are being called"


@admin.register(Submission)
class SubmissionAdmin(OwnedAdmin):
    """Forms as they were received; nobody changes them."""

    admin_may = VIEW
    dispatcher_may = VIEW
    list_display = ["number", "state", "customer_name", "service_type", "job_link", "starts", "age"]
    list_display_links = ["number"]
    list_filter = ["status", "service_type", "priority"]
    list_select_related = ["service_type", "job", "organization"]
    search_fields = ["=id", "customer_name", "customer_phone", "address", "idempotency_key"]
    fields = [
        "status", "customer_name", "customer_phone", "service_type", "priority", "address", ("lat", "lng"),
        "notes", "extra", "form", "idempotency_key", "api_key", "starts", "next_start_at", "last_error",
        "created_at",
    ]  # fmt: skip

    class Media:
        css = {"all": ["dispatch/jobs_admin.css"]}

    @admin.display(description="submission", ordering="id")
    def number(self, submission: Submission) -> str:
        return f"#{submission.pk}"

    @admin.display(description="state", ordering="status")
    def state(self, submission: Submission) -> str:
        if submission.status == Submission.Status.PROCESSED:
            return badge("good", "Processed")
        return badge("late", "Retrying") if submission.starts > 1 else badge("waiting", "Received")

    @admin.display(description="job")
    def job_link(self, submission: Submission) -> str:
        job = getattr(submission, "job", None)
        if job is None:
            return "—"
        return format_html('<a href="{}">#{}</a>', reverse("admin:jobs_job_change", args=[job.pk]), job.pk)

    @admin.display(description="received", ordering="created_at")
    def age(self, submission: Submission) -> str:
        return since(submission.created_at, submission.organization.time_zone)
