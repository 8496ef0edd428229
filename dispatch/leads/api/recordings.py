"""Serve the API of recordings."""

from __future__ import annotations

from typing import Any

from django.core.exceptions import ValidationError
from django.http import HttpResponse
from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import OpenApiResponse, extend_schema, extend_schema_field
from rest_framework import mixins, serializers, status
from rest_framework.decorators import action
from rest_framework.exceptions import NotFound
from rest_framework.negotiation import BaseContentNegotiation
from rest_framework.parsers import MultiPartParser
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.routers import SimpleRouter

from accounts.api.base import OrganizationViewSet
from accounts.models import ApiKey
from dispatch.core.api.parsers import PlainJSONParser
from dispatch.core.api.serializers import StrictSerializer
from dispatch.leads.models import Recording, RecordingFile
from dispatch.leads.rules import audio
from dispatch.leads.services import recordings

_READ, _MANAGE = ApiKey.Scope.READ, ApiKey.Scope.MANAGE
_EITHER = "Send either a file or a URL."


class _AnyAccept(BaseContentNegotiation):
    """Accept every Accept header: a file is returned as what it is, and a problem as JSON."""

    def select_parser(self, request: Request, parsers: Any) -> Any:
        return parsers[0]

    def select_renderer(
        self, request: Request, renderers: Any, format_suffix: str | None = None
    ) -> tuple[Any, str]:
        return renderers[0], renderers[0].media_type


class RecordingSerializer(StrictSerializer, serializers.ModelSerializer):
    """A recording for the calls of a campaign: a `file` kept here, or the `url` of one elsewhere.

    It belongs to the `campaign` that first used it. A recording never changes, and can be deleted while
    `is_used` is false; unused ones are deleted after a week.
    """

    is_used = serializers.SerializerMethodField()

    class Meta:
        model = Recording
        fields = [
            "id", "name", "url", "content_type", "size_bytes", "duration_s", "campaign", "is_used", "created_at",
        ]  # fmt: skip
        read_only_fields = fields

    @extend_schema_field(bool)
    def get_is_used(self, recording: Recording) -> bool:
        return recording.unused_at is None


class NewRecordingSerializer(StrictSerializer):
    """A `file` (WAV or MP3, at most 5 MB, as multipart/form-data), or the https `url` of a recording."""

    file = serializers.FileField(required=False, write_only=True)
    url = serializers.CharField(max_length=2000, required=False)
    name = serializers.CharField(max_length=120, required=False)

    def validate(self, attrs: dict[str, Any]) -> dict[str, Any]:
        attrs = super().validate(attrs)
        if ("file" in attrs) == ("url" in attrs):
            raise serializers.ValidationError({"file": _EITHER})
        return attrs

    def create(self, validated_data: dict[str, Any]) -> Recording:
        organization, name = validated_data["organization"], validated_data.get("name", "")
        field = "file" if "file" in validated_data else "url"
        try:
            if field == "file":
                file = validated_data["file"]
                content = file.read(audio.MAX_BYTES + 1)
                made = recordings.from_file(organization.pk, content, name or file.name)
            else:
                made = recordings.from_url(organization.pk, validated_data["url"], name)
            return recordings.save_recording(made)
        except ValidationError as error:
            raise serializers.ValidationError({field: error.messages}) from None


class RecordingViewSet(
    OrganizationViewSet, mixins.ListModelMixin, mixins.RetrieveModelMixin, mixins.CreateModelMixin
):
    """Recordings that campaigns play, as their `recording` or `voicemail_recording`, or that of a branch."""

    queryset = Recording.objects.order_by("-id")
    serializer_class = RecordingSerializer
    http_method_names = ["get", "post", "delete"]
    filterset_fields = ["campaign"]
    required = {
        "list": _READ, "retrieve": _READ, "audio": _READ, "create": _MANAGE, "destroy": _MANAGE,
    }  # fmt: skip

    def get_parsers(self) -> list[Any]:
        return [PlainJSONParser(), MultiPartParser()]

    @extend_schema(
        request={"multipart/form-data": NewRecordingSerializer, "application/json": NewRecordingSerializer},
        responses={201: RecordingSerializer},
    )
    def create(self, request: Request, *args: Any, **kwargs: Any) -> Response:
        """Add a recording. Its content decides whether it is a WAV or MP3 file, not its name."""
        new = NewRecordingSerializer(data=request.data, context=self.get_serializer_context())
        new.is_valid(raise_exception=True)
        recording = new.save(organization=request.organization)
        return Response(self.get_serializer(recording).data, status=status.HTTP_201_CREATED)

    @extend_schema(responses={204: None})
    def destroy(self, request: Request, *args: Any, **kwargs: Any) -> Response:
        """Delete a recording. A 409 if a campaign plays it."""
        try:
            recordings.delete_recording(self.get_object().pk)
        except Recording.DoesNotExist:  # deleted by another request
            raise NotFound from None
        return Response(status=status.HTTP_204_NO_CONTENT)

    @extend_schema(
        responses={
            (200, "audio/wav"): OpenApiResponse(OpenApiTypes.BINARY),
            (200, "audio/mpeg"): OpenApiResponse(OpenApiTypes.BINARY),
        }
    )
    @action(detail=True, methods=["get"], content_negotiation_class=_AnyAccept)
    def audio(self, request: Request, pk: str) -> HttpResponse:
        """Download the file. A 404 for a recording with a URL."""
        recording = self.get_object()
        file = RecordingFile.objects.of(request.organization).filter(recording=recording).first()
        if file is None:
            raise NotFound
        return HttpResponse(bytes(file.content), content_type=recording.content_type)


router = SimpleRouter()
router.register("recordings", RecordingViewSet, basename="recording")
urlpatterns = router.urls
