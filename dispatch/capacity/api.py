"""Serve the API of provider accounts, pools and numbers: admins and keys with `manage` edit, dispatchers pause."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from django.core.exceptions import ValidationError as DjangoValidationError
from django.db.models import QuerySet
from drf_spectacular.utils import extend_schema
from phonenumber_field.serializerfields import PhoneNumberField
from rest_framework import mixins, serializers
from rest_framework.decorators import action
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.routers import SimpleRouter

from accounts.api.base import OrganizationViewSet, OwnedSerializer, OwnedSlugRelatedField
from accounts.api.etags import VersionedMixin
from accounts.auth.permissions import MEMBER
from accounts.models import ApiKey
from dispatch.capacity import rules, services, sql
from dispatch.capacity.models import DEFAULT_LINES, DispatchPool, OutboundNumber, ProviderAccount
from dispatch.core.api.problems import Conflict

_READ, _MANAGE = ApiKey.Scope.READ, ApiKey.Scope.MANAGE
_WORK = (MEMBER, _MANAGE)


# Settings of an account that are checked together.
_CHECKED = ("account_sid", "api_key_sid", "api_key_secret", "region", "edge")


class SaveThroughServices(OwnedSerializer):
    """Save rows through the services, which append the events."""

    def create(self, validated_data: dict[str, Any]) -> Any:
        model: Any = self.Meta.model
        row = model(**validated_data)
        services.save_row(row, validated_data, actor=self.context["request"].actor)
        return row

    def update(self, instance: Any, validated_data: dict[str, Any]) -> Any:
        changed = {name: value for name, value in validated_data.items() if getattr(instance, name) != value}
        for name, value in changed.items():
            setattr(instance, name, value)
        services.save_row(instance, changed, actor=self.context["request"].actor)
        return instance


class AccountSerializer(SaveThroughServices):
    """An account at a phone provider.

    `auth_token` is write-only. After a change, webhooks accept the previous token (`is_rotating`) until the
    rotation is ended. With an API key (`api_key_sid`, and the write-only `api_key_secret`), requests are made with
    it, and the token only verifies webhooks.
    """

    auth_token = serializers.CharField(write_only=True, max_length=200, required=False)
    api_key_secret = serializers.CharField(write_only=True, max_length=200, required=False, allow_blank=True)
    is_rotating = serializers.SerializerMethodField()

    class Meta:
        model = ProviderAccount
        fields = [
            "id", "name", "provider", "account_sid", "auth_token", "api_key_sid", "api_key_secret", "region",
            "edge", "calls_per_second", "is_active", "is_rotating", "created_at",
        ]  # fmt: skip
        read_only_fields = ["created_at"]

    def get_is_rotating(self, row: ProviderAccount) -> bool:
        return bool(row.previous_auth_token)

    def validate(self, attrs: dict[str, Any]) -> dict[str, Any]:
        attrs = super().validate(attrs)
        before = self.instance
        if set(attrs) & {"provider", *_CHECKED}:
            merged = {name: attrs.get(name, getattr(before, name, "")) for name in ("provider", *_CHECKED)}
            has_secret = bool(merged.pop("api_key_secret"))
            provider = merged.pop("provider") or "twilio"
            if problems := rules.account_problems(provider, has_secret=has_secret, **merged):
                raise serializers.ValidationError(problems)
        has_token = bool(attrs.get("auth_token") or (before and before.auth_token))
        is_active = attrs.get("is_active", before.is_active if before else True)
        if is_active and not has_token:
            raise serializers.ValidationError(
                {"auth_token": "An active account needs a token to verify its webhooks."}
            )
        return attrs

    def create(self, validated_data: dict[str, Any]) -> ProviderAccount:
        validated_data.setdefault("auth_token", "")
        account: ProviderAccount = super().create(validated_data)
        return account

    def update(self, instance: ProviderAccount, validated_data: dict[str, Any]) -> ProviderAccount:
        token = validated_data.pop("auth_token", "")
        super().update(instance, validated_data)
        if token and token != instance.auth_token:
            services.set_token(instance, token, actor=self.context["request"].actor)
        return instance


class AccountViewSet(
    VersionedMixin,
    OrganizationViewSet,
    mixins.ListModelMixin,
    mixins.RetrieveModelMixin,
    mixins.CreateModelMixin,
    mixins.UpdateModelMixin,
):
    """Accounts at phone providers. Calls reference them, so they are deactivated instead of deleted."""

    subject, notes_itself = "account", True
    queryset = ProviderAccount.objects.order_by("-id")
    serializer_class = AccountSerializer
    filterset_fields = ["provider", "is_active"]
    http_method_names = ["get", "post", "patch"]
    required = {
        "list": _READ,
        "retrieve": _READ,
        "create": _MANAGE,
        "partial_update": _MANAGE,
        "end_rotation": _MANAGE,
    }

    @extend_schema(request=None, responses=AccountSerializer)
    @action(detail=True, methods=["post"], url_path="end-rotation")
    def end_rotation(self, request: Request, **kwargs: Any) -> Response:
        """End the rotation: webhooks accept only the current token from now on."""
        account = self.get_object()
        services.end_rotation(account, actor=request.actor)
        return Response(self.get_serializer(self.get_queryset().get(pk=account.pk)).data)


class PoolSerializer(SaveThroughServices):
    """A named limit for calls or messages.

    At most `concurrency` calls or messages at the same time, and `rate_per_minute` (null: no limit). `in_use` is
    the number of open calls. `fallback` is the code of the pool whose numbers place job offers, alert calls and
    calls about changed jobs, and send texts, while the phone provider refuses or does not answer the accounts of
    this one's.
    """

    fallback = OwnedSlugRelatedField(
        "code", queryset=DispatchPool.objects.filter(kind="calls"), required=False, allow_null=True
    )
    in_use = serializers.IntegerField(read_only=True, default=0)

    class Meta:
        model = DispatchPool
        fields = [
            "id", "code", "name", "kind", "concurrency", "rate_per_minute", "is_default", "fallback", "is_paused",
            "in_use",
        ]  # fmt: skip
        read_only_fields = ["is_paused"]

    def validate(self, attrs: dict[str, Any]) -> dict[str, Any]:
        if attrs.get("is_default") or attrs.get("fallback") is not None:
            self._check_pool(attrs)
        return super().validate(attrs)

    def _check_pool(self, attrs: dict[str, Any]) -> None:
        kind: Any = attrs.get("kind") or getattr(self.instance, "kind", DispatchPool.Kind.CALLS)
        pool = DispatchPool(
            pk=self.instance.pk if self.instance else None,
            organization=self.context["request"].organization,
            kind=kind,
            is_default=attrs.get("is_default") or False,
            fallback=attrs.get("fallback"),
        )
        try:
            pool.clean()
        except DjangoValidationError as error:
            raise serializers.ValidationError(error.message_dict) from None

    def validate_kind(self, value: str) -> str:
        if self.instance is not None and value != self.instance.kind:
            raise serializers.ValidationError("A pool's kind can't be changed. Create another pool.")
        return value


class NumberSerializer(SaveThroughServices):
    """A caller number and its lines.

    Of its `max_channels` lines, some are reserved for alerts and others for offers. `in_use` is the number of open
    calls.
    """

    phone = PhoneNumberField()
    pool = OwnedSlugRelatedField("code", queryset=DispatchPool.objects.filter(kind="calls"))
    in_use = serializers.IntegerField(read_only=True, default=0)

    class Meta:
        model = OutboundNumber
        fields = [
            "id", "phone", "name", "account", "pool", "max_channels", "reserved_for_alerts", "reserved_for_offers",
            "sends_texts", "texts_per_second", "messaging_service_sid", "is_paused", "in_use",
        ]  # fmt: skip
        read_only_fields = ["is_paused"]

    def validate(self, attrs: dict[str, Any]) -> dict[str, Any]:
        def merged_value(name: str, default: int) -> int:
            return int(attrs.get(name, getattr(self.instance, name, default)))

        reserved = merged_value("reserved_for_alerts", 0) + merged_value("reserved_for_offers", 0)
        if reserved > (lines := merged_value("max_channels", DEFAULT_LINES)):
            raise serializers.ValidationError(
                {"max_channels": f"{reserved} lines are reserved, but there are only {lines}."}
            )
        return super().validate(attrs)


class Paused(Conflict):
    """409: the number can't be resumed, because it is in use elsewhere."""

    default_code = "number_taken"


class LimitedViewSet(
    VersionedMixin,
    OrganizationViewSet,
    mixins.ListModelMixin,
    mixins.RetrieveModelMixin,
    mixins.CreateModelMixin,
    mixins.UpdateModelMixin,
):
    """Base of pools and numbers. Calls reference them, so they are paused instead of deleted."""

    notes_itself = True
    http_method_names = ["get", "post", "patch"]
    required = {
        "list": _READ,
        "retrieve": _READ,
        "create": _MANAGE,
        "partial_update": _MANAGE,
        "pause": _WORK,
        "resume": _WORK,
    }

    def get_queryset(self) -> QuerySet:
        rows = super().get_queryset()
        return rows.annotate(in_use=sql.open_calls(rows.model))

    def _set_paused(self, paused: bool) -> Response:
        row = self.get_object()
        try:
            services.set_paused(row, paused, actor=self.request.actor)
        except services.NumberTaken as error:
            raise Paused(str(error)) from None
        return Response(self.get_serializer(self.get_queryset().get(pk=row.pk)).data)


def _pause_action(serializer: type[SaveThroughServices], paused: bool) -> Callable:
    """Return the API action that pauses or resumes."""

    def switch(self: LimitedViewSet, request: Request, **kwargs: Any) -> Response:
        return self._set_paused(paused)

    switch.__name__ = "pause" if paused else "resume"
    switch.__doc__ = "Stop new calls. Calls in progress continue." if paused else "Allow new calls again."
    return extend_schema(request=None, responses=serializer)(action(detail=True, methods=["post"])(switch))


class PoolViewSet(LimitedViewSet):
    """Dispatch pools. Calls reference them, so they are paused instead of deleted."""

    subject = "pool"
    queryset = DispatchPool.objects.select_related("fallback").order_by("-id")
    serializer_class = PoolSerializer
    filterset_fields = ["kind", "code", "is_paused"]
    pause = _pause_action(PoolSerializer, True)
    resume = _pause_action(PoolSerializer, False)


class NumberViewSet(LimitedViewSet):
    """Outbound numbers. Calls reference them, so they are paused instead of deleted."""

    subject = "number"
    queryset = OutboundNumber.objects.select_related("pool", "account").order_by("-id")
    serializer_class = NumberSerializer
    filterset_fields = ["account", "is_paused"]
    pause = _pause_action(NumberSerializer, True)
    resume = _pause_action(NumberSerializer, False)


router = SimpleRouter()
router.register("provider-accounts", AccountViewSet, basename="provider-account")
router.register("pools", PoolViewSet, basename="pool")
router.register("numbers", NumberViewSet, basename="number")
urlpatterns = router.urls
