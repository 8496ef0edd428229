"""Serialize leads, their calls and their reported outcomes."""

from __future__ import annotations

from datetime import time, timedelta
from typing import Any

from rest_framework import serializers

from accounts.api.base import OwnedSlugRelatedField
from dispatch.core import clock
from dispatch.core.api.serializers import MAX_LATEST, LatestSerializer, StrictSerializer
from dispatch.core.languages import gettext
from dispatch.leads.api.calling_rule_serializers import ConsentSerializer
from dispatch.leads.bulk_intake import NOT_LOCAL
from dispatch.leads.explain import explain_lead
from dispatch.leads.models import (
    Campaign,
    Consent,
    Lead,
)
from dispatch.leads.models.campaigns import check_due_at, check_purpose
from dispatch.leads.models.consents import check_given_at
from dispatch.leads.models.scripts import check_disposition
from dispatch.leads.services.consents import DEFAULT_PURPOSE, NewConsent, consents_of
from dispatch.technicians.serializers import Degrees
from dispatch.telephony.models import Call

# How far in the future a lead may be called back.
MAX_AHEAD = timedelta(days=366)
_CONSENT = ("at", "source", "purpose", "words", "proof")


def check_disposition_or_none(disposition: str) -> None:
    """Accept an empty disposition, or a valid one. Raises ValidationError."""
    if disposition:
        check_disposition(disposition)


def check_purpose_or_none(purpose: str) -> None:
    """Accept an empty purpose, or a valid one. Raises ValidationError."""
    if purpose:
        check_purpose(purpose)


def new_consent(given: dict[str, Any]) -> NewConsent:
    """Return a consent from the fields at, source, purpose, words and proof. Raises ValidationError."""
    if not given["at"] or not given["source"]:
        raise serializers.ValidationError(
            {"consent_at": "Enter consent_at (when it was given) and consent_source (how)."}
        )
    purpose = given["purpose"] or DEFAULT_PURPOSE
    return NewConsent(given["at"], given["source"], purpose, given["words"] or "", given["proof"] or "")


class LocalTimeField(serializers.TimeField):
    """A local time of day. One with an offset is refused, because the offset would be lost."""

    def to_internal_value(self, value: Any) -> time:
        hour: time = super().to_internal_value(value)
        if isinstance(value, str) and any(sign in value.upper() for sign in "+-Z"):
            raise serializers.ValidationError(gettext(NOT_LOCAL))
        return hour


class NewLeadSerializer(StrictSerializer):
    """A lead to add.

    `due_at`: when to call it (default: now). `external_id`: your own ID for it, unique in the campaign.
    `contact_from`, `contact_until`: local hours to which the person limits calls; all other hours still apply.
    `consent_at` and `consent_source`, when and how the person agreed to be called, with `consent_purpose`
    (default: marketing), `consent_words` and `consent_proof`, record a consent.
    """

    campaign = OwnedSlugRelatedField("code", queryset=Campaign.objects.select_related("organization"))
    phone = serializers.CharField(max_length=32)
    due_at = serializers.DateTimeField(required=False, allow_null=True, validators=[check_due_at])
    lat = Degrees(90, required=False, allow_null=True)
    lng = Degrees(180, required=False, allow_null=True)
    customer = serializers.SlugField(max_length=64, required=False, allow_blank=True, default="")
    external_id = serializers.CharField(max_length=120, required=False, allow_blank=True, default="")
    data = serializers.DictField(required=False, default=dict)  # type: ignore[assignment]
    contact_from = LocalTimeField(required=False, allow_null=True)
    contact_until = LocalTimeField(required=False, allow_null=True)
    consent_at = serializers.DateTimeField(required=False, allow_null=True, validators=[check_given_at])
    consent_source = serializers.CharField(max_length=80, required=False, allow_blank=True)
    consent_purpose = serializers.CharField(
        max_length=40, required=False, allow_blank=True, validators=[check_purpose_or_none]
    )
    consent_words = serializers.CharField(max_length=4000, required=False, allow_blank=True)
    consent_proof = serializers.CharField(max_length=2000, required=False, allow_blank=True)

    def validate(self, attrs: dict[str, Any]) -> dict[str, Any]:
        consent = {name: attrs.pop(f"consent_{name}", None) for name in _CONSENT}
        if any(consent.values()):
            attrs["consent"] = new_consent(consent)
        if (attrs.get("contact_from") is None) != (attrs.get("contact_until") is None):
            raise serializers.ValidationError({"contact_from": "Contact hours need both times, such as 09:00."})
        return attrs


class OutcomeSerializer(StrictSerializer):
    """What your people or your voice agent found out. Fields that are not given stay unchanged.

    `disposition`: the outcome in your words, such as `wants_quote`. The campaign's rule for it decides whether and
    when the lead is called again, also after the call has ended. `call_back_at`: when to call again, within all
    calling rules; it precedes the rule, and a lead that has ended is opened again.
    """

    disposition = serializers.CharField(
        max_length=40, required=False, allow_blank=True, validators=[check_disposition_or_none]
    )
    notes = serializers.CharField(max_length=4000, required=False, allow_blank=True)
    call_back_at = serializers.DateTimeField(required=False)

    def validate(self, attrs: dict[str, Any]) -> dict[str, Any]:
        if not attrs:
            raise serializers.ValidationError("Give a disposition, notes or call_back_at.")
        if "call_back_at" in attrs and not clock.now() < attrs["call_back_at"] < clock.now() + MAX_AHEAD:
            raise serializers.ValidationError({"call_back_at": "Must be in the future, within a year."})
        return attrs


class LeadSerializer(serializers.ModelSerializer):
    """A lead. `reason`: why it waits, or why it ended. `disposition` and `notes`: as reported.

    `wanted_at`: from when its campaign's patience is counted: when it was planned, or a switch's hold of it ended.
    The time that it waits for a line, once it is due, is added when it is deferred.
    """

    campaign = serializers.CharField(source="campaign.code")

    class Meta:
        model = Lead
        fields = [
            "id", "campaign", "phone", "status", "outcome", "reason", "due_at", "wanted_at", "attempts",
            "last_outcome", "disposition", "notes", "call_back_at", "contact_from", "contact_until",
            "customer", "external_id", "lat", "lng", "data", "created_at", "finished_at",
            "simulated_at", "simulated_outcome",
        ]  # fmt: skip


class LeadCallSerializer(serializers.ModelSerializer):
    """A call of a lead."""

    class Meta:
        model = Call
        list_serializer_class = LatestSerializer
        fields = [
            "id", "attempt", "status", "from_phone", "created_at", "requested_at", "answered_at", "ended_at",
            "duration_s", "answered_by", "keys_pressed", "error_code", "error_message",
        ]  # fmt: skip


class LeadDetailSerializer(LeadSerializer):
    """A lead with its calls, and a description of why it is in its current state."""

    why = serializers.SerializerMethodField()
    calls = serializers.SerializerMethodField(help_text=f"The last {MAX_LATEST} calls, oldest first.")
    consents = serializers.SerializerMethodField()

    class Meta(LeadSerializer.Meta):
        fields = [*LeadSerializer.Meta.fields, "why", "calls", "consents"]

    def get_why(self, lead: Lead) -> str:
        return explain_lead(lead)

    def get_consents(self, lead: Lead) -> list[dict[str, Any]]:
        rows = consents_of(lead.organization_id, str(lead.phone)) if lead.phone else Consent.objects.none()
        return list(ConsentSerializer(rows[:20], many=True).data)

    def get_calls(self, lead: Lead) -> list[dict[str, Any]]:
        calls = Call.objects.filter(organization=lead.organization_id, purpose="lead", subject_id=lead.pk)
        return list(LeadCallSerializer(calls, many=True).data)
