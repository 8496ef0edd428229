"""The shapes of technicians in the API."""

from __future__ import annotations

import math
from typing import Any

from phonenumber_field.serializerfields import PhoneNumberField
from rest_framework import serializers

from accounts.owned_api import OwnedSerializer, OwnedSlugRelatedField
from dispatch.core.strict import Strict
from dispatch.technicians import editing
from dispatch.technicians.models import Shift, Skill, Technician


class SkillSerializer(OwnedSerializer):
    """A skill; `code` is how technicians and service types name it."""

    class Meta:
        model = Skill
        fields = ["id", "code", "name"]


class ShiftSerializer(Strict, serializers.ModelSerializer):
    """One shift, in the technician's time zone. Weekday 0 is Monday; an end at or before the start is next day."""

    class Meta:
        model = Shift
        fields = ["weekday", "starts", "ends"]


class PhoneField(PhoneNumberField):
    """A phone number, read with the organization's default region when it has no +."""

    def to_internal_value(self, data: Any) -> Any:
        request = self.context.get("request")
        if request is not None:
            self.region = request.organization.default_region
        return super().to_internal_value(data)


class Degrees(serializers.FloatField):
    """Degrees between -limit and limit; what is no finite number is refused."""

    def __init__(self, limit: int, **options: Any) -> None:
        super().__init__(min_value=-limit, max_value=limit, **options)

    def to_internal_value(self, data: Any) -> float:
        value = super().to_internal_value(data)
        if isinstance(data, bool) or not math.isfinite(value):
            self.fail("invalid")
        return value


class TechnicianSerializer(OwnedSerializer):
    """A technician. Coordinates in degrees (WGS 84), `radius_m` in metres; skills by code. On writing, `shifts`
    replaces all shifts, an empty list means "whenever on duty"."""

    phone = PhoneField()
    lat = Degrees(90)
    lng = Degrees(180)
    skills = OwnedSlugRelatedField("code", many=True, queryset=Skill.objects.all(), required=False)
    shifts = ShiftSerializer(many=True, required=False)

    class Meta:
        model = Technician
        fields = [
            "id", "name", "phone", "lat", "lng", "position_at", "time_zone", "skills", "shifts", "radius_m",
            "max_open_jobs", "on_duty", "is_active", "open_jobs", "live_offer_id", "last_offered_at",
            "misses_in_a_row", "auto_paused_at",
        ]  # fmt: skip
        read_only_fields = [
            "position_at", "open_jobs", "live_offer_id", "last_offered_at", "misses_in_a_row", "auto_paused_at",
        ]  # fmt: skip

    def create(self, validated_data: dict[str, Any]) -> Technician:
        organization = validated_data.pop("organization")
        skills, shifts = self._apart(validated_data)
        return editing.create_technician(organization, validated_data, skills=skills or (), shifts=shifts or ())

    def update(self, instance: Technician, validated_data: dict[str, Any]) -> Technician:
        skills, shifts = self._apart(validated_data)
        actor = self.context["request"].actor
        return editing.change_technician(instance.pk, validated_data, skills=skills, shifts=shifts, actor=actor)

    def validate(self, attrs: dict[str, Any]) -> dict[str, Any]:
        shifts = attrs.pop("shifts", None)
        attrs = super().validate(attrs)
        return attrs if shifts is None else {**attrs, "shifts": shifts}

    @staticmethod
    def _apart(fields: dict[str, Any]) -> tuple[list[Skill] | None, list[editing.ShiftTimes] | None]:
        shifts = fields.pop("shifts", None)
        times = None if shifts is None else [(s["weekday"], s["starts"], s["ends"]) for s in shifts]
        return fields.pop("skills", None), times


class PositionSerializer(Strict):
    """Where somebody is: degrees (WGS 84)."""

    lat = Degrees(90)
    lng = Degrees(180)


class DutySerializer(Strict):
    """On or off duty."""

    on_duty = serializers.BooleanField()
