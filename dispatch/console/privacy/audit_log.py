"""/admin/audit-log/: verify and download an organization's audit log."""

from __future__ import annotations

from datetime import date, datetime, time, timedelta
from typing import Any
from zoneinfo import ZoneInfo

from django import forms
from django.contrib import admin
from django.http import HttpResponse, HttpResponseBase
from django.template.response import TemplateResponse
from django.utils.translation import gettext_lazy
from unfold.widgets import UnfoldAdminDateWidget

from accounts import tenancy
from accounts.models import Organization
from dispatch.console.reports.periods import is_possible
from dispatch.core import clock, events
from dispatch.core.audit import export
from dispatch.core.languages import gettext as _

MAX_EVENTS = 50_000  # of one download; the command exports more


class PeriodForm(forms.Form):
    """Choose the days of the export, in the organization's time zone."""

    since = forms.DateField(
        required=False,
        label=gettext_lazy("From"),
        widget=UnfoldAdminDateWidget,
        help_text=gettext_lazy("First day."),
    )
    until = forms.DateField(
        required=False,
        label=gettext_lazy("To"),
        widget=UnfoldAdminDateWidget,
        help_text=gettext_lazy("Last day. Leave empty for today."),
    )

    def clean(self) -> dict[str, Any]:
        cleaned: dict[str, Any] = super().clean() or {}
        for name in ("since", "until"):
            if (day := cleaned.get(name)) and not is_possible(day):
                self.add_error(name, self.fields[name].error_messages["invalid"])
        if cleaned.get("since") and cleaned.get("until") and cleaned["until"] < cleaned["since"]:
            self.add_error("until", _("Must not be before the first day."))
        return cleaned


def page(request: Any) -> HttpResponseBase:
    """Show the form (GET), or return the events as a download (POST)."""
    organization = tenancy.administered_organization(request)
    form = PeriodForm(request.POST or None)
    if request.method == "POST" and form.is_valid():
        since, until = form.cleaned_data["since"], form.cleaned_data["until"]
        rows = list(export.export_events(organization.pk, *_period(organization, since, until), MAX_EVENTS + 1))
        if len(rows) <= MAX_EVENTS:
            return _download(request, organization, rows, since, until)
        form.add_error(
            None,
            _("This period has more than {most} events. Choose a shorter one.").format(most=f"{MAX_EVENTS:,}"),
        )
    context = {
        **admin.site.each_context(request), "title": _("Audit log"), "organization": organization, "form": form,
    }  # fmt: skip
    return TemplateResponse(request, "admin/audit_log.html", context, headers={"Cache-Control": "no-store"})


def _period(
    organization: Organization, since: date | None, until: date | None
) -> tuple[datetime | None, datetime | None]:
    """Return the moments at which the first day begins and the last day ends."""
    zone = ZoneInfo(organization.time_zone)
    return (
        datetime.combine(since, time.min, zone) if since else None,
        datetime.combine(until + timedelta(days=1), time.min, zone) if until else None,
    )


def _download(
    request: Any, organization: Organization, rows: list[str], since: date | None, until: date | None
) -> HttpResponse:
    events.append(
        organization.pk, "organization.audit_log_exported", organization.pk,
        actor=tenancy.actor_of(request.user), events=len(rows), since=str(since or ""), until=str(until or ""),
    )  # fmt: skip
    answer = HttpResponse("".join(rows), content_type="application/x-ndjson")
    name = f"audit-log-{organization.slug}-{clock.now():%Y-%m-%d}.jsonl"
    answer["Content-Disposition"] = f'attachment; filename="{name}"'
    answer["Cache-Control"] = "no-store"
    return answer
