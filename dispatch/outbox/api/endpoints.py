"""The API of endpoints: what is told to whom, and how that is going."""

from __future__ import annotations

from typing import Any

from django.db.models import QuerySet
from drf_spectacular.utils import extend_schema, extend_schema_field
from rest_framework import mixins, serializers, status
from rest_framework.decorators import action
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.routers import SimpleRouter

from accounts.models import ApiKey
from accounts.owned_api import OrganizationViewSet, OwnedSerializer, OwnedSlugRelatedField
from accounts.permissions import MEMBER
from accounts.versions import Versioned
from dispatch.capacity.models import DispatchPool
from dispatch.core.strict import Strict
from dispatch.core.target_urls import check_target_url
from dispatch.outbox.endpoint_checks import (
    check_event_type,
    check_own_headers,
    check_permanent_code,
    longest_timeout_s,
)
from dispatch.outbox.models import Endpoint
from dispatch.outbox.rules.health import STATES
from dispatch.outbox.services import endpoints as services
from dispatch.outbox.services import targets

_READ, _MANAGE = ApiKey.Scope.READ, ApiKey.Scope.MANAGE
# What a person of any role may do at work, and a key only with "manage".
_WORK = (MEMBER, _MANAGE)
LONGEST_RETRY_S = 7 * 24 * 3600


class EndpointSerializer(OwnedSerializer):
    """A system that is told what happens. `headers` go in and only their names come out; the signing secret is in
    the answers to create and rotate_secret and nowhere else."""

    url = serializers.CharField(max_length=2000, validators=[check_target_url])
    event_types = serializers.ListField(
        child=serializers.CharField(max_length=80, validators=[check_event_type]), max_length=100, required=False
    )
    pool = OwnedSlugRelatedField("code", queryset=DispatchPool.objects.filter(kind="messages"), required=False)
    headers = serializers.DictField(
        child=serializers.CharField(max_length=2000, allow_blank=True, trim_whitespace=False),
        validators=[check_own_headers],
        write_only=True,
        required=False,
    )
    header_names = serializers.SerializerMethodField()
    timeout_s = serializers.FloatField(min_value=0.1, required=False)
    retry_schedule_s = serializers.ListField(
        child=serializers.IntegerField(min_value=0, max_value=LONGEST_RETRY_S), max_length=50, required=False
    )
    permanent_codes = serializers.ListField(
        child=serializers.IntegerField(validators=[check_permanent_code]), max_length=200, required=False
    )
    state = serializers.SerializerMethodField()

    class Meta:
        model = Endpoint
        fields = [
            "id", "name", "url", "event_types", "mode", "pool", "headers", "header_names", "timeout_s",
            "retry_schedule_s", "retry_jitter", "permanent_codes", "expire_after_s", "state", "is_paused",
            "paused_reason", "disabled_at", "disabled_reason", "previous_secret_until", "created_at",
        ]  # fmt: skip
        read_only_fields = ["is_paused", "paused_reason", "previous_secret_until"]

    @extend_schema_field(serializers.ListField(child=serializers.CharField()))
    def get_header_names(self, row: Endpoint) -> list[str]:
        return sorted(row.headers or {})

    @extend_schema_field(serializers.ChoiceField(choices=STATES))
    def get_state(self, row: Endpoint) -> str:
        return services.health_of(row).state

    def validate_timeout_s(self, value: float) -> float:
        longest = longest_timeout_s()
        if value > longest:
            raise serializers.ValidationError(f"At most {longest:g} seconds.")
        return value


class NewEndpointSerializer(EndpointSerializer):
    """The answer to a creation: the endpoint and its secret."""

    secret = serializers.CharField(read_only=True)

    class Meta(EndpointSerializer.Meta):
        fields = [*EndpointSerializer.Meta.fields, "secret"]


class RotationSerializer(Strict):
    """How long the secret before goes on signing beside the new one."""

    overlap_s = serializers.IntegerField(
        min_value=0, max_value=services.LONGEST_OVERLAP_S, default=services.OVERLAP_S
    )


class RotatedSerializer(serializers.Serializer):
    """The new secret, shown this once, and until when the one before signs too."""

    secret = serializers.CharField()
    previous_secret_until = serializers.DateTimeField(allow_null=True)


class ReasonSerializer(Strict):
    """Why, for whoever looks next."""

    reason = serializers.CharField(max_length=200, required=False, allow_blank=True, default="")


class TestSentSerializer(serializers.Serializer):
    """The test message; its attempts tell how it went."""

    message_id = serializers.IntegerField()


class HealthSerializer(serializers.Serializer):
    """How an endpoint is doing. Counts stop at 10,000."""

    state = serializers.ChoiceField(choices=STATES, source="health.state")
    words = serializers.CharField(source="health.words")
    since = serializers.DateTimeField(source="health.since", allow_null=True)
    failures = serializers.IntegerField(help_text="In a row.")
    last_error = serializers.CharField()
    circuit_open_until = serializers.DateTimeField(source="open_until", allow_null=True)
    pending = serializers.IntegerField()
    in_flight = serializers.IntegerField()
    errors = serializers.IntegerField()  # type: ignore[assignment]  # a figure, not the form's errors
    blocked_groups = serializers.IntegerField()
    oldest_due_at = serializers.DateTimeField(allow_null=True)


class EndpointViewSet(
    Versioned, OrganizationViewSet, mixins.ListModelMixin, mixins.RetrieveModelMixin, mixins.CreateModelMixin
):
    """Endpoints: who is told of which events, at which address, how."""

    subject, notes_itself = "endpoint", True
    queryset: QuerySet = Endpoint.objects.select_related("pool", "target").order_by("-id")
    serializer_class = EndpointSerializer
    filterset_fields = ["name", "is_paused", "mode"]
    http_method_names = ["get", "post", "patch", "delete"]
    required = {
        "list": _READ,
        "retrieve": _READ,
        "health": _READ,
        "create": _MANAGE,
        "partial_update": _MANAGE,
        "destroy": _MANAGE,
        "rotate_secret": _MANAGE,
        "disable": _MANAGE,
        "enable": _MANAGE,
        "pause": _WORK,
        "resume": _WORK,
        "test": _WORK,
    }

    @extend_schema(request=EndpointSerializer, responses={201: NewEndpointSerializer})
    def create(self, request: Request, *args: Any, **kwargs: Any) -> Response:
        given = self.get_serializer(data=request.data)
        given.is_valid(raise_exception=True)
        made, secret = services.add(request.organization, given.validated_data, actor=request.actor)
        answer = {**self.get_serializer(made).data, "secret": secret}
        return Response(answer, status=status.HTTP_201_CREATED, headers={"Cache-Control": "no-store"})

    @extend_schema(request=EndpointSerializer(partial=True), responses=EndpointSerializer)
    def partial_update(self, request: Request, **kwargs: Any) -> Response:
        endpoint = self.get_object()
        given = self.get_serializer(endpoint, data=request.data, partial=True)
        given.is_valid(raise_exception=True)
        services.change(endpoint.pk, given.validated_data, actor=request.actor)
        return self._as_it_is(endpoint)

    @extend_schema(responses={204: None})
    def destroy(self, request: Request, **kwargs: Any) -> Response:
        """Deletes an endpoint without messages; one that has some is disabled instead (409)."""
        services.delete(self.get_object().pk, actor=request.actor)
        return Response(status=status.HTTP_204_NO_CONTENT)

    @extend_schema(request=RotationSerializer, responses=RotatedSerializer)
    @action(detail=True, methods=["post"])
    def rotate_secret(self, request: Request, **kwargs: Any) -> Response:
        """Replaces the signing secret. Both sign during the overlap; 0 ends the old one at once."""
        given = RotationSerializer(data=request.data)
        given.is_valid(raise_exception=True)
        _, secret, until = services.rotate_secret(
            self.get_object().pk, actor=request.actor, overlap_s=given.validated_data["overlap_s"]
        )
        answer = RotatedSerializer({"secret": secret, "previous_secret_until": until}).data
        return Response(answer, headers={"Cache-Control": "no-store"})

    @extend_schema(request=ReasonSerializer, responses=EndpointSerializer)
    @action(detail=True, methods=["post"])
    def pause(self, request: Request, **kwargs: Any) -> Response:
        """Calls nobody there until it is resumed; messages are kept."""
        endpoint = self.get_object()
        targets.pause(endpoint.pk, self._reason(request), actor=request.actor)
        return self._as_it_is(endpoint)

    @extend_schema(request=None, responses=EndpointSerializer)
    @action(detail=True, methods=["post"])
    def resume(self, request: Request, **kwargs: Any) -> Response:
        """What waited goes on."""
        endpoint = self.get_object()
        targets.resume(endpoint.pk, actor=request.actor)
        return self._as_it_is(endpoint)

    @extend_schema(request=ReasonSerializer, responses=EndpointSerializer)
    @action(detail=True, methods=["post"])
    def disable(self, request: Request, **kwargs: Any) -> Response:
        """Switches it off, as happens to one that fails for days; messages are kept."""
        endpoint = self.get_object()
        targets.disable(endpoint.pk, self._reason(request) or "By hand.", actor=request.actor)
        return self._as_it_is(endpoint)

    @extend_schema(request=None, responses=EndpointSerializer)
    @action(detail=True, methods=["post"])
    def enable(self, request: Request, **kwargs: Any) -> Response:
        """Switches it on again, its circuit closed; what waited goes on."""
        endpoint = self.get_object()
        targets.enable(endpoint.pk, actor=request.actor)
        return self._as_it_is(endpoint)

    @extend_schema(request=None, responses={202: TestSentSerializer})
    @action(detail=True, methods=["post"])
    def test(self, request: Request, **kwargs: Any) -> Response:
        """Sends a message of type `endpoint.test`, outside of any order."""
        message_id = services.send_test(self.get_object(), actor=request.actor)
        return Response({"message_id": message_id}, status=status.HTTP_202_ACCEPTED)

    @extend_schema(responses=HealthSerializer)
    @action(detail=True, methods=["get"])
    def health(self, request: Request, **kwargs: Any) -> Response:
        """Whether it takes what is sent, and what waits there."""
        return Response(HealthSerializer(services.report(self.get_object())).data)

    def _as_it_is(self, endpoint: Endpoint) -> Response:
        return Response(self.get_serializer(self.get_queryset().get(pk=endpoint.pk)).data)

    def _reason(self, request: Request) -> str:
        given = ReasonSerializer(data=request.data)
        given.is_valid(raise_exception=True)
        return str(given.validated_data["reason"])


router = SimpleRouter()
router.register("endpoints", EndpointViewSet, basename="endpoint")
urlpatterns = router.urls
