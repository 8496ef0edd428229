"""Serve the API of the event catalog: an organization's event types, those of Dispatch, and publishing."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from django.db.models import QuerySet
from drf_spectacular.utils import extend_schema
from rest_framework import mixins, serializers, status
from rest_framework.decorators import action
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.routers import SimpleRouter

from accounts.api.base import OrganizationViewSet, OwnedSerializer, respond_idempotently
from accounts.api.etags import VersionedMixin
from accounts.models import ApiKey
from dispatch.core.api.openapi import IDEMPOTENCY_KEY
from dispatch.core.api.serializers import StrictSerializer
from dispatch.outbox import catalog
from dispatch.outbox.api.messages import check_payload_size
from dispatch.outbox.models import MAX_GROUP_LENGTH, EventType, EventTypeVersion
from dispatch.outbox.services import catalog as services

_READ, _MANAGE, _SEND = ApiKey.Scope.READ, ApiKey.Scope.MANAGE, ApiKey.Scope.MESSAGES


def payload_errors(problems: dict[str, str]) -> dict[str, list[str]]:
    """Return the problems of a payload by the fields of the request."""
    return {f"payload.{path}" if path else "payload": [text] for path, text in problems.items()}


class EventTypeSerializer(OwnedSerializer):
    """A type of messages that the organization publishes, with the current version of its JSON Schema."""

    name = serializers.CharField(max_length=80, validators=[services.check_name])
    schema = serializers.JSONField(
        required=False, allow_null=True,
        help_text="JSON Schema, draft 2020-12. Another schema makes a new version.",
    )  # fmt: skip
    example = serializers.JSONField(required=False, allow_null=True)

    class Meta:
        model = EventType
        fields = [
            "id", "name", "description", "is_enforced", "schema", "example", "version", "archived_at",
            "created_at",
        ]  # fmt: skip

    def validate(self, attrs: dict[str, Any]) -> dict[str, Any]:
        attrs = super().validate(attrs)
        row: Any = self.instance
        if row and attrs.get("name", row.name) != row.name:
            raise serializers.ValidationError({"name": "The name can't be changed. Add another type."})
        before = services.current_content(row) if row else (None, None)
        services.check_content(attrs.get("schema", before[0]), attrs.get("example", before[1]))
        return attrs

    def to_representation(self, instance: EventType) -> dict[str, Any]:
        schema, example = services.current_content(instance)
        return {**super().to_representation(instance), "schema": schema, "example": example}


class EventTypeVersionSerializer(serializers.ModelSerializer):
    """One version of an event type."""

    class Meta:
        model = EventTypeVersion
        fields = ["number", "schema", "example", "created_at"]


class CatalogEntrySerializer(serializers.Serializer):
    """A type that endpoints can subscribe to, of Dispatch or of the organization."""

    name = serializers.CharField()
    description = serializers.CharField()
    is_built_in = serializers.BooleanField()
    version = serializers.IntegerField()
    is_enforced = serializers.BooleanField()
    schema = serializers.JSONField(allow_null=True)
    example = serializers.JSONField(allow_null=True)


class PayloadSerializer(StrictSerializer):
    """A payload to validate."""

    payload = serializers.JSONField(validators=[check_payload_size])


class CheckedSerializer(serializers.Serializer):
    """Whether the payload matches the current schema, and the errors by field."""

    matches = serializers.BooleanField()
    problems = serializers.DictField(child=serializers.CharField())


class PublishSerializer(StrictSerializer):
    """A message for every endpoint that subscribes to its type."""

    type = serializers.CharField(max_length=80)
    payload = serializers.JSONField(validators=[check_payload_size])
    group = serializers.CharField(
        max_length=MAX_GROUP_LENGTH, required=False, allow_null=True, allow_blank=True,
        help_text="Messages of one group are delivered to each endpoint one after another.",
    )  # fmt: skip

    def validate(self, attrs: dict[str, Any]) -> dict[str, Any]:
        organization_id = self.context["request"].organization.pk
        if not EventType.objects.of(organization_id).filter(name=attrs["type"]).exists():
            raise serializers.ValidationError({"type": "Not an event type of your catalog."})
        problems = services.PayloadValidator(organization_id).problems(attrs["type"], attrs["payload"])
        if problems:
            raise serializers.ValidationError(payload_errors(problems))
        return attrs


class PublishedMessageSerializer(serializers.Serializer):
    """The message to one endpoint."""

    id = serializers.IntegerField()
    endpoint = serializers.CharField()


class PublishedSerializer(serializers.Serializer):
    """The messages that were created, one per subscribed endpoint."""

    messages = PublishedMessageSerializer(many=True)


class EventTypeViewSet(
    VersionedMixin, OrganizationViewSet, mixins.ListModelMixin, mixins.RetrieveModelMixin, mixins.CreateModelMixin
):
    """The event catalog: types of messages with their JSON Schemas."""

    subject, notes_itself = "event_type", True
    queryset: QuerySet = EventType.objects.order_by("name")
    serializer_class = EventTypeSerializer
    filterset_fields = ["name"]
    http_method_names = ["get", "post", "patch"]
    required = {
        "list": _READ, "retrieve": _READ, "versions": _READ, "all_types": _READ, "check_payload": _READ,
        "create": _MANAGE, "partial_update": _MANAGE, "archive": _MANAGE, "restore": _MANAGE, "publish": _SEND,
    }  # fmt: skip

    def create(self, request: Request, *args: Any, **kwargs: Any) -> Response:
        given = self.get_serializer(data=request.data)
        given.is_valid(raise_exception=True)
        row = services.create_type(request.organization, given.validated_data, actor=request.actor)
        return Response(self.get_serializer(row).data, status=status.HTTP_201_CREATED)

    @extend_schema(request=EventTypeSerializer(partial=True), responses=EventTypeSerializer)
    def partial_update(self, request: Request, **kwargs: Any) -> Response:
        row = self.get_object()
        given = self.get_serializer(row, data=request.data, partial=True)
        given.is_valid(raise_exception=True)
        return self._current(services.change_type(row.pk, given.validated_data, actor=request.actor))

    @extend_schema(request=None, responses=EventTypeSerializer)
    @action(detail=True, methods=["post"])
    def archive(self, request: Request, **kwargs: Any) -> Response:
        """Hide the type from the catalog. Endpoints keep their subscriptions, and messages are still accepted."""
        row = self.get_object()
        services.archive_type(row.pk, actor=request.actor)
        return self._current(row)

    @extend_schema(request=None, responses=EventTypeSerializer)
    @action(detail=True, methods=["post"])
    def restore(self, request: Request, **kwargs: Any) -> Response:
        """Show an archived type in the catalog again."""
        row = self.get_object()
        services.restore_type(row.pk, actor=request.actor)
        return self._current(row)

    @extend_schema(responses=EventTypeVersionSerializer(many=True))
    @action(detail=True, methods=["get"], pagination_class=None, filterset_fields=None)
    def versions(self, request: Request, **kwargs: Any) -> Response:
        """Return all versions of the type, newest first; at most 100."""
        return Response(EventTypeVersionSerializer(self.get_object().versions.all(), many=True).data)

    @extend_schema(request=PayloadSerializer, responses=CheckedSerializer)
    @action(detail=True, methods=["post"], url_path="check")
    def check_payload(self, request: Request, **kwargs: Any) -> Response:
        """Validate a payload against the type's current schema. Sends nothing."""
        row = self.get_object()
        given = PayloadSerializer(data=request.data)
        given.is_valid(raise_exception=True)
        problems = services.check_payload(row, given.validated_data["payload"])
        return Response({"matches": not problems, "problems": problems})

    @extend_schema(responses=CatalogEntrySerializer(many=True))
    @action(detail=False, methods=["get"], url_path="catalog", pagination_class=None, filterset_fields=None)
    def all_types(self, request: Request, **kwargs: Any) -> Response:
        """Return all types that endpoints can subscribe to: the organization's, then those of Dispatch."""
        found = catalog.catalog_of(request.organization.pk)
        return Response(CatalogEntrySerializer([asdict(entry) for entry in found], many=True).data)

    @extend_schema(request=PublishSerializer, responses={202: PublishedSerializer}, parameters=[IDEMPOTENCY_KEY])
    @action(detail=False, methods=["post"])
    def publish(self, request: Request, **kwargs: Any) -> Response:
        """Send a message to every endpoint that subscribes to its type and whose condition holds for the payload.

        Disabled endpoints get none. A request repeated with the same Idempotency-Key sends nothing again.
        """
        given = PublishSerializer(data=request.data, context=self.get_serializer_context())

        def make() -> tuple[int, dict]:
            given.is_valid(raise_exception=True)
            asked = given.validated_data
            sent = services.publish(
                request.organization.pk, asked["type"], asked["payload"], group=asked.get("group"),
                actor=request.actor,
            )  # fmt: skip
            messages = [{"id": accepted.id, "endpoint": endpoint.name} for endpoint, accepted in sent]
            return 202, {"messages": messages}

        return respond_idempotently(request, "publish", make)

    def _current(self, row: EventType) -> Response:
        return Response(self.get_serializer(self.get_queryset().get(pk=row.pk)).data)


router = SimpleRouter()
router.register("event-types", EventTypeViewSet, basename="event-type")
urlpatterns = router.urls
