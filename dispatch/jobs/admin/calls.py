"""Extend the call log: find calls by job number, and link a call to its job."""

from __future__ import annotations

from typing import Any

from django.contrib import admin
from django.db.models import QuerySet
from django.http import HttpRequest
from django.urls import reverse
from django.utils.html import format_html
from django.utils.translation import gettext_lazy as _

from accounts.admin.extensions import extend_admin
from dispatch.core.ids import read_id
from dispatch.core.labels import label
from dispatch.jobs.models import Offer
from dispatch.telephony.admin.calls import CallAdmin
from dispatch.telephony.models import Call


@extend_admin(Call)
class CallOfJobAdmin(CallAdmin):
    """The call log with a link to each call's job."""

    search_help_text = _("Phone number, provider's call ID, or job number (#123)")

    def get_search_results(
        self, request: HttpRequest, queryset: QuerySet, search_term: str
    ) -> tuple[QuerySet, bool]:
        """Search `#123` as the calls of that job's offers."""
        term = search_term.strip()
        job_id = read_id(term[1:]) if term.startswith("#") else None
        if job_id is None:
            return super().get_search_results(request, queryset, search_term)
        offers = Offer.objects.filter(job_id=job_id).values("pk")
        return queryset.filter(purpose=Call.Purpose.OFFER, subject_id__in=offers), False

    def get_fieldsets(self, request: HttpRequest, obj: Any = None) -> Any:
        fieldsets = super().get_fieldsets(request, obj)
        fieldsets[0][1]["fields"] = ["job", *fieldsets[0][1]["fields"]]
        return fieldsets

    def get_readonly_fields(self, request: HttpRequest, obj: Any = None) -> list:
        return [*super().get_readonly_fields(request, obj), "job"]

    @admin.display(description=label("job"))
    def job(self, call: Call) -> str:
        offers = Offer.objects.filter(organization=call.organization_id, pk=call.subject_id)
        job_id = offers.values_list("job_id", flat=True).first() if call.purpose == Call.Purpose.OFFER else None
        if job_id is None:
            return "—"
        url = reverse(f"{self.admin_site.name}:jobs_job_change", args=[job_id])
        return format_html('<a class="text-primary-600 dark:text-primary-500" href="{}">#{}</a>', url, job_id)
