"""Show leads in the admin, and act on them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import datetime
from typing import Any
from zoneinfo import ZoneInfo

from django.contrib import admin, messages
from django.db.models import Q, QuerySet
from django.http import HttpResponse
from django.utils.html import format_html, format_html_join
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _
from unfold.decorators import action, display

from accounts.admin.base import (
    ACT,
    OwnedAdmin,
)
from accounts.admin.stored_values import list_values
from dispatch.core import clock, languages
from dispatch.core.api.serializers import MAX_LATEST
from dispatch.core.labels import label
from dispatch.core.phone_numbers import format_national
from dispatch.leads.explain import explain_lead
from dispatch.leads.models import Consent, Lead
from dispatch.leads.rules import descriptions
from dispatch.leads.rules.states import Reason
from dispatch.leads.services import actions as lead_actions
from dispatch.leads.services.consents import consents_of
from dispatch.telephony.models import Call

STATUS_LABELS = {"backlog": "info", "processing": "warning", "finished": "success"}


class ReasonFilter(admin.AllValuesFieldListFilter):
    """Filter leads by why they wait or have ended, in words."""

    def choices(self, changelist: Any) -> Iterator[Any]:
        for choice in super().choices(changelist):
            reason, bracket, count = str(choice["display"]).partition(" (")  # with counts: "called (12)"
            words = descriptions.describe_reason(reason) if reason in set(Reason) else reason
            yield {**choice, "display": f"{words}{bracket}{count}"}


@admin.register(Lead)
class LeadAdmin(OwnedAdmin):
    """Show leads read-only; actions change them.

    Search for a phone to see why it was or was not called.
    """

    admin_may = ACT
    dispatcher_may = ACT
    list_display = ["phone", "campaign", "state", "reason_words", "next_at", "attempts"]
    list_filter = ["status", "outcome", ("reason", ReasonFilter), "campaign"]
    list_filter_sheet = True
    list_select_related = ["campaign", "organization"]
    search_fields = ["=phone", "=external_id"]
    search_help_text = _("The full phone number, such as +16025550134, or your own ID for the lead")
    show_full_result_count = False
    actions = ["call_now", "cancel"]
    actions_detail = ["call_this_now", "cancel_this"]
    readonly_fields = ["why_it_is_here", "calls", "phone_of_lead", "consents", "own_data"]
    fields = [
        "why_it_is_here", "phone_of_lead", "campaign", "status", "outcome", "wanted_at", "due_at", "attempts",
        "calls", "consents", "disposition", "notes", "call_back_at", "contact_from", "contact_until", "customer",
        "external_id", "lat", "lng", "own_data", "created_at", "finished_at",
    ]  # fmt: skip

    @display(description=label("status"), label=STATUS_LABELS)
    def state(self, lead: Lead) -> tuple[str, str]:
        finished = lead.status == Lead.Status.FINISHED
        return lead.status, lead.get_outcome_display() if finished else lead.get_status_display()

    @display(description=label("why"))
    def reason_words(self, lead: Lead) -> str:
        return descriptions.describe_waiting(lead.reason) if lead.status == Lead.Status.BACKLOG else ""

    @display(description=label("next call"), ordering="due_at")
    def next_at(self, lead: Lead) -> str:
        return _local_time(lead.due_at, lead) if lead.status == Lead.Status.BACKLOG else "—"

    @display(description=label("why it is in this state"))
    def why_it_is_here(self, lead: Lead) -> str:
        return explain_lead(lead)

    @display(description=label("phone"))
    def phone_of_lead(self, lead: Lead) -> str:
        return format_national(lead.phone) if lead.phone else "—"

    @display(description=label("data"))
    def own_data(self, lead: Lead) -> str:
        """List the lead's own data. Scripts name them as they are stored."""
        return list_values(lead.data)

    @display(description=label("calls"))
    def calls(self, lead: Lead) -> str:
        made = Call.objects.filter(
            Q(organization=lead.organization_id), purpose="lead", subject_id=lead.pk
        ).order_by("-attempt")
        calls = list(made[:MAX_LATEST])[::-1]
        rows = [(call.attempt, _local_time(call.created_at, lead), call.get_status_display()) for call in calls]
        if not rows:
            return gettext("None yet")
        shown = format_html("<ol>{}</ol>", format_html_join("", "<li value='{}'>{}: {}</li>", rows))
        if len(rows) < MAX_LATEST:
            return shown
        words = gettext("Only the last %(count)s entries are shown.") % {"count": MAX_LATEST}
        return format_html("{}<p>{}</p>", shown, words)

    @display(description=label("consents"))
    def consents(self, lead: Lead) -> str:
        rows = consents_of(lead.organization_id, str(lead.phone))[:20] if lead.phone else ()
        told = [(_describe_consent(row, lead),) for row in rows]
        return (
            format_html("<ul>{}</ul>", format_html_join("", "<li>{}</li>", told))
            if told
            else gettext("None recorded")
        )

    @admin.action(description=_("Call now (within the calling rules)"), permissions=["act"])
    def call_now(self, request: Any, queryset: QuerySet) -> None:
        self._each(request, queryset, lead_actions.dispatch_now, gettext("{count:,} queued."))

    @admin.action(description=_("Cancel (no more calls; can't be undone)"), permissions=["act"])
    def cancel(self, request: Any, queryset: QuerySet) -> None:
        self._each(request, queryset, lead_actions.cancel_lead, gettext("{count:,} canceled."))

    @action(
        description=_("Call now"),
        permissions=["act"],
        dialog={
            "title": _("Call this lead now?"),
            "description": _(
                "The lead becomes due now, unless it waits for its customer's rate. All calling rules still apply."
            ),
        },
    )
    def call_this_now(self, request: Any, form: Any, object_id: str) -> HttpResponse:
        lead_actions.dispatch_now(int(object_id), actor=request.actor)
        messages.success(request, gettext("Lead queued. It is called as soon as the calling rules allow."))
        return self.back_to(object_id)

    @action(
        description=_("Cancel"),
        permissions=["act"],
        dialog={
            "title": _("Cancel this lead?"),
            "description": _("Its call, if any, is hung up. It won't be called again. This can't be undone."),
        },
    )
    def cancel_this(self, request: Any, form: Any, object_id: str) -> HttpResponse:
        lead_actions.cancel_lead(int(object_id), actor=request.actor)
        messages.success(request, gettext("Lead canceled."))
        return self.back_to(object_id)

    def _each(self, request: Any, queryset: QuerySet, act: Callable[..., Any], result: str) -> None:
        done, refused = 0, ""
        for pk in queryset.values_list("pk", flat=True):
            try:
                act(pk, actor=request.actor)
                done += 1
            except lead_actions.LeadConflict as error:
                refused = str(error.detail)
        messages.success(request, result.format(count=done))
        if refused:
            messages.warning(request, gettext("The other leads are unchanged. {refused}").format(refused=refused))


def _describe_consent(row: Consent, lead: Lead) -> str:
    words = f"{row.purpose}, {_local_time(row.given_at, lead)}, {row.source}"
    if row.withdrawn_at is not None:
        return gettext("{words}; withdrawn {moment} ({withdrawn_by})").format(
            words=words, moment=_local_time(row.withdrawn_at, lead), withdrawn_by=row.withdrawn_by
        )
    return f"{words}: {row.words}" if row.words else words


def _local_time(moment: datetime, lead: Lead) -> str:
    shown = moment.astimezone(ZoneInfo(lead.organization.time_zone))
    today = clock.now().astimezone(shown.tzinfo).date()
    return (
        f"{shown:%H:%M:%S}"
        if shown.date() == today
        else f"{languages.date_words(shown.date(), year=True, weekday=False)}, {shown:%H:%M}"
    )
