"""REST API for chat channels and browsers that get push notifications. Secrets are write-only."""

from __future__ import annotations

from typing import Any

from django.core.exceptions import ValidationError as ModelValidationError
from django.db.models import QuerySet
from drf_spectacular.utils import OpenApiExample, extend_schema, extend_schema_serializer
from rest_framework import mixins, serializers, status
from rest_framework.decorators import action
from rest_framework.exceptions import Throttled, ValidationError
from rest_framework.request import Request
from rest_framework.response import Response

from accounts.api.base import OrganizationViewSet, OwnedSerializer
from accounts.auth.permissions import MEMBER
from accounts.models import ApiKey, User
from accounts.tenancy import user_of
from notifications.models import AlertChannel, PushSubscription
from notifications.services import alert_links, chat_channels, push_subscriptions

_FIELDS = ["id", "kind", "name", "address", "config", "created_at", "failures", "error", "tried_at", "stopped_at"]
_READ_ONLY = ["id", "address", "created_at", "failures", "error", "tried_at", "stopped_at"]
_EXAMPLE = {
    "kind": "ntfy",
    "name": "Night shift",
    "config": {"server": "https://ntfy.example.com", "topic": "dispatch-alerts", "token": "tk_secret"},
}


@extend_schema_serializer(examples=[OpenApiExample("An ntfy topic", value=_EXAMPLE, request_only=True)])
class ChannelSerializer(OwnedSerializer):
    """A chat channel of the caller. `address`: where it goes, without secrets.

    `config` is never returned. Its fields depend on the kind: `url` (slack, teams, google_chat); `url` and `token`
    (webhook); `token` and `chat` (telegram); `server`, `token` and `room` (matrix); `server`, `topic` and `token`
    (ntfy). `stopped_at`: the service rejected a message for good; a successful test starts the channel again.
    """

    name = serializers.CharField(max_length=60, required=False, allow_blank=True, default="")
    config = serializers.DictField(child=serializers.CharField(allow_blank=True), write_only=True)

    class Meta:
        model = AlertChannel
        fields = _FIELDS
        read_only_fields = _READ_ONLY


@extend_schema_serializer(examples=[OpenApiExample("An ntfy topic", value=_EXAMPLE, request_only=True)])
class TeamChannelSerializer(ChannelSerializer):
    """A chat channel of the whole team. `audience`: it gets what these members are notified of."""

    class Meta(ChannelSerializer.Meta):
        fields = [*_FIELDS, "scope", "audience"]


class _ChannelViewSet(
    mixins.ListModelMixin, mixins.RetrieveModelMixin, mixins.DestroyModelMixin, OrganizationViewSet
):
    queryset = AlertChannel.objects.filter(removed_at=None).defer("config").order_by("pk")
    http_method_names = ["get", "post", "delete"]

    def owner(self) -> User | None:
        """Return whose channels these are; None: the team's."""
        raise NotImplementedError

    def get_queryset(self) -> QuerySet:
        rows = super().get_queryset()
        return rows if getattr(self, "swagger_fake_view", False) else rows.filter(user=self.owner())

    def create(self, request: Request, **kwargs: Any) -> Response:
        """Add a channel. Nothing is sent to it yet; `test` sends a message."""
        body = self.get_serializer(data=request.data)
        body.is_valid(raise_exception=True)
        given, owner = body.validated_data, self.owner()
        if owner is not None and not alert_links.is_recipient(request.organization.pk, owner):
            self.permission_denied(request)
        more = {name: given[name] for name in ("scope", "audience") if name in given}
        try:
            row = chat_channels.add_channel(
                request.organization, owner, given["kind"], given["name"], given["config"], actor=request.actor,
                **more,
            )  # fmt: skip
        except ModelValidationError as error:
            fields = {name: texts for name, texts in error.message_dict.items() if name == "kind"}
            entered = {name: texts for name, texts in error.message_dict.items() if name != "kind"}
            raise ValidationError({**fields, **({"config": entered} if entered else {})}) from error
        return Response(self.get_serializer(row).data, status=status.HTTP_201_CREATED)

    def perform_destroy(self, instance: AlertChannel) -> None:
        """Remove the channel and its secrets."""
        chat_channels.remove_channel(instance, actor=self.request.actor)

    def send_test(self, request: Request) -> Response:
        """Send a test message, within seconds. The channel's `error` and `tried_at` have the result."""
        row = self.get_object()
        try:
            chat_channels.send_test(row, user=user_of(request), actor=request.actor)
        except chat_channels.TestRefused as error:
            raise Throttled(detail=str(error)) from error
        return Response(self.get_serializer(row).data, status=status.HTTP_202_ACCEPTED)


class ChannelViewSet(_ChannelViewSet):
    """The caller's own chat channels. For users only: API keys have no channels."""

    serializer_class = ChannelSerializer
    required = dict.fromkeys(["list", "retrieve", "create", "destroy", "test"], MEMBER)

    def owner(self) -> User | None:
        return user_of(self.request)

    @extend_schema(request=None, responses={202: ChannelSerializer})
    @action(detail=True, methods=["post"])
    def test(self, request: Request, **kwargs: Any) -> Response:
        """Send a test message, within seconds. The channel's `error` and `tried_at` have the result."""
        return self.send_test(request)


class TeamChannelViewSet(_ChannelViewSet):
    """The team's chat channels. They get every alert at once."""

    serializer_class = TeamChannelSerializer
    required = {
        **dict.fromkeys(["list", "retrieve"], ApiKey.Scope.READ),
        **dict.fromkeys(["create", "destroy"], ApiKey.Scope.MANAGE),
    }

    def owner(self) -> User | None:
        return None


class PushSubscriptionSerializer(OwnedSerializer):
    """A browser of the caller that gets push notifications. `host`: its push service.

    Browsers subscribe in Notification settings; their endpoints and keys are secrets, and never returned.
    """

    class Meta:
        model = PushSubscription
        fields = ["id", "name", "host", "created_at", "failures", "error", "tried_at", "paused_until"]
        read_only_fields = fields


class PushSubscriptionViewSet(
    mixins.ListModelMixin, mixins.RetrieveModelMixin, mixins.DestroyModelMixin, OrganizationViewSet
):
    """The caller's browsers that get push notifications. For users only."""

    queryset = PushSubscription.objects.defer("endpoint", "keys").order_by("pk")
    serializer_class = PushSubscriptionSerializer
    http_method_names = ["get", "delete"]
    required = dict.fromkeys(["list", "retrieve", "destroy"], MEMBER)

    def get_queryset(self) -> QuerySet:
        rows = super().get_queryset()
        return rows if getattr(self, "swagger_fake_view", False) else rows.filter(user=user_of(self.request))

    def perform_destroy(self, instance: PushSubscription) -> None:
        """Remove the browser: it gets no further notifications."""
        push_subscriptions.remove(instance, actor=self.request.actor)
