"""API representations of submissions and jobs."""

from __future__ import annotations

import json
import math
from typing import Any

from django.conf import settings
from django.urls import reverse
from drf_spectacular.utils import extend_schema_field
from rest_framework import serializers

from accounts.api.base import OwnedRelatedField, OwnedSlugRelatedField
from accounts.models import Organization
from dispatch.core import clock
from dispatch.core.api.serializers import StrictSerializer
from dispatch.core.languages import gettext as _
from dispatch.jobs import rules, timeline
from dispatch.jobs.action_forms import allowed_actions
from dispatch.jobs.models import Candidate, Job, JobNote, JobText, Offer, Priority, ServiceType, Submission
from dispatch.jobs.models.notes import MAX_NOTE_TEXT
from dispatch.jobs.rules.arrival_window import ArrivalWindow
from dispatch.jobs.rules.on_the_way import MAX_ETA_MINUTES, MAX_LATE_MINUTES
from dispatch.jobs.services import threads
from dispatch.technicians.models import Technician
from dispatch.technicians.serializers import PhoneField
from dispatch.telephony.models import Text

MAX_EXTRA_BYTES = 16_384
_PRIORITIES = {choice.name.lower(): choice for choice in Priority}
_ACTIONS = [action for action in rules.Action if action not in rules.NOT_FOR_DISPATCHERS]


@extend_schema_field({"type": "string", "enum": list(_PRIORITIES)})
class PriorityField(serializers.Field):
    """A priority by name. Input may also be its number (1 is the most urgent)."""

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
    """Degrees between -limit and limit. Rejects anything but a finite number."""

    def __init__(self, limit: int, **kwargs: Any) -> None:
        super().__init__(min_value=-limit, max_value=limit, required=False, allow_null=True, **kwargs)

    def to_internal_value(self, data: Any) -> float:
        value = super().to_internal_value(data)
        if isinstance(data, bool) or not math.isfinite(value):
            self.fail("invalid")
        return value


@extend_schema_field({"type": "object", "additionalProperties": True})
class ExtraField(serializers.JSONField):
    """Additional fields as one JSON object of at most 16 KiB."""

    def to_internal_value(self, data: Any) -> dict[str, Any]:
        value = super().to_internal_value(data)
        if not isinstance(value, dict):
            raise serializers.ValidationError("Must be an object.")
        if len(json.dumps(value, ensure_ascii=False).encode()) > MAX_EXTRA_BYTES:
            raise serializers.ValidationError(f"Must be at most {MAX_EXTRA_BYTES} bytes of JSON.")
        return value


class ArrivalWindowSerializer(StrictSerializer):
    """The time between which the technician should arrive. At most 24 hours long, and within a year."""

    start = serializers.DateTimeField()
    end = serializers.DateTimeField()

    def validate(self, attrs: dict[str, Any]) -> ArrivalWindow:
        window = ArrivalWindow(attrs["start"], attrs["end"])
        if problem := window.problem(clock.now()):
            raise serializers.ValidationError({"start" if "start within" in problem else "end": _(problem)})
        return window

    def to_representation(self, instance: ArrivalWindow) -> dict[str, Any]:
        return {"start": instance.start, "end": instance.end}


class SubmissionFormSerializer(StrictSerializer):
    """A request for service. Give an address, both coordinates, or all three. Put other fields in `extra`."""

    customer_name = serializers.CharField(max_length=120)
    customer_phone = PhoneField(help_text="E.164, or a national number of the organization's country.")
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
    language = serializers.ChoiceField(
        choices=Organization.Language.choices,
        required=False,
        allow_blank=True,
        default="",
        help_text="The language of the customer's page and texts. Empty: the organization's.",
    )
    preferred_technician = OwnedRelatedField(
        queryset=Technician.objects.all(),
        required=False,
        allow_null=True,
        default=None,
        help_text="The id of the technician whom the customer prefers: called first if eligible.",
    )
    arrival_window = ArrivalWindowSerializer(
        required=False,
        allow_null=True,
        default=None,
        help_text="When the technician should arrive. Technicians are called in time for it (`window_lead_s`).",
    )
    expected_minutes = serializers.IntegerField(
        min_value=5,
        max_value=1440,
        required=False,
        allow_null=True,
        default=None,
        help_text="How long the work should take. Null: as usual for the service type.",
    )

    def validate(self, attrs: dict[str, Any]) -> dict[str, Any]:
        lat, lng = attrs.get("lat"), attrs.get("lng")
        if (lat is None) != (lng is None):
            missing = "lat" if lat is None else "lng"
            raise serializers.ValidationError({missing: "Coordinates need both lat and lng."})
        if lat is None and not attrs["address"].strip():
            raise serializers.ValidationError({"address": "Enter an address, or lat and lng."})
        window = attrs.pop("arrival_window", None)
        return attrs | {"window_start": window and window.start, "window_end": window and window.end}


class AcceptedSerializer(serializers.Serializer):
    """Confirms that a submission is stored and will become a job."""

    id = serializers.IntegerField()
    status = serializers.CharField()
    status_url = serializers.URLField()
    created_at = serializers.DateTimeField()


def accepted_body(submission: Submission) -> dict[str, Any]:
    """Return the members of AcceptedSerializer."""
    return {
        "id": submission.pk,
        "status": submission.status,
        "status_url": settings.PUBLIC_BASE_URL + reverse("submission-detail", args=[submission.pk]),
        "created_at": submission.created_at,
    }


class JobReferenceSerializer(serializers.ModelSerializer):
    """A short reference to a job."""

    url = serializers.SerializerMethodField()

    class Meta:
        model = Job
        fields = ["id", "status", "pending_reason", "url"]

    def get_url(self, job: Job) -> str:
        return settings.PUBLIC_BASE_URL + reverse("job-detail", args=[job.pk])


class SubmissionSerializer(serializers.ModelSerializer):
    """A submission and its job (null until the job is created)."""

    service_type = serializers.CharField(source="service_type.code", read_only=True)
    priority = PriorityField(read_only=True)
    customer_phone = serializers.CharField(read_only=True)
    arrival_window = ArrivalWindowSerializer(read_only=True, allow_null=True)
    language = serializers.ChoiceField(choices=Organization.Language.choices, allow_blank=True, read_only=True)
    job = serializers.SerializerMethodField()

    class Meta:
        model = Submission
        fields = [
            "id", "status", "job", "customer_name", "customer_phone", "service_type", "priority", "address",
            "lat", "lng", "notes", "extra", "language", "preferred_technician", "arrival_window",
            "expected_minutes", "starts", "last_error", "created_at",
        ]  # fmt: skip
        read_only_fields = fields

    @extend_schema_field(JobReferenceSerializer(allow_null=True))
    def get_job(self, submission: Submission) -> Any:
        job = getattr(submission, "job", None)
        return JobReferenceSerializer(job, context=self.context).data if job else None


class TechnicianReferenceSerializer(serializers.Serializer):
    """A short reference to a technician."""

    id = serializers.IntegerField()
    name = serializers.CharField()
    phone = serializers.CharField()


class JobSerializer(serializers.ModelSerializer):
    """A job in lists. Send `version` with an action to detect concurrent changes."""

    service_type = serializers.CharField(source="service_type.code", read_only=True)
    priority = PriorityField(read_only=True)
    customer_phone = serializers.CharField(read_only=True)
    technician = TechnicianReferenceSerializer(read_only=True, allow_null=True)
    preferred_technician = TechnicianReferenceSerializer(read_only=True, allow_null=True)
    arrival_window = ArrivalWindowSerializer(read_only=True, allow_null=True)
    paused = serializers.SerializerMethodField()

    class Meta:
        model = Job
        fields = [
            "id", "submission", "status", "pending_reason", "waiting_for", "waiting_since", "next_action_at",
            "paused", "version", "service_type", "priority", "customer_name", "customer_phone", "address", "lat",
            "lng", "technician", "preferred_technician", "arrival_window", "expected_minutes", "round",
            "duplicate_of", "duplicate_state", "created_at",
            "assigned_at", "on_the_way_at", "eta_at", "started_at", "late_minutes", "late_reported_at", "ended_at",
        ]  # fmt: skip
        read_only_fields = fields

    def get_paused(self, job: Job) -> bool:
        return job.paused_at is not None


class CandidateSerializer(serializers.ModelSerializer):
    """A technician's rank for the job: the lowest score gets the first offer.

    `distance_m` is the straight line in meters; `travel_s` the drive by road in seconds, or null if unknown.
    """

    technician = TechnicianReferenceSerializer(read_only=True)

    class Meta:
        model = Candidate
        fields = ["rank", "technician", "verdict", "reason", "distance_m", "travel_s", "score"]
        read_only_fields = fields


class OfferSerializer(serializers.ModelSerializer):
    """One technician's chance at the job. Offers made at once, for an emergency, differ in `slot`."""

    technician = TechnicianReferenceSerializer(read_only=True)

    class Meta:
        model = Offer
        fields = [
            "id", "attempt", "round", "slot", "technician", "status", "outcome", "reason", "distance_m",
            "created_at", "ringing_since", "answered_at", "missed_at", "expires_at", "settled_at",
        ]  # fmt: skip
        read_only_fields = fields


class ActorSerializer(serializers.Serializer):
    """The actor of an entry: user, api_key, technician, customer, provider or system."""

    type = serializers.CharField(source="actor_type")
    id = serializers.IntegerField(source="actor_id", allow_null=True)
    label = serializers.CharField(source="actor_label")  # type: ignore[assignment]


class EntrySerializer(serializers.Serializer):
    """One entry of a job's history. `text` is the full sentence."""

    id = serializers.IntegerField()
    at = serializers.DateTimeField()
    kind = serializers.CharField()
    text = serializers.CharField()
    actor = ActorSerializer(source="*")
    data = serializers.JSONField()  # type: ignore[assignment]


class JobDetailSerializer(JobSerializer):
    """A job with its candidates, offers, history and currently allowed actions."""

    candidates = CandidateSerializer(many=True, read_only=True)
    offers = OfferSerializer(many=True, read_only=True)
    timeline = serializers.SerializerMethodField(
        help_text=f"The history, oldest first: its last {timeline.MAX_ENTRIES:,} entries."
    )
    actions = serializers.SerializerMethodField(help_text="Actions that are allowed now.")
    policy = serializers.JSONField(read_only=True, help_text="Parameters of the cascade, frozen when it started.")
    out_of_reach = serializers.DictField(
        child=serializers.IntegerField(),
        read_only=True,
        help_text="Technicians who are not candidates, by reason.",
    )

    class Meta(JobSerializer.Meta):
        fields = [
            *JobSerializer.Meta.fields, "position_source", "notes", "extra", "actions", "candidates",
            "out_of_reach", "offers", "policy", "timeline",
        ]  # fmt: skip
        read_only_fields = fields

    @extend_schema_field(EntrySerializer(many=True))
    def get_timeline(self, job: Job) -> Any:
        return EntrySerializer(timeline.load_timeline(job), many=True).data

    @extend_schema_field({"type": "array", "items": {"type": "string", "enum": _ACTIONS}})
    def get_actions(self, job: Job) -> list[str]:
        ringing = any(offer.is_ringing for offer in job.offers.all())
        return [str(action) for action in allowed_actions(job, ringing=ringing)]


class AssignedJobSerializer(JobDetailSerializer):
    """The assigned job, with what the dispatcher has to watch out for."""

    warnings = serializers.ListField(child=serializers.CharField(), read_only=True)

    class Meta(JobDetailSerializer.Meta):
        fields = [*JobDetailSerializer.Meta.fields, "warnings"]
        read_only_fields = fields


class JobTextSerializer(serializers.ModelSerializer):
    """A text between a technician and the dispatchers. `handled_at`: when an inbound text was answered."""

    technician = TechnicianReferenceSerializer(read_only=True)
    direction = serializers.ChoiceField(source="text.direction", choices=Text.Direction.choices, read_only=True)
    status = serializers.ChoiceField(source="text.status", choices=Text.Status.choices, read_only=True)
    body = serializers.CharField(source="text.body", read_only=True)

    class Meta:
        model = JobText
        fields = ["id", "technician", "direction", "body", "status", "created_at", "handled_at"]
        read_only_fields = fields


class ComposeSerializer(StrictSerializer):
    """A text to a technician: by default the one who has the job, is being called for it, or texted last."""

    body = serializers.CharField(max_length=threads.LONGEST)
    technician = serializers.IntegerField(min_value=1, max_value=2**63 - 1, required=False)


class NoteAuthorSerializer(serializers.Serializer):
    """Who wrote a note. `id` is null for an API key, and if the user was removed."""

    id = serializers.IntegerField(source="author_id", allow_null=True)
    name = serializers.CharField(source="author_name")


class JobNoteSerializer(serializers.ModelSerializer):
    """A note of a dispatcher on a job. `mentioned`: the ids of the members whom it mentions."""

    author = NoteAuthorSerializer(source="*", read_only=True)
    mentioned = serializers.SerializerMethodField()

    class Meta:
        model = JobNote
        fields = ["id", "author", "text", "mentioned", "written_at"]
        read_only_fields = fields

    def get_mentioned(self, note: JobNote) -> list[int]:
        return sorted({user for mention in note.mentions for user in mention["users"]})


class WriteNoteSerializer(StrictSerializer):
    """A note on a job. "@" and the name of a member mentions them."""

    text = serializers.CharField(max_length=MAX_NOTE_TEXT)


class HandledSerializer(serializers.Serializer):
    """How many unanswered texts were marked as needing no reply."""

    handled = serializers.IntegerField()


class DecisionSerializer(StrictSerializer):
    """The body of an action.

    With `version` or an If-Match header, the action fails with 409 if the job has changed since that version.
    """

    version = serializers.IntegerField(min_value=1, required=False)
    note = serializers.CharField(max_length=500, required=False, allow_blank=True, default="")


class AssignSerializer(DecisionSerializer):
    """The technician to assign. Set `confirm_unfit` to assign despite the warnings of an earlier 409."""

    technician = serializers.IntegerField(min_value=1, max_value=2**63 - 1)
    confirm_unfit = serializers.BooleanField(default=False)


class DispatchAgainSerializer(DecisionSerializer):
    """A corrected location, if the job's address was not found or is wrong."""

    address = serializers.CharField(max_length=300, required=False, allow_blank=True, default="")
    lat = Degrees(90, default=None)
    lng = Degrees(180, default=None)

    def validate(self, attrs: dict[str, Any]) -> dict[str, Any]:
        if (attrs["lat"] is None) != (attrs["lng"] is None):
            raise serializers.ValidationError(
                {"lat" if attrs["lat"] is None else "lng": "Coordinates need both lat and lng."}
            )
        return attrs


class CorrectSerializer(DispatchAgainSerializer):
    """What was wrong. Fields that are left out stay as they are; a null arrival window removes it."""

    customer_phone = PhoneField(
        required=False, default="", help_text="E.164, or a national number of the organization's country."
    )
    priority = PriorityField(required=False)
    customer_name = serializers.CharField(max_length=120, required=False)
    notes = serializers.CharField(max_length=4000, required=False, allow_blank=True)
    arrival_window = ArrivalWindowSerializer(required=False, allow_null=True)
    expected_minutes = serializers.IntegerField(min_value=5, max_value=1440, required=False, allow_null=True)


class ExtendSerializer(DecisionSerializer):
    """How many seconds to add."""

    seconds = serializers.IntegerField(min_value=1, max_value=3600)


class OnTheWaySerializer(DecisionSerializer):
    """In how many minutes the technician should arrive, if known."""

    eta_minutes = serializers.IntegerField(
        min_value=1, max_value=MAX_ETA_MINUTES, required=False, allow_null=True, default=None
    )


class ReportLateSerializer(DecisionSerializer):
    """By how many minutes the technician is late."""

    minutes = serializers.IntegerField(min_value=1, max_value=MAX_LATE_MINUTES)


class TechnicianToldSerializer(DecisionSerializer):
    """Which technician knows of the change now; without one, all who could not be notified."""

    technician = serializers.IntegerField(min_value=1, max_value=2**63 - 1, required=False)


class CancelSerializer(StrictSerializer):
    """Why the job is canceled."""

    version = serializers.IntegerField(min_value=1, required=False)
    reason = serializers.CharField(max_length=500)
