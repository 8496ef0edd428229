"""Manage campaigns and leads in the admin."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import Any
from zoneinfo import ZoneInfo

from django import forms
from django.contrib import admin, messages
from django.core.exceptions import ValidationError
from django.db.models import Count, OuterRef, Q, QuerySet, Subquery
from django.db.models.functions import Coalesce
from django.http import HttpRequest, HttpResponse
from django.utils.html import format_html, format_html_join
from unfold.decorators import action, display
from unfold.widgets import UnfoldAdminPasswordWidget, UnfoldBooleanWidget

from accounts.admin.base import (
    ACT,
    OwnedAdmin,
    OwnedForm,
)
from dispatch.core import clock
from dispatch.core.http import webhook_signing
from dispatch.core.http.ssrf import check_target_url
from dispatch.leads.admin.calling_rules import WeekdaysMixin, describe_window
from dispatch.leads.admin.campaign_rows import (
    DispositionRuleInline,
    KeyBranchInline,
    RetryRuleInline,
    VoiceAgentInline,
    sent_agent,
)
from dispatch.leads.explain import explain_lead
from dispatch.leads.go_live_preview import preview
from dispatch.leads.models import Campaign, Consent, Lead, LeadDispatch, VoiceAgent
from dispatch.leads.rules import descriptions
from dispatch.leads.rules.script import (
    placeholder_problem,
    script_problem,
    split_names,
    variables_problem,
)
from dispatch.leads.rules.voice_agents import hosts_problem
from dispatch.leads.services import actions as lead_actions
from dispatch.leads.services import switches
from dispatch.leads.services.consents import consents_of
from dispatch.telephony.admin.voice_preview import VoicePreviewMixin
from dispatch.telephony.models import Call

STATUS_LABELS = {"backlog": "info", "processing": "warning", "finished": "success"}
MODE_LABELS = {"off": "danger", "dry_run": "warning", "live": "success", "paused": "warning"}


class CampaignForm(OwnedForm):
    """Accept the pre-check's secret but never display it."""

    new_secret = forms.CharField(
        required=False,
        label="Pre-check secret",
        widget=UnfoldAdminPasswordWidget(render_value=False, attrs={"autocomplete": "new-password"}),
        help_text=(
            "Signs pre-check requests (whsec_…, Standard Webhooks). Stored encrypted and "
            "never shown. Leave empty to keep the current secret."
        ),
    )

    class Meta:
        model = Campaign
        fields = [
            "organization", "name", "code", "pool", "customer", "window_from", "window_until", "weekdays",
            "keeps_holidays", "patience_h", "max_attempts", "max_attempts_24h", "consent_purpose", "language",
            "voice", "script", "variables", "opt_out_key", "answer_url", "detect_machines", "voicemail",
            "ring_timeout_s", "time_limit_s",
            "precheck_url", "precheck_timeout_s", "precheck_without_answer", "allows_duplicates",
        ]  # fmt: skip

    def clean(self) -> dict[str, Any]:
        cleaned: dict[str, Any] = super().clean() or self.cleaned_data
        names = split_names(cleaned.get("variables") or "")
        if problem := variables_problem(names):
            self.add_error("variables", problem)
        for name in ("script", "voicemail"):
            if name in self.changed_data and (problem := placeholder_problem(cleaned.get(name) or "", names)):
                self.add_error(name, problem)
        script, answer_url = cleaned.get("script"), cleaned.get("answer_url")
        if script is None or answer_url is None:
            return cleaned
        agent_answers = sent_agent(self.data) == VoiceAgent.Starts.ANSWER
        is_paused = self.instance.is_paused
        if problem := script_problem(script, answer_url, is_paused=is_paused, agent_answers=agent_answers):
            self.add_error("script", problem)
        return cleaned

    def clean_precheck_url(self) -> str:
        return self._target("precheck_url")

    def clean_answer_url(self) -> str:
        return self._target("answer_url")

    def clean_new_secret(self) -> str:
        secret: str = self.cleaned_data["new_secret"]
        if secret:
            try:
                webhook_signing.check_secret(secret)
            except webhook_signing.BadSecret as error:
                raise ValidationError(str(error)) from None
        return secret

    def _target(self, name: str) -> str:
        url: str = self.cleaned_data[name]
        if url:
            check_target_url(url)
        return url


@admin.register(Campaign)
class CampaignAdmin(VoicePreviewMixin, WeekdaysMixin, OwnedAdmin):
    """Manage campaigns. They are paused, never deleted, because leads refer to them."""

    preview_kind = "campaign"

    form = CampaignForm
    dispatcher_may = ACT
    inlines = [VoiceAgentInline, KeyBranchInline, DispositionRuleInline, RetryRuleInline]
    list_display = ["name", "code", "pool", "hours", "waiting", "done", "state"]
    list_filter = ["is_paused", "pool"]
    list_select_related = ["pool", "agent"]
    search_fields = ["name", "code", "customer"]
    prepopulated_fields = {"code": ["name"]}
    actions = ["pause", "resume"]
    fieldsets = [
        (None, {"fields": ["name", "code", "pool", "customer", "allows_duplicates"]}),
        (
            "When",
            {
                "fields": [
                    ("window_from", "window_until"), "weekdays", "keeps_holidays",
                    ("max_attempts", "max_attempts_24h", "patience_h"), "consent_purpose",
                ],
                "description": ("In the local time of the person called. The hours that the law "
"allows also apply."),
            },
        ),
        (
            "Script",
            {
                "fields": [
                    ("language", "voice"), "script", "variables", "opt_out_key", "answer_url", "detect_machines",
                    "voicemail", ("ring_timeout_s", "time_limit_s"),
                ]
            },
        ),
        (
            "Pre-check",
            {
                "fields": ["precheck_url", "new_secret", ("precheck_timeout_s", "precheck_without_answer")],
                "description": "Before each call, Dispatch asks your system whether the lead is still wanted.",
            },
        ),
    ]  # fmt: skip

    def get_queryset(self, request: HttpRequest) -> QuerySet:
        leads = Lead.objects.filter(campaign=OuterRef("pk")).order_by().values("campaign")

        def count(**filters: Any) -> Coalesce:
            return Coalesce(Subquery(leads.filter(**filters).annotate(count=Count("pk")).values("count")), 0)

        return (
            super()
            .get_queryset(request)
            .annotate(
                waiting_count=count(status="backlog"),
                called_count=count(status="processing"),
                done_count=count(status="finished"),
            )
        )

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False

    def save_model(self, request: Any, obj: Campaign, form: Any, change: bool) -> None:
        if secret := form.cleaned_data.get("new_secret"):
            obj.precheck_secret = secret
        obj.keys = {}  # the branches replace the keys of earlier versions
        super().save_model(request, obj, form, change)
        switches.wake_after_change()

    @display(description="hours")
    def hours(self, campaign: Campaign) -> str:
        return describe_window(campaign.window_from, campaign.window_until)

    @display(description="waiting", ordering="waiting_count")
    def waiting(self, campaign: Any) -> str:
        return f"{campaign.waiting_count:,}"

    @display(description="finished", ordering="done_count")
    def done(self, campaign: Any) -> str:
        total = campaign.waiting_count + campaign.called_count + campaign.done_count
        return f"{campaign.done_count:,} of {total:,}"

    @display(description="state", label={"active": "success", "paused": "warning", "no script": "danger"})
    def state(self, campaign: Campaign) -> str:
        if campaign.is_paused:
            return "paused"
        return "active" if campaign.has_words else "no script"

    @admin.action(description="Pause (no more calls)", permissions=["act"])
    def pause(self, request: Any, queryset: QuerySet) -> None:
        self._switch(request, queryset, True)

    @admin.action(description="Resume (leads are called again)", permissions=["act"])
    def resume(self, request: Any, queryset: QuerySet) -> None:
        self._switch(request, queryset, False)

    def _switch(self, request: Any, queryset: QuerySet, is_paused: bool) -> None:
        switched = 0
        for campaign in queryset.exclude(is_paused=is_paused):
            try:
                switches.pause_campaign(campaign.pk, is_paused, actor=request.actor)
            except switches.CampaignWithoutScript as error:
                messages.error(request, str(error.detail))
                continue
            self.log_change(request, campaign, "Paused." if is_paused else "Resumed.")
            switched += 1
        messages.success(request, f"{switched} {'paused' if is_paused else 'resumed'}.")


@admin.register(Lead)
class LeadAdmin(OwnedAdmin):
    """Show leads read-only; actions change them.

    Search for a phone to see why it was or was not called.
    """

    admin_may = ACT
    dispatcher_may = ACT
    list_display = ["phone", "campaign", "state", "reason_words", "next_at", "attempts"]
    list_filter = ["status", "outcome", "reason", "campaign"]
    list_filter_sheet = True
    list_select_related = ["campaign", "organization"]
    search_fields = ["=phone", "=external_id"]
    search_help_text = "The full phone number, such as +16025550134, or your own ID for the lead"
    show_full_result_count = False
    actions = ["call_now", "cancel"]
    actions_detail = ["call_this_now", "cancel_this"]
    readonly_fields = ["why_it_is_here", "calls", "phone_of_lead", "consents"]
    fields = [
        "why_it_is_here", "phone_of_lead", "campaign", "status", "outcome", "wanted_at", "due_at", "attempts",
        "calls", "consents", "disposition", "notes", "call_back_at", "contact_from", "contact_until", "customer",
        "external_id", "lat", "lng", "data", "created_at", "finished_at",
    ]  # fmt: skip

    @display(description="status", label=STATUS_LABELS)
    def state(self, lead: Lead) -> tuple[str, str]:
        finished = lead.status == Lead.Status.FINISHED
        return lead.status, lead.get_outcome_display() if finished else lead.get_status_display()

    @display(description="why")
    def reason_words(self, lead: Lead) -> str:
        return descriptions.describe_waiting(lead.reason) if lead.status == Lead.Status.BACKLOG else ""

    @display(description="next call", ordering="due_at")
    def next_at(self, lead: Lead) -> str:
        return _local_time(lead.due_at, lead) if lead.status == Lead.Status.BACKLOG else "—"

    @display(description="why it is in this state")
    def why_it_is_here(self, lead: Lead) -> str:
        return explain_lead(lead)

    @display(description="phone")
    def phone_of_lead(self, lead: Lead) -> str:
        return str(lead.phone)

    @display(description="calls")
    def calls(self, lead: Lead) -> str:
        calls = Call.objects.filter(
            Q(organization=lead.organization_id), purpose="lead", subject_id=lead.pk
        ).order_by("attempt")
        rows = [(call.attempt, _local_time(call.created_at, lead), call.get_status_display()) for call in calls]
        if not rows:
            return "None yet"
        return format_html("<ol>{}</ol>", format_html_join("", "<li value='{}'>{}: {}</li>", rows))

    @display(description="consents")
    def consents(self, lead: Lead) -> str:
        rows = consents_of(lead.organization_id, str(lead.phone))[:20] if lead.phone else ()
        told = [(_describe_consent(row, lead),) for row in rows]
        return format_html("<ul>{}</ul>", format_html_join("", "<li>{}</li>", told)) if told else "None recorded"

    @admin.action(description="Call now (within the calling rules)", permissions=["act"])
    def call_now(self, request: Any, queryset: QuerySet) -> None:
        self._each(request, queryset, lead_actions.dispatch_now, "due now")

    @admin.action(description="Cancel (no more calls; can't be undone)", permissions=["act"])
    def cancel(self, request: Any, queryset: QuerySet) -> None:
        self._each(request, queryset, lead_actions.cancel_lead, "canceled")

    @action(
        description="Call now",
        permissions=["act"],
        dialog={
            "title": "Call this lead now?",
            "description": "The lead becomes due now. All calling rules still apply.",
        },
    )
    def call_this_now(self, request: Any, form: Any, object_id: str) -> HttpResponse:
        lead_actions.dispatch_now(int(object_id), actor=request.actor)
        messages.success(request, "The lead is due now.")
        return self.back_to(object_id)

    @action(
        description="Cancel",
        permissions=["act"],
        dialog={
            "title": "Cancel this lead?",
            "description": "Its call, if any, is hung up. It won't be called again. This can't be undone.",
        },
    )
    def cancel_this(self, request: Any, form: Any, object_id: str) -> HttpResponse:
        lead_actions.cancel_lead(int(object_id), actor=request.actor)
        messages.success(request, "Lead canceled.")
        return self.back_to(object_id)

    def _each(self, request: Any, queryset: QuerySet, act: Callable[..., Any], result: str) -> None:
        done, refused = 0, ""
        for pk in queryset.values_list("pk", flat=True):
            try:
                act(pk, actor=request.actor)
                done += 1
            except lead_actions.LeadConflict as error:
                refused = str(error.detail)
        messages.success(request, f"{done:,} {result}.")
        if refused:
            messages.warning(request, f"The other leads are unchanged. {refused}")


class LeadDispatchForm(OwnedForm):
    """Ask for confirmation before going live, and describe the consequences."""

    confirmed = forms.BooleanField(
        required=False,
        label="Go live",
        widget=UnfoldBooleanWidget,
        help_text="Check “Go live” to confirm. Other changes don't need it.",
    )

    class Meta:
        model = LeadDispatch
        fields = ["organization", "mode", "is_paused", "agent_hosts"]

    def clean_agent_hosts(self) -> str:
        hosts = split_names(self.cleaned_data["agent_hosts"].lower())
        if problem := hosts_problem(hosts):
            raise ValidationError(problem)
        return ", ".join(hosts)

    def clean(self) -> dict[str, Any]:
        cleaned: dict[str, Any] = super().clean() or self.cleaned_data
        organization = cleaned.get("organization") or getattr(self.instance, "organization", None)
        goes_live = cleaned.get("mode") == LeadDispatch.Mode.LIVE and "mode" in self.changed_data
        if goes_live and organization is not None and not cleaned.get("confirmed"):
            summary = preview(organization.pk).summary
            self.add_error("confirmed", f"{summary} Check “Go live” and save again.")
            cleaned.pop("mode")  # the page shows the row as it is
        return cleaned


@admin.register(LeadDispatch)
class LeadDispatchAdmin(OwnedAdmin):
    """Manage an organization's lead calling, which is off until it is set."""

    form = LeadDispatchForm

    subject = "lead_dispatch"
    list_display = ["organization", "state"]
    fields = ["mode", "confirmed", "is_paused", "agent_hosts"]

    def get_list_display(self, request: HttpRequest) -> list:
        return ["organization", "state"]

    @display(description="leads", label=MODE_LABELS)
    def state(self, row: LeadDispatch) -> tuple[str, str]:
        return (
            ("paused", f"{row.get_mode_display()}, paused")
            if row.is_paused
            else (row.mode, row.get_mode_display())
        )

    def save_model(self, request: Any, obj: LeadDispatch, form: Any, change: bool) -> None:
        saved = switches.set_dispatch(
            obj.organization_id, mode=obj.mode, is_paused=obj.is_paused, agent_hosts=obj.agent_hosts,
            actor=request.actor,
        )  # fmt: skip
        obj.pk = saved.pk

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False


def _describe_consent(row: Consent, lead: Lead) -> str:
    words = f"{row.purpose}, {_local_time(row.given_at, lead)}, {row.source}"
    if row.withdrawn_at is not None:
        return f"{words}; withdrawn {_local_time(row.withdrawn_at, lead)} ({row.withdrawn_by})"
    return f"{words}: {row.words}" if row.words else words


def _local_time(moment: datetime, lead: Lead) -> str:
    shown = moment.astimezone(ZoneInfo(lead.organization.time_zone))
    today = clock.now().astimezone(shown.tzinfo).date()
    return f"{shown:%H:%M:%S}" if shown.date() == today else f"{shown:%b} {shown.day}, {shown:%Y, %H:%M}"
