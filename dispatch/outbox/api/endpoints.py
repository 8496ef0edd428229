"""Serve the API of endpoints: their settings and their health."""

from __future__ import annotations

from typing import Any

from django.core.exceptions import ImproperlyConfigured
from django.db.models import QuerySet
from drf_spectacular.utils import extend_schema, extend_schema_field
from rest_framework import mixins, serializers, status
from rest_framework.decorators import action
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.routers import SimpleRouter

from accounts.api.base import OrganizationViewSet, OwnedSerializer, OwnedSlugRelatedField, respond_idempotently
from accounts.api.etags import VersionedMixin
from accounts.auth.permissions import MEMBER
from accounts.models import ApiKey
from dispatch.capacity.models import DispatchPool
from dispatch.core import crypto
from dispatch.core.api.openapi import IDEMPOTENCY_KEY
from dispatch.core.api.problems import Conflict
from dispatch.core.api.serializers import StrictSerializer
from dispatch.core.http import client_certificates
from dispatch.core.http.ssrf import check_target_url
from dispatch.outbox.api.messages import ManyDoneSerializer, NoteSerializer, ReplaySerializer, act_on_matching
from dispatch.outbox.models import Endpoint, Message
from dispatch.outbox.rules import conditions
from dispatch.outbox.rules.health import STATES
from dispatch.outbox.services import authentication, missed_events, target_health
from dispatch.outbox.services import endpoints as services
from dispatch.outbox.services.actions import Action
from dispatch.outbox.services.creation_times import created_before, created_since
from dispatch.outbox.validators import (
    check_condition,
    check_event_type,
    check_own_headers,
    check_permanent_code,
    longest_timeout_s,
)

_READ, _MANAGE = ApiKey.Scope.READ, ApiKey.Scope.MANAGE
# Actions open to every role; a key needs "manage".
_WORK = (MEMBER, _MANAGE)
# Actions on messages: as for messages, a key needs "messages".
_REPLAY = ApiKey.Scope.MESSAGES
MAX_RETRY_S = 7 * 24 * 3600


class EndpointSerializer(OwnedSerializer):
    """An HTTP endpoint that receives messages.

    `headers`, `oauth_client_secret` and `client_key` are write-only; responses return header names only. The
    signing secret appears only in the responses of create and rotate_secret.
    """

    url = serializers.CharField(max_length=2000, validators=[check_target_url])
    event_types = serializers.ListField(
        child=serializers.CharField(max_length=80, validators=[check_event_type]), max_length=100, required=False
    )
    condition = serializers.CharField(
        max_length=conditions.MAX_LENGTH,
        validators=[check_condition],
        required=False,
        allow_blank=True,
        help_text="A JMESPath expression over the message. Only events for which it holds are sent.",
    )
    pool = OwnedSlugRelatedField("code", queryset=DispatchPool.objects.filter(kind="messages"), required=False)
    headers = serializers.DictField(
        child=serializers.CharField(max_length=2000, allow_blank=True, trim_whitespace=False),
        validators=[check_own_headers],
        write_only=True,
        required=False,
    )
    header_names = serializers.SerializerMethodField()
    oauth_token_url = serializers.CharField(
        max_length=2000, required=False, allow_blank=True, validators=[authentication.check_token_url],
        help_text="Requests carry an access token from this server (OAuth 2.0 client credentials). Empty: none.",
    )  # fmt: skip
    oauth_client_secret = serializers.CharField(
        max_length=2000, write_only=True, required=False, allow_blank=True, trim_whitespace=False,
        help_text="Omit it to keep the current one. A new token URL needs it again.",
    )  # fmt: skip
    client_certificate = serializers.CharField(
        max_length=client_certificates.MAX_LENGTH, required=False, allow_blank=True,
        help_text="For mutual TLS, in PEM: the certificate, then those of intermediate authorities. Empty: none.",
    )  # fmt: skip
    client_key = serializers.CharField(
        max_length=client_certificates.MAX_LENGTH, write_only=True, required=False, allow_blank=True,
        help_text="The certificate's private key in PEM, without a passphrase. A new certificate needs it.",
    )  # fmt: skip
    timeout_s = serializers.FloatField(min_value=0.1, required=False)
    retry_schedule_s = serializers.ListField(
        child=serializers.IntegerField(min_value=0, max_value=MAX_RETRY_S), max_length=50, required=False
    )
    permanent_codes = serializers.ListField(
        child=serializers.IntegerField(validators=[check_permanent_code]), max_length=200, required=False
    )
    state = serializers.SerializerMethodField()

    class Meta:
        model = Endpoint
        fields = [
            "id", "name", "receiver", "url", "event_types", "condition", "mode", "pool", "headers", "header_names",
            "oauth_token_url", "oauth_client_id", "oauth_client_secret", "oauth_scope", "oauth_audience",
            "oauth_client_auth", "client_certificate", "client_key", "client_certificate_until",
            "timeout_s", "retry_schedule_s", "retry_jitter", "permanent_codes", "expire_after_s", "state",
            "is_paused", "paused_reason", "disabled_at", "disabled_reason", "previous_secret_until", "created_at",
        ]  # fmt: skip
        read_only_fields = ["is_paused", "paused_reason", "previous_secret_until"]

    @extend_schema_field(serializers.ListField(child=serializers.CharField()))
    def get_header_names(self, row: Endpoint) -> list[str]:
        return sorted(row.headers or {})

    @extend_schema_field(serializers.ChoiceField(choices=STATES))
    def get_state(self, row: Endpoint) -> str:
        return services.health_of(row).state

    def validate(self, attrs: dict[str, Any]) -> dict[str, Any]:
        return authentication.complete_changes(self.instance, super().validate(attrs))

    def validate_timeout_s(self, value: float) -> float:
        longest = longest_timeout_s()
        if value > longest:
            raise serializers.ValidationError(f"At most {longest:g} seconds.")
        return value


class NewEndpointSerializer(EndpointSerializer):
    """The response to a creation: the endpoint and its secret."""

    secret = serializers.CharField(read_only=True)

    class Meta(EndpointSerializer.Meta):
        fields = [*EndpointSerializer.Meta.fields, "secret"]


class RotationSerializer(StrictSerializer):
    """How long the previous secret stays valid along with the new one."""

    overlap_s = serializers.IntegerField(min_value=0, max_value=services.MAX_OVERLAP_S, default=services.OVERLAP_S)


class RotatedSerializer(serializers.Serializer):
    """The new secret, returned only once, and when the previous one expires."""

    secret = serializers.CharField()
    previous_secret_until = serializers.DateTimeField(allow_null=True)


class ReasonSerializer(StrictSerializer):
    """The reason, shown in the history."""

    reason = serializers.CharField(max_length=200, required=False, allow_blank=True, default="")


class ConditionSerializer(StrictSerializer):
    """A condition to try."""

    condition = serializers.CharField(
        max_length=conditions.MAX_LENGTH, validators=[check_condition], allow_blank=True
    )


class TriedSerializer(serializers.Serializer):
    """Whether the condition holds for an event. `error` says why it cannot be evaluated; it does not hold then."""

    event_id = serializers.IntegerField(source="event.pk")
    type = serializers.CharField(source="event.kind")
    at = serializers.DateTimeField(source="event.at")
    holds = serializers.BooleanField()
    error = serializers.CharField()


class MissedSerializer(NoteSerializer):
    """Which missed events to send: those since a given time. With `preview`, they are only counted."""

    since = serializers.DateTimeField()
    until = serializers.DateTimeField(required=False)
    after_event_id = serializers.IntegerField(
        required=False, min_value=0, default=0, help_text="`next_after_id` of the previous request."
    )
    preview = serializers.BooleanField(default=False)

    def validate(self, attrs: dict[str, Any]) -> dict[str, Any]:
        if "until" in attrs and attrs["until"] <= attrs["since"]:
            raise serializers.ValidationError({"until": "Must be later than since."})
        return attrs


class MissedDoneSerializer(serializers.Serializer):
    """How many events, of which types, and when the first and the last happened.

    `next_after_id` is null when these are all. Otherwise, repeat the request with it as `after_event_id`.
    """

    count = serializers.IntegerField()
    types = serializers.DictField(child=serializers.IntegerField())
    first_at = serializers.DateTimeField(allow_null=True)
    last_at = serializers.DateTimeField(allow_null=True)
    next_after_id = serializers.IntegerField(allow_null=True)


class TestSentSerializer(serializers.Serializer):
    """The test message; its attempts show the result."""

    message_id = serializers.IntegerField()


class HealthSerializer(serializers.Serializer):
    """An endpoint's health. Counts stop at 10,000."""

    state = serializers.ChoiceField(choices=STATES, source="health.state")
    words = serializers.CharField(source="health.words")
    since = serializers.DateTimeField(source="health.since", allow_null=True)
    failures = serializers.IntegerField(help_text="Consecutive failures.")
    last_error = serializers.CharField()
    circuit_open_until = serializers.DateTimeField(source="open_until", allow_null=True)
    pending = serializers.IntegerField()
    in_flight = serializers.IntegerField()
    errors = serializers.IntegerField()  # type: ignore[assignment]  # a figure, not the form's errors
    blocked_groups = serializers.IntegerField()
    oldest_due_at = serializers.DateTimeField(allow_null=True)


class EndpointViewSet(
    VersionedMixin, OrganizationViewSet, mixins.ListModelMixin, mixins.RetrieveModelMixin, mixins.CreateModelMixin
):
    """Endpoints: HTTP addresses that receive messages, and which events each one receives."""

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
        "replay": _REPLAY,
        "send_missed": _REPLAY,
        "try_condition": _READ,
    }

    @extend_schema(request=EndpointSerializer, responses={201: NewEndpointSerializer})
    def create(self, request: Request, *args: Any, **kwargs: Any) -> Response:
        given = self.get_serializer(data=request.data)
        given.is_valid(raise_exception=True)
        endpoint, secret = services.create_endpoint(
            request.organization, given.validated_data, actor=request.actor
        )
        answer = {**self.get_serializer(endpoint).data, "secret": secret}
        return Response(answer, status=status.HTTP_201_CREATED, headers={"Cache-Control": "no-store"})

    @extend_schema(request=EndpointSerializer(partial=True), responses=EndpointSerializer)
    def partial_update(self, request: Request, **kwargs: Any) -> Response:
        endpoint = self.get_object()
        given = self.get_serializer(endpoint, data=request.data, partial=True)
        given.is_valid(raise_exception=True)
        services.change_endpoint(endpoint.pk, given.validated_data, actor=request.actor)
        return self._current(endpoint)

    @extend_schema(responses={204: None})
    def destroy(self, request: Request, **kwargs: Any) -> Response:
        """Delete an endpoint without messages. An endpoint that has messages returns 409; disable it instead."""
        services.delete_endpoint(self.get_object().pk, actor=request.actor)
        return Response(status=status.HTTP_204_NO_CONTENT)

    @extend_schema(request=RotationSerializer, responses=RotatedSerializer, parameters=[IDEMPOTENCY_KEY])
    @action(detail=True, methods=["post"])
    def rotate_secret(self, request: Request, **kwargs: Any) -> Response:
        """Replace the signing secret.

        Both secrets are valid during the overlap; 0 revokes the previous one immediately. A request that is
        repeated with the same Idempotency-Key rotates once and returns the same secret.
        """
        given = RotationSerializer(data=request.data)
        endpoint_id = self.get_object().pk

        def rotate() -> tuple[int, dict]:
            given.is_valid(raise_exception=True)
            _, secret, until = services.rotate_secret(
                endpoint_id, actor=request.actor, overlap_s=given.validated_data["overlap_s"]
            )
            return 200, {"secret": crypto.encrypt(secret), "previous_secret_until": until}

        # The response is stored for repeats, so it holds the secret encrypted.
        response = respond_idempotently(request, f"rotate_secret:{endpoint_id}", rotate)
        response.data["secret"] = _decrypted(response.data["secret"])
        response["Cache-Control"] = "no-store"
        return response

    @extend_schema(request=ReasonSerializer, responses=EndpointSerializer)
    @action(detail=True, methods=["post"])
    def pause(self, request: Request, **kwargs: Any) -> Response:
        """Stop delivery until the endpoint is resumed. Messages are kept."""
        endpoint = self.get_object()
        target_health.pause_endpoint(endpoint.pk, self._reason(request), actor=request.actor)
        return self._current(endpoint)

    @extend_schema(request=None, responses=EndpointSerializer)
    @action(detail=True, methods=["post"])
    def resume(self, request: Request, **kwargs: Any) -> Response:
        """Resume delivery; waiting messages are sent."""
        endpoint = self.get_object()
        target_health.resume_endpoint(endpoint.pk, actor=request.actor)
        return self._current(endpoint)

    @extend_schema(request=ReasonSerializer, responses=EndpointSerializer)
    @action(detail=True, methods=["post"])
    def disable(self, request: Request, **kwargs: Any) -> Response:
        """Disable the endpoint, as happens automatically after several days of failures. Messages are kept."""
        endpoint = self.get_object()
        target_health.disable_endpoint(
            endpoint.pk, self._reason(request) or "Disabled manually.", actor=request.actor
        )
        return self._current(endpoint)

    @extend_schema(request=None, responses=EndpointSerializer)
    @action(detail=True, methods=["post"])
    def enable(self, request: Request, **kwargs: Any) -> Response:
        """Enable the endpoint and close its circuit; waiting messages are sent."""
        endpoint = self.get_object()
        target_health.enable_endpoint(endpoint.pk, actor=request.actor)
        return self._current(endpoint)

    @extend_schema(request=None, responses={202: TestSentSerializer})
    @action(detail=True, methods=["post"])
    def test(self, request: Request, **kwargs: Any) -> Response:
        """Send a message of type `endpoint.test`, outside any order."""
        message_id = services.send_test(self.get_object(), actor=request.actor)
        return Response({"message_id": message_id}, status=status.HTTP_202_ACCEPTED)

    @extend_schema(request=ReplaySerializer, responses=ManyDoneSerializer)
    @action(detail=True, methods=["post"])
    def replay(self, request: Request, **kwargs: Any) -> Response:
        """Send the endpoint's messages since a moment again, oldest first, at most 10,000 per request.

        Each keeps its webhook-id and gets the header Dispatch-Replay. The order within a group is kept.
        """
        endpoint = self.get_object()
        given = ReplaySerializer(data=request.data)
        given.is_valid(raise_exception=True)
        asked = given.validated_data
        organization_id = request.organization.pk
        own = Message.objects.of(organization_id)
        matching = created_since(own, organization_id, asked["since"]).filter(
            endpoint=endpoint, id__gt=asked.get("after_id", 0)
        )
        if "until" in asked:
            matching = created_before(matching, organization_id, asked["until"])
        for name, column in (("type", "type"), ("group", "group__name")):
            if name in asked:
                matching = matching.filter(**{column: asked[name]})
        return Response(act_on_matching(Action.REPLAY, matching, request.actor, asked["note"]))

    @extend_schema(request=ConditionSerializer, responses=TriedSerializer(many=True))
    @action(detail=True, methods=["post"], url_path="try-condition", pagination_class=None, filterset_fields=None)
    def try_condition(self, request: Request, **kwargs: Any) -> Response:
        """Evaluate a condition on the last 20 events of the endpoint's types, newest first. Changes nothing."""
        endpoint = self.get_object()
        given = ConditionSerializer(data=request.data)
        given.is_valid(raise_exception=True)
        tried = missed_events.try_condition(endpoint, given.validated_data["condition"])
        return Response(TriedSerializer(tried, many=True).data)

    @extend_schema(request=MissedSerializer, responses={200: MissedDoneSerializer, 202: MissedDoneSerializer})
    @action(detail=True, methods=["post"], url_path="send-missed")
    def send_missed(self, request: Request, **kwargs: Any) -> Response:
        """Send the events since a given time that the endpoint subscribes to and has no message for.

        They are sent in the order in which they happened, at most 2,000 per request, after the messages that are
        already waiting. `preview` only counts them. A disabled endpoint returns 409.
        """
        endpoint = self.get_object()
        given = MissedSerializer(data=request.data)
        given.is_valid(raise_exception=True)
        asked = given.validated_data
        which = (endpoint, asked["since"], asked.get("until"), asked["after_event_id"])
        if asked["preview"]:
            found = missed_events.find_missed(*which)
        else:
            found = missed_events.send_missed(*which, actor=request.actor, note=asked["note"])
        times = [event.at for event in found.events]
        answer = {
            "count": len(times), "types": dict(found.types), "first_at": times[0] if times else None,
            "last_at": times[-1] if times else None, "next_after_id": found.next_after_id,
        }  # fmt: skip
        code = status.HTTP_200_OK if asked["preview"] else status.HTTP_202_ACCEPTED
        return Response(MissedDoneSerializer(answer).data, status=code)

    @extend_schema(responses=HealthSerializer)
    @action(detail=True, methods=["get"])
    def health(self, request: Request, **kwargs: Any) -> Response:
        """Return the endpoint's health and how many messages are waiting."""
        return Response(HealthSerializer(services.build_report(self.get_object())).data)

    def _current(self, endpoint: Endpoint) -> Response:
        return Response(self.get_serializer(self.get_queryset().get(pk=endpoint.pk)).data)

    def _reason(self, request: Request) -> str:
        given = ReasonSerializer(data=request.data)
        given.is_valid(raise_exception=True)
        return str(given.validated_data["reason"])


def _decrypted(sealed: str) -> str:
    try:
        return crypto.decrypt(sealed)
    except ImproperlyConfigured:
        raise Conflict(
            "The secret of this rotation can't be shown again. Rotate with a new Idempotency-Key.",
            code="secret_unreadable",
        ) from None


router = SimpleRouter()
router.register("endpoints", EndpointViewSet, basename="endpoint")
urlpatterns = router.urls
