"""Serialize leads, campaigns and calling rules for the API."""

from __future__ import annotations

from typing import Any

from django.db import transaction
from rest_framework import serializers

from accounts.api.base import OwnedSerializer, OwnedSlugRelatedField
from dispatch.capacity.models import DispatchPool
from dispatch.core.api.serializers import StrictSerializer
from dispatch.core.http import webhook_signing
from dispatch.core.http.ssrf import check_target_url
from dispatch.leads.explain import explain_lead
from dispatch.leads.models import (
    Campaign,
    ClosedDay,
    CustomerRate,
    DoNotCall,
    EngineSwitch,
    Lead,
    LeadDispatch,
    RetryRule,
)
from dispatch.leads.rules.script import key_problem, script_problem
from dispatch.leads.services import switches
from dispatch.technicians.serializers import Degrees, PhoneField, validate_voice
from dispatch.telephony.models import Call


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


class RetryRuleSerializer(StrictSerializer, serializers.ModelSerializer):
    """The rule for calling a lead again after one outcome of a campaign's call."""

    class Meta:
        model = RetryRule
        fields = ["outcome", "attempts", "delay_s", "factor", "longest_s", "jitter"]


class CampaignSerializer(OwnedSerializer):
    """A set of leads with its calling window, rules, script and pool (by its code).

    A campaign that is not paused needs a script or an `answer_url`. `retry_rules`, if given, replaces all existing
    rules; an outcome without a rule uses the defaults. With `allows_duplicates`, the campaign may have several
    open leads to a phone. The secret is never returned.
    """

    pool = OwnedSlugRelatedField("code", queryset=DispatchPool.objects.filter(kind="calls"))
    retry_rules = RetryRuleSerializer(many=True, required=False)
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
            "keeps_holidays", "patience_h", "max_attempts", "max_attempts_24h", "language", "voice", "script",
            "keys", "opt_out_key", "answer_url", "detect_machines", "ring_timeout_s", "time_limit_s",
            "precheck_url", "precheck_secret",
            "precheck_timeout_s", "precheck_without_answer", "allows_duplicates", "retry_rules", "created_at",
        ]  # fmt: skip
        read_only_fields = ["is_paused"]

    def validate_retry_rules(self, rules: list[dict[str, Any]]) -> list[dict[str, Any]]:
        if any("outcome" not in rule for rule in rules):  # a PATCH does not require the fields of its parts
            raise serializers.ValidationError("Each rule needs an outcome.")
        outcomes = [rule["outcome"] for rule in rules]
        if len(set(outcomes)) < len(outcomes):
            raise serializers.ValidationError("Only one rule per outcome is allowed.")
        return rules

    def validate(self, attrs: dict[str, Any]) -> dict[str, Any]:
        rules = attrs.pop("retry_rules", None)
        attrs = super().validate(attrs)
        script, answer_url = (
            attrs.get(name, getattr(self.instance, name, "")) for name in ("script", "answer_url")
        )
        validate_voice(self, attrs)
        is_paused = self.instance is not None and self.instance.is_paused
        if problem := script_problem(script, answer_url, is_paused=is_paused):
            raise serializers.ValidationError({"script": problem})
        return attrs if rules is None else {**attrs, "retry_rules": rules}

    def create(self, validated_data: dict[str, Any]) -> Campaign:
        return self._write(super().create, validated_data)

    def update(self, instance: Campaign, validated_data: dict[str, Any]) -> Campaign:
        return self._write(lambda data: super(CampaignSerializer, self).update(instance, data), validated_data)

    def _write(self, write: Any, data: dict[str, Any]) -> Campaign:
        rules = data.pop("retry_rules", None)
        with transaction.atomic():
            campaign: Campaign = write(data)
            if rules is not None:
                campaign.retry_rules.all().delete()
                RetryRule.objects.bulk_create(
                    RetryRule(organization=campaign.organization, campaign=campaign, **rule) for rule in rules
                )
            switches.wake_after_change()
        return campaign


class NewLeadSerializer(StrictSerializer):
    """A lead to add.

    `due_at`: when to call it (default: now). `external_id`: your own ID for it, unique in the campaign.
    """

    campaign = OwnedSlugRelatedField("code", queryset=Campaign.objects.select_related("organization"))
    phone = serializers.CharField(max_length=32)
    due_at = serializers.DateTimeField(required=False, allow_null=True)
    lat = Degrees(90, required=False, allow_null=True)
    lng = Degrees(180, required=False, allow_null=True)
    customer = serializers.SlugField(max_length=64, required=False, allow_blank=True, default="")
    external_id = serializers.CharField(max_length=120, required=False, allow_blank=True, default="")
    data = serializers.DictField(required=False, default=dict)  # type: ignore[assignment]


class LeadSerializer(serializers.ModelSerializer):
    """A lead. `reason`: why it waits, or why it ended."""

    campaign = serializers.CharField(source="campaign.code")

    class Meta:
        model = Lead
        fields = [
            "id", "campaign", "phone", "status", "outcome", "reason", "due_at", "wanted_at", "attempts",
            "last_outcome", "customer", "external_id", "lat", "lng", "data", "created_at", "finished_at",
            "simulated_at", "simulated_outcome",
        ]  # fmt: skip


class LeadCallSerializer(serializers.ModelSerializer):
    """A call of a lead."""

    class Meta:
        model = Call
        fields = [
            "id", "attempt", "status", "from_phone", "created_at", "requested_at", "answered_at", "ended_at",
            "duration_s", "answered_by", "keys_pressed", "error_code", "error_message",
        ]  # fmt: skip


class LeadDetailSerializer(LeadSerializer):
    """A lead with its calls, and a description of why it is in its current state."""

    why = serializers.SerializerMethodField()
    calls = serializers.SerializerMethodField()

    class Meta(LeadSerializer.Meta):
        fields = [*LeadSerializer.Meta.fields, "why", "calls"]

    def get_why(self, lead: Lead) -> str:
        return explain_lead(lead)

    def get_calls(self, lead: Lead) -> list[dict[str, Any]]:
        calls = Call.objects.filter(organization=lead.organization_id, purpose="lead", subject_id=lead.pk)
        return list(LeadCallSerializer(calls.order_by("attempt"), many=True).data)


class DoNotCallSerializer(StrictSerializer, serializers.ModelSerializer):
    """A phone that no campaign of the organization calls. Adding a listed phone returns its entry."""

    phone = PhoneField()

    class Meta:
        model = DoNotCall
        fields = ["id", "phone", "source", "note", "created_at"]
        read_only_fields = ["source"]


class ClosedDaySerializer(OwnedSerializer):
    """A day on which campaigns that observe holidays make no calls."""

    class Meta:
        model = ClosedDay
        fields = ["id", "date", "name"]


class CustomerRateSerializer(OwnedSerializer):
    """The maximum number of calls (`most`) on a customer's behalf in any period of `per_s` seconds."""

    class Meta:
        model = CustomerRate
        fields = ["id", "customer", "most", "per_s"]


class EngineSwitchSerializer(StrictSerializer, serializers.ModelSerializer):
    """`is_stopped`: no leads are called. `promoter_paused`: due leads stay in the schedule."""

    class Meta:
        model = EngineSwitch
        fields = ["is_stopped", "promoter_paused"]


class LeadDispatchSerializer(StrictSerializer, serializers.ModelSerializer):
    """The mode of the organization's lead calling, and its pause."""

    class Meta:
        model = LeadDispatch
        fields = ["mode", "is_paused"]
