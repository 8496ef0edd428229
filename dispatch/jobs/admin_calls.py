"""What jobs add to the call log: the calls of a job are found by its number, and a call leads to its job."""

from __future__ import annotations

from typing import Any

from django.contrib import admin
from django.db.models import QuerySet
from django.http import HttpRequest
from django.urls import reverse
from django.utils.html import format_html

from dispatch.core.ids import read_id
from dispatch.jobs.models import Offer
from dispatch.telephony.admin import CallAdmin
from dispatch.telephony.models import Call

admin.site.unregister(Call)


@admin.register(Call)
class CallOfJobAdmin(CallAdmin):
    """The call log, with the jobs that the calls were for."""

    search_help_text = "Phone, the provider's call id, or a job as #123"

    def get_search_results(
        self, request: HttpRequest, queryset: QuerySet, search_term: str
    ) -> tuple[QuerySet, bool]:
        """`#123` finds the calls of that job's offers."""
        term = search_term.strip()
        job_id = read_id(term[1:]) if term.startswith("#") else None
        if job_id is None:
            return super().get_search_results(request, queryset, search_term)
        offers = Offer.objects.filter(job_id=job_id).values("pk")
        return queryset.filter(purpose=Call.Purpose.OFFER, subject_id__in=offers), False

    def get_fieldsets(self, request: HttpRequest, obj: Any = None) -> Any:
        found = super().get_fieldsets(request, obj)
        found[0][1]["fields"] = ["job", *found[0][1]["fields"]]
        return found

    def get_readonly_fields(self, request: HttpRequest, obj: Any = None) -> list:
        return [*super().get_readonly_fields(request, obj), "job"]

    @admin.display(description="job")
    def job(self, call: Call) -> str:
        offers = Offer.objects.filter(organization=call.organization_id, pk=call.subject_id)
        job_id = offers.values_list("job_id", flat=True).first() if call.purpose == Call.Purpose.OFFER else None
        if job_id is None:
            return "—"
        url = reverse(f"{self.admin_site.name}:jobs_job_change", args=[job_id])
        return format_html('<a class="text-primary-600 dark:text-primary-500" href="{}">#{}</a>', url, job_id)
