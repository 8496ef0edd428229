"""Serialize campaigns with their rules, branches and voice agents."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

from django.core.exceptions import ValidationError as ModelValidationError
from django.db import transaction
from rest_framework import serializers

from accounts.api.base import OwnedRelatedField, OwnedSerializer, OwnedSlugRelatedField
from dispatch.capacity.models import DispatchPool
from dispatch.core.api.serializers import StrictSerializer
from dispatch.core.http import webhook_signing
from dispatch.core.http.ssrf import check_target_url
from dispatch.leads.models import (
    Campaign,
    DispositionRule,
    KeyBranch,
    Recording,
    RetryRule,
    VoiceAgent,
)
from dispatch.leads.models.voice_agents import agent_problems
from dispatch.leads.rules.script import (
    NO_AGENT,
    Action,
    branch_problems,
    key_problem,
    keys_problem,
    placeholder_problem,
    removal_problem,
    script_problem,
    split_names,
    variables_problem,
)
from dispatch.leads.services import recordings, switches, voice_agents
from dispatch.leads.services.branches import branches_of, phones_problem
from dispatch.technicians.serializers import validate_voice

# A part of a campaign that the request does not mention, unlike null.
_UNCHANGED: Any = object()
# The fields of a branch that may contain placeholders.
BRANCH_TEXTS = ("say", "introduction", "otherwise", "text")


def check_target(url: str) -> None:
    """Accept an empty URL, or one that may be called. Raises ValidationError."""
    if url:
        check_target_url(url)


def check_secret(secret: str) -> None:
    """Accept an empty secret, or one in the Standard Webhooks format. Raises ValidationError."""
    if secret:
        try:
            webhook_signing.check_secret(secret)
        except webhook_signing.BadSecret as error:
            raise serializers.ValidationError(str(error)) from None


def check_keys(keys: Any) -> None:
    """Check a campaign's responses to pressed keys. Raises ValidationError."""
    if problem := key_problem(keys):
        raise serializers.ValidationError(problem)


def _url_field() -> serializers.CharField:
    return serializers.CharField(max_length=2000, required=False, allow_blank=True, validators=[check_target])


def _recording_field() -> OwnedRelatedField:
    return OwnedRelatedField(queryset=Recording.objects.all(), required=False, allow_null=True)


class RetryRuleSerializer(StrictSerializer, serializers.ModelSerializer):
    """The rule for calling a lead again after one outcome of a campaign's call."""

    class Meta:
        model = RetryRule
        fields = ["outcome", "attempts", "delay_s", "factor", "longest_s", "jitter"]


class KeyBranchSerializer(StrictSerializer, serializers.ModelSerializer):
    """What a pressed key does: `say` some words, then an `action`, which uses some of the other fields.

    `say`: the call ends. `play`: the `recording` is played, then the call ends. `connect`: the `phones` ring for
    `ring_s` seconds; each person hears the `introduction` and accepts with key 1; the lead hears `otherwise` if
    nobody does; they talk for `talk_limit_s` at most. `agent`: the campaign's voice agent talks to the lead.
    `later`: the lead is called again after `call_back_h` hours. `text`: sends it. `opt_out`: the phone is never
    called again. `disposition` is recorded.
    """

    recording = _recording_field()

    class Meta:
        model = KeyBranch
        fields = [
            "key", "say", "action", "recording", "disposition", "phones", "introduction", "ring_s", "talk_limit_s",
            "otherwise", "call_back_h", "text",
        ]  # fmt: skip

    def validate(self, attrs: dict[str, Any]) -> dict[str, Any]:
        attrs = super().validate(attrs)
        if problems := branch_problems(KeyBranch(**attrs)):
            raise serializers.ValidationError(problems)
        return attrs


class VoiceAgentSerializer(StrictSerializer, serializers.ModelSerializer):
    """The campaign's voice agent at a WebSocket `url`, to which the provider connects.

    `kind`: `relay` (text; ConversationRelay) or `stream` (mu-law audio). `starts`: with the `answer`, or when a
    `key` with the action `agent` is pressed. `variables`: names of the lead's data that the agent gets. `then`:
    `hang_up` or read the `script`. `otherwise` is said if the agent fails.
    """

    class Meta:
        model = VoiceAgent
        fields = ["starts", "kind", "url", "variables", "greeting", "limit_s", "then", "otherwise"]

    def validate(self, attrs: dict[str, Any]) -> dict[str, Any]:
        attrs = super().validate(attrs)
        if not attrs.get("url"):  # a PATCH does not require the fields of its parts
            raise serializers.ValidationError({"url": "Enter the WebSocket URL."})
        if problems := agent_problems(VoiceAgent(**attrs)):
            raise serializers.ValidationError(problems)
        return attrs


class DispositionRuleSerializer(StrictSerializer, serializers.ModelSerializer):
    """What follows a call if this `disposition` was recorded: a call `again` after `delay_h` hours, or none.

    `text` is sent to the lead, within the calling hours.
    """

    class Meta:
        model = DispositionRule
        fields = ["disposition", "then", "delay_h", "text"]


class CampaignSerializer(OwnedSerializer):
    """A set of leads with its calling window, rules, script and pool (by its code).

    A campaign that is not paused needs a script, a `recording`, an `answer_url` or a voice `agent` that starts
    with the answer; `agent` null removes it. A `recording` is played instead of reading the script, and a
    `voicemail_recording` instead of the message for voicemail. With a `consent_purpose`, only leads with a
    recorded consent for it are called. `branches` say what pressed keys do, and `retry_rules` when a lead is
    called again; if given, each replaces all existing rows. `keys` are branches that only say something; if given,
    they replace those. An outcome without a rule uses the defaults. With `allows_duplicates`, the campaign may
    have several open leads to a phone. The secret is never returned.
    """

    pool = OwnedSlugRelatedField("code", queryset=DispatchPool.objects.filter(kind="calls"))
    retry_rules = RetryRuleSerializer(many=True, required=False)
    branches = KeyBranchSerializer(many=True, required=False)
    disposition_rules = DispositionRuleSerializer(many=True, required=False)
    recording = _recording_field()
    voicemail_recording = _recording_field()
    agent = VoiceAgentSerializer(required=False, allow_null=True)
    precheck_url = serializers.CharField(
        max_length=2000, required=False, allow_blank=True, validators=[check_target]
    )
    answer_url = serializers.CharField(
        max_length=2000, required=False, allow_blank=True, validators=[check_target]
    )
    keys = serializers.JSONField(required=False, validators=[check_keys])
    precheck_secret = serializers.CharField(
        write_only=True, required=False, allow_blank=True, validators=[check_secret]
    )

    class Meta:
        model = Campaign
        fields = [
            "id", "code", "name", "pool", "is_paused", "customer", "window_from", "window_until", "weekdays",
            "keeps_holidays", "patience_h", "max_attempts", "max_attempts_24h", "consent_purpose", "language",
            "voice", "script", "recording", "variables", "agent", "keys", "branches", "voicemail",
            "voicemail_recording", "opt_out_key", "answer_url", "detect_machines", "ring_timeout_s",
            "time_limit_s", "precheck_url", "precheck_secret",
            "precheck_timeout_s", "precheck_without_answer", "allows_duplicates", "retry_rules",
            "disposition_rules", "created_at",
        ]  # fmt: skip
        read_only_fields = ["is_paused"]

    def validate_disposition_rules(self, rules: list[dict[str, Any]]) -> list[dict[str, Any]]:
        dispositions = [rule.get("disposition") for rule in rules]
        if not all(dispositions) or len(set(dispositions)) < len(dispositions):
            raise serializers.ValidationError("Each rule needs a disposition, and each disposition one rule.")
        return rules

    def validate_retry_rules(self, rules: list[dict[str, Any]]) -> list[dict[str, Any]]:
        outcomes = [rule["outcome"] for rule in rules]
        if len(set(outcomes)) < len(outcomes):
            raise serializers.ValidationError("Only one rule per outcome is allowed.")
        return rules

    def validate(self, attrs: dict[str, Any]) -> dict[str, Any]:
        rules, branches = attrs.pop("retry_rules", None), attrs.pop("branches", None)
        dispositions = attrs.pop("disposition_rules", None)
        agent = attrs.pop("agent", _UNCHANGED)
        if (keys := attrs.pop("keys", None)) is not None:
            branches = self._with_keys(keys, branches)
        attrs = super().validate(attrs)
        self._check_texts(attrs, branches, dispositions, agent)
        starts = self._check_agent(attrs, branches, agent)
        script, answer_url = (self._current(attrs, name) or "" for name in ("script", "answer_url"))
        validate_voice(self, attrs)
        is_paused = self.instance is not None and self.instance.is_paused
        is_heard = starts == VoiceAgent.Starts.ANSWER or self._current(attrs, "recording") is not None
        if problem := script_problem(script, answer_url, is_paused=is_paused, has_other_opening=is_heard):
            raise serializers.ValidationError({"script": problem})
        rows = {"retry_rules": rules, "branches": branches, "disposition_rules": dispositions}
        if agent is not _UNCHANGED:
            attrs["agent"] = agent
        return {**attrs, **{name: given for name, given in rows.items() if given is not None}}

    def _current(self, attrs: dict[str, Any], name: str) -> Any:
        return attrs.get(name, getattr(self.instance, name, None))

    def _check_agent(self, attrs: dict[str, Any], branches: list[dict[str, Any]] | None, agent: Any) -> str:
        """Check the voice agent and the branches that need it. Return when it starts, or "" without an agent."""
        existing = getattr(self.instance, "agent", None)
        if agent is _UNCHANGED:
            starts = str(existing.starts) if existing is not None else ""
        else:
            starts = str(agent.get("starts", VoiceAgent.Starts.ANSWER)) if agent else ""
        if agent and agent is not _UNCHANGED:
            is_stream = agent.get("kind") == VoiceAgent.Kind.STREAM
            organization = self.context["request"].organization
            if problem := voice_agents.url_problem(organization.pk, agent["url"], is_stream=is_stream):
                raise serializers.ValidationError({"agent": {"url": problem}})
        if branches is None:
            existing_branches = branches_of(self.instance).values() if self.instance else ()
            actions = {str(branch.action) for branch in existing_branches}
        else:
            actions = {str(branch.get("action")) for branch in branches}
        if not starts and Action.AGENT in actions:
            raise serializers.ValidationError({"agent": NO_AGENT})
        return starts

    def _with_keys(self, keys: dict[str, str], branches: list[dict[str, Any]] | None) -> list[dict[str, Any]]:
        """Return the branches with those of `keys`, which replace branches that only say something."""
        if branches is None:
            existing = branches_of(self.instance).values() if self.instance else ()
            names = KeyBranchSerializer.Meta.fields
            branches = [
                {name: getattr(branch, name) for name in names}
                for branch in existing
                if branch.action != Action.SAY or branch.disposition
            ]
        # A client may send what it was shown: these branches twice.
        given = {(row["key"], row.get("action", Action.SAY), row.get("say")) for row in branches}
        says = [(key, say) for key, say in keys.items() if (key, Action.SAY, say) not in given]
        return [*branches, *({"key": key, "say": say, "action": Action.SAY} for key, say in says)]

    def _check_texts(
        self,
        attrs: dict[str, Any],
        branches: list[dict[str, Any]] | None,
        dispositions: list[dict[str, Any]] | None,
        agent: Any,
    ) -> None:
        """Check the variables in all texts that are given, and the keys of the branches."""

        def current(name: str) -> str:
            return str(attrs.get(name, getattr(self.instance, name, "")))

        names = split_names(current("variables"))
        if problem := variables_problem(names):
            raise serializers.ValidationError({"variables": problem})
        if self.instance is not None and "variables" in attrs:
            removed = set(split_names(self.instance.variables)).difference(names)
            texts = self._unchanged_texts(self.instance, attrs, branches, dispositions, agent)
            if removed and (problem := removal_problem(removed, texts)):
                raise serializers.ValidationError({"variables": problem})
        for name in ("script", "voicemail"):
            if name in attrs and (problem := placeholder_problem(attrs[name], names)):
                raise serializers.ValidationError({name: problem})
        for rule in dispositions or ():
            if problem := placeholder_problem(rule.get("text", ""), names):
                raise serializers.ValidationError({"disposition_rules": f"{rule['disposition']}, text: {problem}"})
        for name in ("greeting", "otherwise") if agent and agent is not _UNCHANGED else ():
            if problem := placeholder_problem(agent.get(name, ""), names):
                raise serializers.ValidationError({"agent": {name: problem}})
        if branches is None:
            existing = branches_of(self.instance) if self.instance and "opt_out_key" in attrs else ()
            if problem := keys_problem(existing, current("opt_out_key")):
                raise serializers.ValidationError({"opt_out_key": problem})
            return
        opt_out_key = current("opt_out_key") if self.instance or "opt_out_key" in attrs else "9"
        if problem := keys_problem([branch["key"] for branch in branches], opt_out_key):
            raise serializers.ValidationError({"branches": problem})
        organization = self.context["request"].organization
        for branch in branches:
            if problem := phones_problem(organization, split_names(branch.get("phones", ""))):
                raise serializers.ValidationError({"branches": f"Key {branch['key']}, phones: {problem}"})
            for name in BRANCH_TEXTS:
                if problem := placeholder_problem(branch.get(name, ""), names):
                    raise serializers.ValidationError({"branches": f"Key {branch['key']}, {name}: {problem}"})

    def _unchanged_texts(
        self,
        campaign: Campaign,
        attrs: dict[str, Any],
        branches: list[dict[str, Any]] | None,
        dispositions: list[dict[str, Any]] | None,
        agent: Any,
    ) -> Iterator[str]:
        """Yield the campaign's texts that the request does not replace."""
        yield from (getattr(campaign, name) for name in ("script", "voicemail") if name not in attrs)
        if branches is None:
            for branch in branches_of(campaign).values():
                yield from (getattr(branch, name) for name in BRANCH_TEXTS)
        if dispositions is None:
            yield from campaign.disposition_rules.values_list("text", flat=True)
        if agent is _UNCHANGED and (existing := getattr(campaign, "agent", None)) is not None:
            yield from (existing.greeting, existing.otherwise)

    def to_representation(self, instance: Campaign) -> dict[str, Any]:
        shown: dict[str, Any] = super().to_representation(instance)
        branches = sorted(branches_of(instance).values(), key=lambda branch: branch.key)
        agent = getattr(instance, "agent", None)
        shown["agent"] = VoiceAgentSerializer(agent).data if agent is not None else None
        shown["branches"] = KeyBranchSerializer(branches, many=True).data
        says = [branch for branch in branches if branch.action == Action.SAY and not branch.disposition]
        shown["keys"] = {branch.key: branch.say for branch in says}
        return shown

    def create(self, validated_data: dict[str, Any]) -> Campaign:
        return self._write(super().create, validated_data)

    def update(self, instance: Campaign, validated_data: dict[str, Any]) -> Campaign:
        return self._write(partial(super().update, instance), validated_data)

    def _write(self, write: Any, data: dict[str, Any]) -> Campaign:
        rules, branches = data.pop("retry_rules", None), data.pop("branches", None)
        dispositions = data.pop("disposition_rules", None)
        agent = data.pop("agent", _UNCHANGED)
        with transaction.atomic():
            self._lock_recordings(data, branches)
            if branches is not None:
                data["keys"] = {}
            campaign: Campaign = write(data)
            if branches is not None:
                campaign.branches.all().delete()
                KeyBranch.objects.bulk_create(
                    KeyBranch(organization=campaign.organization, campaign=campaign, **branch)
                    for branch in branches
                )
            if rules is not None:
                campaign.retry_rules.all().delete()
                RetryRule.objects.bulk_create(
                    RetryRule(organization=campaign.organization, campaign=campaign, **rule) for rule in rules
                )
            if dispositions is not None:
                campaign.disposition_rules.all().delete()
                DispositionRule.objects.bulk_create(
                    DispositionRule(organization=campaign.organization, campaign=campaign, **rule)
                    for rule in dispositions
                )
            if agent is not _UNCHANGED:
                VoiceAgent.objects.filter(campaign=campaign).delete()
                if agent:
                    VoiceAgent.objects.create(organization=campaign.organization, campaign=campaign, **agent)
            recordings.update_uses(campaign)
            switches.wake_after_change()
        return campaign

    def _lock_recordings(self, data: dict[str, Any], branches: list[dict[str, Any]] | None) -> None:
        used = [data.get("recording"), data.get("voicemail_recording")]
        used += [branch.get("recording") for branch in branches or ()]
        try:
            recordings.lock_recordings(used, getattr(self.instance, "pk", None))
        except ModelValidationError as error:
            raise serializers.ValidationError({"recording": error.messages}) from None
