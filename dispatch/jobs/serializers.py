"""The shapes of submissions and jobs in the API."""

from __future__ import annotations

import json
import math
from typing import Any

from django.conf import settings
from django.urls import reverse
from drf_spectacular.utils import extend_schema_field
from rest_framework import serializers

from accounts.owned_api import OwnedSlugRelatedField
from dispatch.core.strict import Strict
from dispatch.jobs import rules, timeline
from dispatch.jobs.models import Candidate, Job, Offer, Priority, ServiceType, Submission
from dispatch.technicians.serializers import PhoneField

MOST_EXTRA_BYTES = 16_384
_PRIORITIES = {choice.name.lower(): choice for choice in Priority}


@extend_schema_field({"type": "string", "enum": list(_PRIORITIES)})
class PriorityField(serializers.Field):
    """A priority by its name; its number (1 is the most urgent) is understood too."""

    default_error_messages = {"unknown": f"Must be one of {', '.join(_PRIORITIES)}."}

    def to_internal_value(self, data: Any) -> int:
        if isinstance(data, str) and data.lower() in _PRIORITIES:
            return int(_PRIORITIES[data.lower()])
        if isinstance(data, int) and not isinstance(data, bool) and data in Priority.values:
            return data
        raise serializers.ValidationError(self.error_messages["unknown"], code="unknown")

    def to_representation(self, value: int) -> str:
        return Priority(value).name.lower()


class Degrees(serializers.FloatField):
    """Degrees between -limit and limit; text that is no finite number is refused."""

    def __init__(self, limit: int, **kwargs: Any) -> None:
        super().__init__(min_value=-limit, max_value=limit, required=False, allow_null=True, **kwargs)

    def to_internal_value(self, data: Any) -> float:
        value = super().to_internal_value(data)
        if isinstance(data, bool) or not math.isfinite(value):
            self.fail("invalid")
        return value


@extend_schema_field({"type": "object", "additionalProperties": True})
class ExtraField(serializers.JSONField):
    """Any further fields, as one JSON object of at most 16 KiB."""

    def to_internal_value(self, data: Any) -> dict[str, Any]:
        value = super().to_internal_value(data)
        if not isinstance(value, dict):
            raise serializers.ValidationError("Must be an object.")
        if len(json.dumps(value, ensure_ascii=False).encode()) > MOST_EXTRA_BYTES:
            raise serializers.ValidationError(f"Must be at most {MOST_EXTRA_BYTES} bytes of JSON.")
        return value


class SubmissionFormSerializer(Strict):
    """What a client submits. An address, or coordinates (both), or all of them; what else there is goes in
    `extra`."""

    customer_name = serializers.CharField(max_length=120)
    customer_phone = PhoneField(help_text="E.164, or as dialed in the organization's country.")
    service_type = OwnedSlugRelatedField(
        "code",
        queryset=ServiceType.objects.filter(is_active=True),
        help_text="The code of an active service type.",
    )
    priority = PriorityField(default=int(Priority.NORMAL))
    address = serializers.CharField(max_length=300, required=False, allow_blank=True, default="")
    lat = Degrees(90)
    lng = Degrees(180)
    notes = serializers.CharField(max_length=4000, required=False, allow_blank=True, default="")
    extra = ExtraField(required=False, default=dict)

    def validate(self, attrs: dict[str, Any]) -> dict[str, Any]:
        lat, lng = attrs.get("lat"), attrs.get("lng")
        if (lat is None) != (lng is None):
            missing = "lat" if lat is None else "lng"
            raise serializers.ValidationError({missing: "Coordinates need both lat and lng."})
        if lat is None and not attrs["address"].strip():
            raise serializers.ValidationError({"address": "Give an address, or lat and lng."})
        attrs["customer_phone"] = str(attrs["customer_phone"])
        return attrs


class AcceptedSerializer(serializers.Serializer):
    """The answer to a submission: it is stored, and becomes a job."""

    id = serializers.IntegerField()
    status = serializers.CharField()
    status_url = serializers.URLField()
    created_at = serializers.DateTimeField()


class JobReferenceSerializer(serializers.ModelSerializer):
    """A job in a word."""

    url = serializers.SerializerMethodField()

    class Meta:
        model = Job
        fields = ["id", "status", "pending_reason", "url"]

    def get_url(self, job: Job) -> str:
        return settings.PUBLIC_BASE_URL + reverse("job-detail", args=[job.pk])


class SubmissionSerializer(serializers.ModelSerializer):
    """A submission, and the job that it became (null until then)."""

    service_type = serializers.CharField(source="service_type.code", read_only=True)
    priority = PriorityField(read_only=True)
    customer_phone = serializers.CharField(read_only=True)
    job = serializers.SerializerMethodField()

    class Meta:
        model = Submission
        fields = [
            "id", "status", "job", "customer_name", "customer_phone", "service_type", "priority", "address",
            "lat", "lng", "notes", "extra", "starts", "last_error", "created_at",
        ]  # fmt: skip
        read_only_fields = fields

    @extend_schema_field(JobReferenceSerializer(allow_null=True))
    def get_job(self, submission: Submission) -> Any:
        job = getattr(submission, "job", None)
        return JobReferenceSerializer(job, context=self.context).data if job else None


class TechnicianReferenceSerializer(serializers.Serializer):
    """A technician in a word."""

    id = serializers.IntegerField()
    name = serializers.CharField()
    phone = serializers.CharField()


class JobSerializer(serializers.ModelSerializer):
    """A job as lists show it. `version` is what an action by hand is decided on."""

    service_type = serializers.CharField(source="service_type.code", read_only=True)
    priority = PriorityField(read_only=True)
    customer_phone = serializers.CharField(read_only=True)
    technician = TechnicianReferenceSerializer(read_only=True, allow_null=True)
    paused = serializers.SerializerMethodField()

    class Meta:
        model = Job
        fields = [
            "id", "submission", "status", "pending_reason", "waiting_for", "waiting_since", "next_action_at",
            "paused", "version", "service_type", "priority", "customer_name", "customer_phone", "address", "lat",
            "lng", "technician", "round", "created_at", "assigned_at", "ended_at",
        ]  # fmt: skip
        read_only_fields = fields

    def get_paused(self, job: Job) -> bool:
        return job.paused_at is not None


class CandidateSerializer(serializers.ModelSerializer):
    """A technician's place in the ranking; distance in metres, the lower the score the sooner offered."""

    technician = TechnicianReferenceSerializer(read_only=True)

    class Meta:
        model = Candidate
        fields = ["rank", "technician", "verdict", "reason", "distance_m", "score"]
        read_only_fields = fields


class OfferSerializer(serializers.ModelSerializer):
    """One technician's chance at the job."""

    technician = TechnicianReferenceSerializer(read_only=True)

    class Meta:
        model = Offer
        fields = [
            "id", "attempt", "round", "technician", "status", "outcome", "reason", "distance_m", "created_at",
            "ringing_since", "answered_at", "missed_at", "expires_at", "settled_at",
        ]  # fmt: skip
        read_only_fields = fields


class ActorSerializer(serializers.Serializer):
    """Who did it: user, api_key, technician, customer, provider or system."""

    type = serializers.CharField(source="actor_type")
    id = serializers.IntegerField(source="actor_id", allow_null=True)
    label = serializers.CharField(source="actor_label")  # type: ignore[assignment]


class EntrySerializer(serializers.Serializer):
    """One line of a job's history; `text` is the sentence."""

    id = serializers.IntegerField()
    at = serializers.DateTimeField()
    kind = serializers.CharField()
    text = serializers.CharField()
    actor = ActorSerializer(source="*")
    data = serializers.JSONField()  # type: ignore[assignment]


class JobDetailSerializer(JobSerializer):
    """A job with its candidates, offers and history, and what may be done to it now."""

    candidates = CandidateSerializer(many=True, read_only=True)
    offers = OfferSerializer(many=True, read_only=True)
    timeline = serializers.SerializerMethodField()
    actions = serializers.SerializerMethodField(help_text="What a dispatcher may do to it now.")
    policy = serializers.JSONField(read_only=True, help_text="The cascade's parameters, frozen at its start.")
    out_of_reach = serializers.DictField(
        child=serializers.IntegerField(), read_only=True, help_text="Technicians beyond the candidates, by reason."
    )

    class Meta(JobSerializer.Meta):
        fields = [
            *JobSerializer.Meta.fields, "position_source", "notes", "extra", "actions", "candidates",
            "out_of_reach", "offers", "policy", "timeline",
        ]  # fmt: skip
        read_only_fields = fields

    @extend_schema_field(EntrySerializer(many=True))
    def get_timeline(self, job: Job) -> Any:
        return EntrySerializer(timeline.timeline(job), many=True).data

    @extend_schema_field({"type": "array", "items": {"type": "string", "enum": list(rules.Action)[:9]}})
    def get_actions(self, job: Job) -> list[str]:
        ringing = any(offer.is_ringing for offer in job.offers.all())
        legal = rules.actions_in(job.status, paused=job.paused_at is not None, ringing=ringing)
        return [str(one) for one in legal]


class DecisionSerializer(Strict):
    """What an action by hand takes. `version` (or an If-Match header) refuses it when the job has changed
    since."""

    version = serializers.IntegerField(min_value=1, required=False)
    note = serializers.CharField(max_length=500, required=False, allow_blank=True, default="")


class AssignSerializer(DecisionSerializer):
    """Whom to assign; `confirm_unfit` after the refusal that says why they are unfit."""

    technician = serializers.IntegerField(min_value=1, max_value=2**63 - 1)
    confirm_unfit = serializers.BooleanField(default=False)


class DispatchAgainSerializer(DecisionSerializer):
    """A better place, where the one it has was not found or is wrong."""

    address = serializers.CharField(max_length=300, required=False, allow_blank=True, default="")
    lat = Degrees(90, default=None)
    lng = Degrees(180, default=None)

    def validate(self, attrs: dict[str, Any]) -> dict[str, Any]:
        if (attrs["lat"] is None) != (attrs["lng"] is None):
            raise serializers.ValidationError(
                {"lat" if attrs["lat"] is None else "lng": "Coordinates need both lat and lng."}
            )
        return attrs


class ExtendSerializer(DecisionSerializer):
    """How many seconds more."""

    seconds = serializers.IntegerField(min_value=1, max_value=3600)


class CancelSerializer(Strict):
    """Why it is cancelled."""

    version = serializers.IntegerField(min_value=1, required=False)
    reason = serializers.CharField(max_length=500)
