"""Leads, campaigns and the rulebook as the API shows and takes them."""

from __future__ import annotations

from typing import Any

from django.db import transaction
from rest_framework import serializers

from accounts.owned_api import OwnedSerializer, OwnedSlugRelatedField
from dispatch.capacity.models import DispatchPool
from dispatch.core import webhook_signing
from dispatch.core.strict import Strict
from dispatch.core.target_urls import check_target_url
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
from dispatch.leads.why import why
from dispatch.technicians.serializers import Degrees, PhoneField
from dispatch.telephony.models import Call


def check_target(url: str) -> None:
    """None at all, or one that may be called. Raises ValidationError."""
    if url:
        check_target_url(url)


def check_secret(secret: str) -> None:
    """None at all, or a secret of the Standard Webhooks form. Raises ValidationError."""
    if secret:
        try:
            webhook_signing.check_secret(secret)
        except webhook_signing.BadSecret as error:
            raise serializers.ValidationError(str(error)) from None


def _url_field() -> serializers.CharField:
    return serializers.CharField(max_length=2000, required=False, allow_blank=True, validators=[check_target])


class RetryRuleSerializer(Strict, serializers.ModelSerializer):
    class Meta:
        model = RetryRule
        fields = ["outcome", "attempts", "delay_s", "factor", "longest_s", "jitter"]


class CampaignSerializer(OwnedSerializer):
    """A set of leads with its window, rules, script and pool (by its code). `retry_rules`, when given, replaces
    all that there are; without a rule for an outcome the usual ones hold. The secret is never shown."""

    pool = OwnedSlugRelatedField("code", queryset=DispatchPool.objects.filter(kind="calls"))
    retry_rules = RetryRuleSerializer(many=True, required=False)
    precheck_url = serializers.CharField(
        max_length=2000, required=False, allow_blank=True, validators=[check_target]
    )
    answer_url = serializers.CharField(
        max_length=2000, required=False, allow_blank=True, validators=[check_target]
    )
    precheck_secret = serializers.CharField(
        write_only=True, required=False, allow_blank=True, validators=[check_secret]
    )

    class Meta:
        model = Campaign
        fields = [
            "id", "code", "name", "pool", "is_paused", "customer", "window_from", "window_until", "weekdays",
            "keeps_holidays", "patience_h", "max_attempts", "max_attempts_24h", "script", "keys", "opt_out_key",
            "answer_url", "detect_machines", "ring_timeout_s", "time_limit_s", "precheck_url", "precheck_secret",
            "precheck_timeout_s", "precheck_without_answer", "retry_rules", "created_at",
        ]  # fmt: skip
        read_only_fields = ["is_paused"]

    def validate_retry_rules(self, rules: list[dict[str, Any]]) -> list[dict[str, Any]]:
        outcomes = [rule["outcome"] for rule in rules]
        if len(set(outcomes)) < len(outcomes):
            raise serializers.ValidationError("One rule for an outcome.")
        return rules

    def validate(self, attrs: dict[str, Any]) -> dict[str, Any]:
        rules = attrs.pop("retry_rules", None)
        attrs = super().validate(attrs)
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
        return campaign


class NewLeadSerializer(Strict):
    """One lead to be. `due_at`: when it is to be called, now if it is not given; `external_id`: your own name for
    it, one of its kind in the campaign."""

    campaign = OwnedSlugRelatedField("code", queryset=Campaign.objects.select_related("organization"))
    phone = serializers.CharField(max_length=32)
    due_at = serializers.DateTimeField(required=False, allow_null=True)
    lat = Degrees(90, required=False, allow_null=True)
    lng = Degrees(180, required=False, allow_null=True)
    customer = serializers.SlugField(max_length=64, required=False, allow_blank=True, default="")
    external_id = serializers.CharField(max_length=120, required=False, allow_blank=True, default="")
    data = serializers.DictField(required=False, default=dict)  # type: ignore[assignment]


class LeadSerializer(serializers.ModelSerializer):
    """`reason`: why it waits, or what ended it."""

    campaign = serializers.CharField(source="campaign.code")

    class Meta:
        model = Lead
        fields = [
            "id", "campaign", "phone", "status", "outcome", "reason", "due_at", "wanted_at", "attempts",
            "last_outcome", "customer", "external_id", "lat", "lng", "data", "created_at", "finished_at",
        ]  # fmt: skip


class LeadCallSerializer(serializers.ModelSerializer):
    class Meta:
        model = Call
        fields = [
            "id", "attempt", "status", "from_phone", "created_at", "requested_at", "answered_at", "ended_at",
            "duration_s", "answered_by", "keys_pressed", "error_code", "error_message",
        ]  # fmt: skip


class LeadDetailSerializer(LeadSerializer):
    """With its calls, and in words why it is where it is."""

    why = serializers.SerializerMethodField()
    calls = serializers.SerializerMethodField()

    class Meta(LeadSerializer.Meta):
        fields = [*LeadSerializer.Meta.fields, "why", "calls"]

    def get_why(self, lead: Lead) -> str:
        return why(lead)

    def get_calls(self, lead: Lead) -> list[dict[str, Any]]:
        calls = Call.objects.filter(organization=lead.organization_id, purpose="lead", subject_id=lead.pk)
        return list(LeadCallSerializer(calls.order_by("attempt"), many=True).data)


class DoNotCallSerializer(Strict, serializers.ModelSerializer):
    """A phone that no campaign of the organization calls. One that is listed already is the answer, no error."""

    phone = PhoneField()

    class Meta:
        model = DoNotCall
        fields = ["id", "phone", "source", "note", "created_at"]
        read_only_fields = ["source"]


class ClosedDaySerializer(OwnedSerializer):
    class Meta:
        model = ClosedDay
        fields = ["id", "date", "name"]


class CustomerRateSerializer(OwnedSerializer):
    class Meta:
        model = CustomerRate
        fields = ["id", "customer", "most", "per_s"]


class EngineSwitchSerializer(Strict, serializers.ModelSerializer):
    """`is_stopped`: nobody's lead is called. `promoter_paused`: due leads stay in the schedule."""

    class Meta:
        model = EngineSwitch
        fields = ["is_stopped", "promoter_paused"]


class LeadDispatchSerializer(Strict, serializers.ModelSerializer):
    """How far the organization's leads go, and its pause."""

    class Meta:
        model = LeadDispatch
        fields = ["mode", "is_paused"]
