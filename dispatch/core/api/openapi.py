"""Generate the OpenAPI schema, with the problems that each operation can return."""

from __future__ import annotations

from typing import Any

from drf_spectacular.extensions import OpenApiSerializerFieldExtension
from drf_spectacular.openapi import AutoSchema
from drf_spectacular.utils import OpenApiParameter
from rest_framework import serializers
from rest_framework.permissions import SAFE_METHODS, AllowAny

from dispatch.core.api import idempotency, problems

_ALWAYS = ("400", "401", "403", "405", "406", "429", "500", "503")
_WHEN_CHANGING = ("409", "413", "415", "422")

IDEMPOTENCY_KEY = OpenApiParameter(
    idempotency.HEADER,
    str,
    OpenApiParameter.HEADER,
    description=(
        "Retries with the same key and body return the original response for 7 days; a different body is rejected."
    ),
)
IF_MATCH = OpenApiParameter(
    "If-Match",
    str,
    OpenApiParameter.HEADER,
    description="The ETag of your last read. If the row has changed since, nothing is saved: 409.",
)


class LocalTime(OpenApiSerializerFieldExtension):
    """Describe a local time of day, without the offset that OpenAPI's format "time" requires."""

    target_class = "rest_framework.fields.TimeField"

    def map_serializer_field(self, auto_schema: Any, direction: str) -> dict[str, Any]:
        return {"type": "string", "pattern": r"^\d{2}:\d{2}(:\d{2}(\.\d{1,6})?)?$", "example": "08:30"}


class ProblemErrorSerializer(serializers.Serializer):
    """One validation error."""

    field = serializers.CharField(allow_null=True, help_text="Dotted path into the body, such as `place.lat`.")
    code = serializers.CharField(help_text="Machine-readable code.")
    detail = serializers.CharField(help_text="Human-readable explanation.")


class ConflictActorSerializer(serializers.Serializer):
    """Who made the conflicting change."""

    type = serializers.CharField()
    id = serializers.IntegerField(allow_null=True)
    label = serializers.CharField()  # type: ignore[assignment]


class ConflictSerializer(serializers.Serializer):
    """The conflicting change of a 409: who made it, what it was, and when."""

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
    more_errors = serializers.IntegerField(required=False, help_text="Number of errors left out of `errors`.")
    conflict = ConflictSerializer(required=False)


class ProblemSchema(AutoSchema):
    """Add the problem responses, and If-Match where a view sets `accepts_if_match`, to AutoSchema."""

    def get_override_parameters(self) -> list[Any]:
        accepts = getattr(self.view, "accepts_if_match", False) and self.method in ("PUT", "PATCH", "DELETE")
        return [*super().get_override_parameters(), *([IF_MATCH] if accepts else [])]

    def _get_response_bodies(self, *args: Any, **kwargs: Any) -> dict[str, Any]:
        responses = super()._get_response_bodies(*args, **kwargs)
        codes = list(_ALWAYS)
        if any(type(permission) is AllowAny for permission in self.view.get_permissions()):
            codes = ["405", "406", "500", "503"]
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
