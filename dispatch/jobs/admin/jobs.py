"""The admin pages of jobs and submissions."""

from __future__ import annotations

from typing import Any

from django.contrib import admin
from django.db.models import Count, OuterRef, QuerySet, Subquery
from django.db.models.functions import Coalesce
from django.http import HttpRequest
from django.urls import path, reverse
from django.utils.html import format_html
from django.utils.text import Truncator
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _

from accounts.admin.base import ACT, VIEW, OwnedAdmin
from accounts.admin.stored_values import list_values
from dispatch.core.labels import label
from dispatch.core.models import Event
from dispatch.jobs.admin.bulk_actions import BulkActionsMixin
from dispatch.jobs.admin.job_detail import JobDetailMixin
from dispatch.jobs.badges import badge, job_badge, relative_time
from dispatch.jobs.models import Job, Offer, ServiceType, Submission


class NeedsAttentionFilter(admin.SimpleListFilter):
    """Filters the jobs that need a dispatcher."""

    title = label("needs attention")
    parameter_name = "needs"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        return [
            ("attention", gettext("All that need attention")),
            ("failed", gettext("Failed (pending)")),
            ("paused", gettext("Paused")),
        ]

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
class JobAdmin(JobDetailMixin, BulkActionsMixin, OwnedAdmin):
    """Jobs are read-only; people change them through actions."""

    admin_may = ACT
    dispatcher_may = ACT
    list_display = ["number", "state", "service", "customer", "place", "attempts", "given_to", "age"]
    list_display_links = ["number"]
    list_filter = [NeedsAttentionFilter, "status", "pending_reason", "service_type", "priority", "technician"]
    list_filter_sheet = True
    search_fields = ["=id", "customer_name", "customer_phone", "address"]
    search_help_text = _("Job number, customer, phone or address")
    ordering = ["-id"]
    show_full_result_count = False
    actions = ["assign_selected", "dispatch_selected_again"]
    actions_without_asking = ("assign_selected", "dispatch_selected_again")  # their own pages ask
    fields = ["status"]

    class Media:
        css = {"all": ["dispatch/jobs_admin.css"]}
        js = ["dispatch/rests.js"]

    def get_queryset(self, request: HttpRequest) -> QuerySet:
        rows = super().get_queryset(request).select_related("organization", "service_type", "technician")
        # A subquery counts only for the rows on the page: there may be hundreds of thousands of jobs.
        offers = Offer.objects.filter(job=OuterRef("pk")).order_by().values("job")
        return rows.annotate(offers_made=Coalesce(Subquery(offers.annotate(n=Count("*")).values("n")), 0))

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
    @admin.display(description=label("job"), ordering="id")
    def number(self, job: Job) -> str:
        return f"#{job.pk}"

    @admin.display(description=label("state"), ordering="status")
    def state(self, job: Job) -> str:
        return job_badge(job)

    @admin.display(description=label("service"), ordering="service_type__name")
    def service(self, job: Job) -> str:
        tones = {1: "attention", 2: "late"}
        if job.priority in tones:
            return format_html(
                "{} {}", job.service_type.name, badge(tones[job.priority], job.get_priority_display())
            )
        return job.service_type.name

    @admin.display(description=label("customer"), ordering="customer_name")
    def customer(self, job: Job) -> str:
        return job.customer_name

    @admin.display(description=label("place"), ordering="address")
    def place(self, job: Job) -> str:
        if job.address:
            return format_html('<span title="{}">{}</span>', job.address, Truncator(job.address).chars(60))
        return f"{job.lat:.4f}, {job.lng:.4f}" if job.lat is not None else gettext("unknown")

    @admin.display(description=label("offers"))
    def attempts(self, job: Any) -> int:
        return int(job.offers_made)

    @admin.display(description=label("technician"), ordering="technician__name")
    def given_to(self, job: Job) -> str:
        return job.technician.name if job.technician else "—"

    @admin.display(description=label("received"), ordering="created_at")
    def age(self, job: Job) -> str:
        return relative_time(job.created_at, job.organization.time_zone)


@admin.register(Submission)
class SubmissionAdmin(OwnedAdmin):
    """Forms as received, read-only."""

    admin_may = VIEW
    dispatcher_may = VIEW
    list_display = ["number", "state", "customer_name", "service_type", "job_link", "starts", "age"]
    list_display_links = ["number"]
    list_filter = ["status", "service_type", "priority"]
    list_select_related = ["service_type", "job", "organization"]
    search_fields = ["=id", "customer_name", "customer_phone", "address", "idempotency_key"]
    fields = [
        "status", "customer_name", "customer_phone", "service_type", "priority", "address", ("lat", "lng"),
        "notes", "other_answers", "preferred_technician", "received", "idempotency_key", "api_key", "starts",
        "next_start_at", "last_error", "created_at",
    ]  # fmt: skip

    class Media:
        css = {"all": ["dispatch/jobs_admin.css"]}

    def get_fields(self, request: HttpRequest, obj: Any = None) -> list[Any]:
        return [name for name in self.fields if name != "other_answers" or obj is None or obj.extra]

    def data_of(self, event: Event) -> dict[str, Any]:
        """Return the data with the name of the service, whose code is stored."""
        data = super().data_of(event)
        services = ServiceType.objects.filter(organization=event.organization_id, code=data.get("service", ""))
        name = services.values_list("name", flat=True).first()
        return data | {"service": name} if name else data

    @admin.display(description=label("other answers"))
    def other_answers(self, submission: Submission) -> str:
        return list_values(submission.extra)

    @admin.display(description=label("form as received"))
    def received(self, submission: Submission) -> str:
        return list_values(submission.form, Submission)

    @admin.display(description=label("submission"), ordering="id")
    def number(self, submission: Submission) -> str:
        return f"#{submission.pk}"

    @admin.display(description=label("state"), ordering="status")
    def state(self, submission: Submission) -> str:
        if submission.status == Submission.Status.PROCESSED:
            return badge("good", gettext("Processed"))
        return (
            badge("late", gettext("Retrying")) if submission.starts > 1 else badge("waiting", gettext("Received"))
        )

    @admin.display(description=label("job"))
    def job_link(self, submission: Submission) -> str:
        job = getattr(submission, "job", None)
        if job is None:
            return "—"
        return format_html('<a href="{}">#{}</a>', reverse("admin:jobs_job_change", args=[job.pk]), job.pk)

    @admin.display(description=label("received"), ordering="created_at")
    def age(self, submission: Submission) -> str:
        return relative_time(submission.created_at, submission.organization.time_zone)
