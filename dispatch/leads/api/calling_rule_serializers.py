"""Serialize the calling rules and switches of an organization."""

from __future__ import annotations

from datetime import datetime

from rest_framework import serializers

from accounts.api.base import OwnedSerializer
from dispatch.core.api.serializers import StrictSerializer
from dispatch.leads.models import (
    ClosedDay,
    Consent,
    CustomerRate,
    DoNotCall,
    EngineSwitch,
    LeadDispatch,
)
from dispatch.leads.models.consents import check_given_at
from dispatch.technicians.serializers import PhoneField


class ConsentSerializer(StrictSerializer, serializers.ModelSerializer):
    """The consent of a phone's owner to be called for a purpose. A withdrawn one stays as a record.

    `given_at`, `source`: when and how; `words`: those agreed to; `proof`: a URL or text.
    """

    phone = PhoneField()

    class Meta:
        model = Consent
        fields = ["id", "phone", "purpose", "given_at", "source", "words", "proof", "withdrawn_at", "withdrawn_by",
                  "created_at"]  # fmt: skip
        read_only_fields = ["withdrawn_at", "withdrawn_by"]

    def validate_given_at(self, given_at: datetime) -> datetime:
        check_given_at(given_at)
        return given_at


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
