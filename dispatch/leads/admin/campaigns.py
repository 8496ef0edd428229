"""Manage campaigns and the switch of an organization's lead calling in the admin."""

from __future__ import annotations

from typing import Any

from django import forms
from django.contrib import admin, messages
from django.core.exceptions import ValidationError
from django.db.models import Count, OuterRef, QuerySet, Subquery
from django.db.models.functions import Coalesce
from django.http import HttpRequest
from django.utils.text import format_lazy
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _
from unfold.decorators import display
from unfold.widgets import UnfoldAdminPasswordWidget, UnfoldBooleanWidget

from accounts.admin.base import (
    ACT,
    OwnedAdmin,
    OwnedForm,
)
from dispatch.core.http import webhook_signing
from dispatch.core.http.ssrf import check_target_url
from dispatch.core.labels import BadgeColors, label, translate_label
from dispatch.core.stored_texts import mark_stored
from dispatch.leads.admin.calling_rules import WeekdaysMixin, describe_window
from dispatch.leads.admin.campaign_rows import (
    DispositionRuleInline,
    KeyBranchInline,
    RetryRuleInline,
    VoiceAgentInline,
    sent_agent,
)
from dispatch.leads.admin.recordings import HELP, RecordingField, WithRecordings
from dispatch.leads.go_live_preview import preview
from dispatch.leads.models import Campaign, Lead, LeadDispatch, VoiceAgent
from dispatch.leads.rules.script import (
    placeholder_problem,
    script_problem,
    split_names,
    variables_problem,
)
from dispatch.leads.rules.voice_agents import hosts_problem
from dispatch.leads.services import recordings, switches
from dispatch.telephony.admin.voice_preview import VoicePreviewMixin

STATE_COLORS = BadgeColors({"active": "success", "paused": "warning", "no script": "danger"})
# A column that the form has under another name, and one that it lacks.
_COLUMN_OF, _EARLIER_KEYS = {"new_secret": "precheck_secret"}, "keys"
MODE_LABELS = {"off": "danger", "dry_run": "warning", "live": "success", "paused": "warning"}


class CampaignForm(WithRecordings):
    """Accept the pre-check's secret but never display it."""

    recording_fields = ("recording", "voicemail_recording")
    recording = RecordingField(
        label=_("Recording"),
        help_text=format_lazy("{} {}", _("Played instead of reading the script. The keys work as usual."), HELP),
    )
    voicemail_recording = RecordingField(
        label=_("Recording for voicemail"),
        help_text=format_lazy("{} {}", _("Left after the beep instead of the message."), HELP),
    )

    new_secret = forms.CharField(
        required=False,
        label=_("Pre-check secret"),
        widget=UnfoldAdminPasswordWidget(render_value=False, attrs={"autocomplete": "new-password"}),
        help_text=(
            _(
                "Signs pre-check requests (whsec_…, Standard Webhooks). Stored encrypted and "
                "never shown. Leave empty to keep the current secret."
            )
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
            is_changed = not {name, "variables"}.isdisjoint(self.changed_data)
            if is_changed and (problem := placeholder_problem(cleaned.get(name) or "", names)):
                self.add_error(name, problem)
        script, answer_url = cleaned.get("script"), cleaned.get("answer_url")
        if script is None or answer_url is None:
            return cleaned
        agent_answers = sent_agent(self.data, self.instance.pk) == VoiceAgent.Starts.ANSWER
        has_recording = cleaned.get("recording") is not None or "recording" in self.errors
        is_paused = self.instance.is_paused
        if problem := script_problem(
            script, answer_url, is_paused=is_paused, has_other_opening=agent_answers or has_recording
        ):
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
            _("When"),
            {
                "fields": [
                    ("window_from", "window_until"), "weekdays", "keeps_holidays",
                    ("max_attempts", "max_attempts_24h", "patience_h"), "consent_purpose",
                ],
                "description": (_("In the local time of the person called. The hours that the law "
"allows also apply.")),
            },
        ),
        (
            _("Script"),
            {
                "fields": [
                    ("language", "voice"), "script", "recording", "variables", "opt_out_key", "answer_url",
                    "detect_machines", "voicemail", "voicemail_recording",
                    ("ring_timeout_s", "time_limit_s"),
                ]
            },
        ),
        (
            _("Pre-check"),
            {
                "classes": ["collapse"],
                "fields": ["precheck_url", "new_secret", ("precheck_timeout_s", "precheck_without_answer")],
                "description": _("Before each call, Dispatch asks your system whether the lead is still wanted."),
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
        recordings.lock_limit(obj.organization_id)
        form.save_recordings()
        obj.keys = {}  # the branches replace the keys of earlier versions
        # only what the form changed: the campaign may have been paused since the row was read
        own = {_EARLIER_KEYS, *(_COLUMN_OF.get(name, name) for name in form.changed_data)}
        obj.save(update_fields=own & {field.name for field in Campaign._meta.fields} if change else None)
        switches.wake_after_change()

    def save_related(self, request: Any, form: Any, formsets: Any, change: bool) -> None:
        super().save_related(request, form, formsets, change)
        recordings.update_uses(form.instance)

    @display(description=label("hours"))
    def hours(self, campaign: Campaign) -> str:
        return describe_window(campaign.window_from, campaign.window_until)

    @display(description=label("waiting"), ordering="waiting_count")
    def waiting(self, campaign: Any) -> str:
        return f"{campaign.waiting_count:,}"

    @display(description=label("finished"), ordering="done_count")
    def done(self, campaign: Any) -> str:
        total = campaign.waiting_count + campaign.called_count + campaign.done_count
        return gettext("{done_count:,} of {total:,}").format(done_count=campaign.done_count, total=total)

    @display(description=label("state"), label=STATE_COLORS)
    def state(self, campaign: Campaign) -> str:
        if campaign.is_paused:
            return translate_label("paused")
        return translate_label("active") if campaign.has_words else translate_label("no script")

    @admin.action(description=_("Pause (no more calls)"), permissions=["act"])
    def pause(self, request: Any, queryset: QuerySet) -> None:
        self._switch(request, queryset, True)

    @admin.action(description=_("Resume (leads are called again)"), permissions=["act"])
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
            self.log_change(request, campaign, mark_stored("Paused.") if is_paused else mark_stored("Resumed."))
            switched += 1
        messages.success(
            request,
            (gettext("{count} paused.") if is_paused else gettext("{count} resumed.")).format(count=switched),
        )


class LeadDispatchForm(OwnedForm):
    """Ask for confirmation before going live, and describe the consequences."""

    confirmed = forms.BooleanField(
        required=False,
        label=_("Go live"),
        widget=UnfoldBooleanWidget,
        help_text=_("Check “Go live” to confirm. Other changes don't need it."),
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
            self.add_error(
                "confirmed", gettext("{summary} Check “Go live” and save again.").format(summary=summary)
            )
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

    @display(description=label("leads"), label=MODE_LABELS)
    def state(self, row: LeadDispatch) -> tuple[str, str]:
        return (
            ("paused", gettext("{mode}, paused").format(mode=row.get_mode_display()))
            if row.is_paused
            else (row.mode, row.get_mode_display())
        )

    def save_model(self, request: Any, obj: LeadDispatch, form: Any, change: bool) -> None:
        own = {"mode", "is_paused", "agent_hosts"}.intersection(form.changed_data)
        changed = {name: form.cleaned_data[name] for name in own}
        obj.pk = switches.set_dispatch(obj.organization_id, **changed, actor=request.actor).pk

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False
