"""Edit the rows of a campaign: what its keys do, and what follows its calls."""

from __future__ import annotations

from typing import Any

from django.core.exceptions import ValidationError
from django.utils.text import format_lazy
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _

from accounts.admin.base import OwnedForm, OwnedStackedInline, OwnedTabularInline
from accounts.admin.inlines import OwnedInlineFormSet
from accounts.models import Organization
from dispatch.core.labels import label
from dispatch.leads.admin.recordings import HELP, RecordingField, WithRecordings
from dispatch.leads.models import DispositionRule, KeyBranch, RetryRule, VoiceAgent
from dispatch.leads.rules.script import NO_AGENT, Action, keys_problem, placeholder_problem, split_names
from dispatch.leads.services import voice_agents
from dispatch.leads.services.branches import phones_problem


class KeyBranchForm(WithRecordings):
    """Check the variables in a branch's texts against those of its campaign."""

    recording_fields = ("recording",)
    recording = RecordingField(
        label=_("Recording"), help_text=format_lazy("{} {}", _("For “Play a recording”."), HELP)
    )

    class Meta:
        model = KeyBranch
        fields = [
            "key", "say", "action", "disposition", "phones", "introduction", "ring_s", "talk_limit_s", "otherwise",
            "call_back_h", "text",
        ]  # fmt: skip


def sent_agent(data: Any, campaign_id: int | None) -> str:
    """Return when the voice agent starts after a campaign form is saved, "answer" or "key"; "" if there is none.

    An agent that another person added, removed or changed since the page was shown counts as it is now.
    """
    stored = VoiceAgent.objects.filter(campaign=campaign_id).first() if campaign_id else None
    if is_shown := bool(data.get("agent-0-id")):
        if data.get("agent-0-DELETE") or stored is None:
            return ""
        if data.get("agent-0-starts") == data.get("initial-agent-0-starts"):
            return str(stored.starts)
    if stored is not None and not is_shown:
        return str(stored.starts)
    is_entered = data.get("agent-0-url", "").strip() and not data.get("agent-0-DELETE")
    return str(data.get("agent-0-starts", "")) if is_entered else ""


class KeyBranchFormSet(OwnedInlineFormSet):
    """Check that keys differ from each other and the opt-out key; check the variables of texts, and the phones."""

    def clean(self) -> None:
        super().clean()
        names = split_names(self.data.get("variables", ""))
        kept = [
            form for form in self.forms if form.cleaned_data.get("key") and not form.cleaned_data.get("DELETE")
        ]
        keys = [form.cleaned_data["key"] for form in kept]
        if problem := keys_problem(keys, self.data.get("opt_out_key", "")):
            raise ValidationError(problem)
        organization = Organization.objects.filter(pk=self.instance.organization_id).first()
        for form in kept:
            if form.cleaned_data.get("action") == Action.AGENT and not sent_agent(self.data, self.instance.pk):
                form.add_error("action", gettext(NO_AGENT))
            phones = split_names(form.cleaned_data.get("phones") or "")
            if organization is not None and (problem := phones_problem(organization, phones)):
                form.add_error("phones", problem)
            for name in ("say", "introduction", "otherwise", "text"):
                if problem := placeholder_problem(form.cleaned_data.get(name) or "", names):
                    form.add_error(name, problem)


class KeyBranchInline(OwnedStackedInline):
    """The branches of a campaign's script, a form per key."""

    model = KeyBranch
    form = KeyBranchForm
    formset = KeyBranchFormSet
    extra = 0
    verbose_name_plural = label("what pressed keys do")
    fields = [
        ("key", "action", "disposition"), "say", "recording", ("phones", "ring_s", "talk_limit_s"),
        "introduction", "otherwise", "call_back_h", "text",
    ]  # fmt: skip


class VoiceAgentForm(OwnedForm):
    """Check the agent's URL against what the organization allows, and the variables in its texts."""

    class Meta:
        model = VoiceAgent
        fields = ["starts", "kind", "url", "variables", "greeting", "limit_s", "then", "otherwise"]

    def clean(self) -> dict[str, Any]:
        cleaned: dict[str, Any] = super().clean() or self.cleaned_data
        is_stream = cleaned.get("kind") == VoiceAgent.Kind.STREAM
        problem = voice_agents.url_problem(
            self.instance.organization_id, cleaned.get("url") or "", is_stream=is_stream
        )
        if "url" not in self.errors and problem:
            self.add_error("url", problem)
        names = split_names(self.data.get("variables", ""))
        for name in ("greeting", "otherwise"):
            if problem := placeholder_problem(cleaned.get(name) or "", names):
                self.add_error(name, problem)
        return cleaned


class VoiceAgentInline(OwnedStackedInline):
    """The voice agent of a campaign."""

    model = VoiceAgent
    form = VoiceAgentForm
    extra = 0
    verbose_name_plural = label("voice agent")
    fields = [("starts", "kind"), "url", "variables", "greeting", ("limit_s", "then"), "otherwise"]


class DispositionRuleFormSet(OwnedInlineFormSet):
    """Check the variables in the texts."""

    def clean(self) -> None:
        super().clean()
        names = split_names(self.data.get("variables", ""))
        for form in self.forms:
            if not form.cleaned_data.get("DELETE") and (
                problem := placeholder_problem(form.cleaned_data.get("text") or "", names)
            ):
                form.add_error("text", problem)


class DispositionRuleInline(OwnedTabularInline):
    """What follows the outcomes that were recorded for a campaign's leads."""

    model = DispositionRule
    formset = DispositionRuleFormSet
    verbose_name_plural = label("after a recorded outcome")
    fields = ["disposition", "then", "delay_h", "text"]


class RetryRuleInline(OwnedTabularInline):
    """The retry rules of a campaign."""

    model = RetryRule
    fields = ["outcome", "attempts", "delay_s", "factor", "longest_s", "jitter"]
