"""The OpenAPI schema: every operation names the problems that it can answer with."""

from __future__ import annotations

from typing import Any

from drf_spectacular.extensions import OpenApiSerializerFieldExtension
from drf_spectacular.openapi import AutoSchema
from rest_framework import serializers
from rest_framework.permissions import SAFE_METHODS, AllowAny

from dispatch.core import problems

_ALWAYS = ("400", "401", "403", "405", "406", "429", "500")
_WHEN_CHANGING = ("409", "413", "415", "422")


class LocalTime(OpenApiSerializerFieldExtension):
    """A time of day on the wall, without the offset that OpenAPI's own format "time" would want."""

    target_class = "rest_framework.fields.TimeField"

    def map_serializer_field(self, auto_schema: Any, direction: str) -> dict[str, Any]:
        return {"type": "string", "pattern": r"^\d{2}:\d{2}(:\d{2}(\.\d{1,6})?)?$", "example": "08:30"}


class ProblemErrorSerializer(serializers.Serializer):
    """One thing that is wrong."""

    field = serializers.CharField(allow_null=True, help_text="Dotted path into the body, as `place.lat`.")
    code = serializers.CharField(help_text="For programs.")
    detail = serializers.CharField(help_text="For people.")


class ConflictActorSerializer(serializers.Serializer):
    """Who did it."""

    type = serializers.CharField()
    id = serializers.IntegerField(allow_null=True)
    label = serializers.CharField()  # type: ignore[assignment]


class ConflictSerializer(serializers.Serializer):
    """Who did what when, on 409."""

    by = ConflictActorSerializer(allow_null=True)
    did = serializers.CharField(allow_null=True)
    at = serializers.DateTimeField(allow_null=True)


class ProblemSerializer(serializers.Serializer):
    """A problem (RFC 9457)."""

    type = serializers.CharField(help_text="`urn:dispatch:problem:<code>`")
    title = serializers.CharField()
    status = serializers.IntegerField()
    detail = serializers.CharField()
    errors = ProblemErrorSerializer(many=True)  # type: ignore[assignment]
    conflict = ConflictSerializer(required=False)


class ProblemSchema(AutoSchema):
    """As drf-spectacular's, with the problems."""

    def _get_response_bodies(self, *args: Any, **kwargs: Any) -> dict[str, Any]:
        responses = super()._get_response_bodies(*args, **kwargs)
        codes = list(_ALWAYS)
        if any(type(permission) is AllowAny for permission in self.view.get_permissions()):
            codes = ["405", "406", "500"]
        if "{" in self.path:
            codes.append("404")
        if self.method not in SAFE_METHODS:
            codes += _WHEN_CHANGING
        for code in codes:
            if code not in responses:
                responses[code] = self._get_response_for_code(
                    ProblemSerializer, code, media_types=[problems.CONTENT_TYPE]
                )
        return dict(sorted(responses.items()))
