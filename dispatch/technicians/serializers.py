"""API representations of technicians."""

from __future__ import annotations

import math
from typing import Any

from django.core.exceptions import ValidationError as ModelValidationError
from django.db import transaction
from phonenumber_field.phonenumber import PhoneNumber
from phonenumber_field.serializerfields import PhoneNumberField
from rest_framework import serializers

from accounts.api.base import OwnedSerializer, OwnedSlugRelatedField
from accounts.models import validate_own_voice
from dispatch.core.api.serializers import StrictSerializer
from dispatch.core.phone_numbers import read_phone
from dispatch.technicians import services
from dispatch.technicians.models import Shift, Skill, Technician
from dispatch.technicians.rules import MAX_PIN_LENGTH, pin_problem


class SkillSerializer(OwnedSerializer):
    """A skill. Technicians and service types refer to it by `code`."""

    class Meta:
        model = Skill
        fields = ["id", "code", "name"]


class ShiftSerializer(StrictSerializer, serializers.ModelSerializer):
    """A shift in the technician's time zone.

    Weekday 0 is Monday. An end at or before the start is on the next day.
    """

    class Meta:
        model = Shift
        fields = ["weekday", "starts", "ends"]


class PhoneField(PhoneNumberField):
    """A phone number. Without a country code, it belongs to the organization's default country."""

    def to_internal_value(self, data: Any) -> Any:
        request = self.context.get("request")
        region = self.region if request is None else request.organization.default_region
        if not isinstance(data, PhoneNumber):
            text = super(PhoneNumberField, self).to_internal_value(data)
            data = read_phone(text, region) if text else text
        return super().to_internal_value(data)

    def run_validators(self, value: Any) -> None:
        """Do nothing: a valid number has no other rules, and each use of it as text validates it again."""


class Degrees(serializers.FloatField):
    """Degrees between -limit and limit. Rejects anything but a finite number."""

    def __init__(self, limit: int, **options: Any) -> None:
        super().__init__(min_value=-limit, max_value=limit, **options)

    def to_internal_value(self, data: Any) -> float:
        value = super().to_internal_value(data)
        if isinstance(data, bool) or not math.isfinite(value):
            self.fail("invalid")
        return value


def validate_voice(serializer: OwnedSerializer, attrs: dict[str, Any]) -> None:
    """Check that the voice of a technician or campaign speaks its language. Raises ValidationError {voice}."""
    language, voice = (attrs.get(name, getattr(serializer.instance, name, "")) for name in ("language", "voice"))
    try:
        validate_own_voice(serializer.context["request"].organization, language, voice)
    except ModelValidationError as error:
        raise serializers.ValidationError(error.message_dict) from None


class TechnicianSerializer(OwnedSerializer):
    """A technician.

    Coordinates are in degrees (WGS 84), `radius_m` is in meters, skills are named by code. Writing `shifts`
    replaces all shifts; an empty list means "whenever on duty".
    """

    phone = PhoneField()
    lat = Degrees(90)
    lng = Degrees(180)
    skills = OwnedSlugRelatedField("code", many=True, queryset=Skill.objects.all(), required=False)
    shifts = ShiftSerializer(many=True, required=False)
    when_deactivated = serializers.ChoiceField(
        [services.GIVE_BACK, services.KEEP],
        write_only=True,
        required=False,
        help_text="What happens to open jobs if `is_active` is set to false. Without it, 409 `open_jobs`.",
    )
    pin = serializers.CharField(
        write_only=True,
        required=False,
        allow_blank=True,
        max_length=MAX_PIN_LENGTH,
        help_text="4 to 8 digits that identify the technician when they call. Empty removes it. Never returned.",
    )
    has_pin = serializers.SerializerMethodField(help_text="Whether a PIN is set.")

    class Meta:
        model = Technician
        fields = [
            "id", "name", "phone", "lat", "lng", "position_at", "time_zone", "language", "voice", "skills",
            "shifts", "radius_m", "max_open_jobs", "on_duty", "is_active", "open_jobs", "live_offer_id",
            "last_offered_at", "misses_in_a_row", "auto_paused_at", "when_deactivated", "pin", "has_pin",
        ]  # fmt: skip
        read_only_fields = [
            "position_at", "open_jobs", "live_offer_id", "last_offered_at", "misses_in_a_row", "auto_paused_at",
        ]  # fmt: skip

    def create(self, validated_data: dict[str, Any]) -> Technician:
        organization = validated_data.pop("organization")
        validated_data.pop("when_deactivated", None)
        skills, shifts = self._apart(validated_data)
        pin = validated_data.pop("pin", "")
        with transaction.atomic():
            technician = services.create_technician(
                organization, validated_data, skills=skills or (), shifts=shifts or ()
            )
            if pin:
                services.set_pin(technician.pk, pin, actor=self.context["request"].actor)
        technician.refresh_from_db()
        return technician

    def update(self, instance: Technician, validated_data: dict[str, Any]) -> Technician:
        skills, shifts = self._apart(validated_data)
        actor = self.context["request"].actor
        open_jobs = validated_data.pop("when_deactivated", "")
        pin = validated_data.pop("pin", None)
        technician = services.change_technician(
            instance.pk, validated_data, skills=skills, shifts=shifts, open_jobs=open_jobs, actor=actor
        )
        if pin is not None:
            services.set_pin(instance.pk, pin, actor=actor)
            technician.refresh_from_db()
        return technician

    def get_has_pin(self, technician: Technician) -> bool:
        return bool(technician.pin_hash)

    def validate_pin(self, pin: str) -> str:
        if pin and (problem := pin_problem(pin)):
            raise serializers.ValidationError(problem)
        return pin

    def validate(self, attrs: dict[str, Any]) -> dict[str, Any]:
        shifts = attrs.pop("shifts", None)
        attrs = super().validate(attrs)
        validate_voice(self, attrs)
        return attrs if shifts is None else {**attrs, "shifts": shifts}

    @staticmethod
    def _apart(fields: dict[str, Any]) -> tuple[list[Skill] | None, list[services.ShiftTimes] | None]:
        shifts = fields.pop("shifts", None)
        times = None if shifts is None else [(s["weekday"], s["starts"], s["ends"]) for s in shifts]
        return fields.pop("skills", None), times


class PositionSerializer(StrictSerializer):
    """A position in degrees (WGS 84)."""

    lat = Degrees(90)
    lng = Degrees(180)


class DutySerializer(StrictSerializer):
    """On duty or off duty."""

    on_duty = serializers.BooleanField()
