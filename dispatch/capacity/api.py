"""The API of provider accounts, pools and numbers: Admins and keys with `manage` edit, Dispatchers pause."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from django.db.models import QuerySet
from drf_spectacular.utils import extend_schema
from phonenumber_field.serializerfields import PhoneNumberField
from rest_framework import mixins, serializers
from rest_framework.decorators import action
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.routers import SimpleRouter

from accounts.models import ApiKey
from accounts.owned_api import OrganizationViewSet, OwnedSerializer, OwnedSlugRelatedField
from accounts.permissions import MEMBER
from accounts.versions import Versioned
from dispatch.capacity import services, sql
from dispatch.capacity.models import DispatchPool, OutboundNumber, ProviderAccount
from dispatch.core.problems import Conflict

_READ, _MANAGE = ApiKey.Scope.READ, ApiKey.Scope.MANAGE
_WORK = (MEMBER, _MANAGE)


class Saving(OwnedSerializer):
    """Writes through the services, which append the events."""

    def create(self, validated_data: dict[str, Any]) -> Any:
        model: Any = self.Meta.model
        row = model(**validated_data)
        services.save(row, validated_data, actor=self.context["request"].actor)
        return row

    def update(self, instance: Any, validated_data: dict[str, Any]) -> Any:
        changed = {name: value for name, value in validated_data.items() if getattr(instance, name) != value}
        for name, value in changed.items():
            setattr(instance, name, value)
        services.save(instance, changed, actor=self.context["request"].actor)
        return instance


class AccountSerializer(Saving):
    """An account at a telephone provider. `auth_token` goes in and never comes out; a new one leaves the one
    before accepted on webhooks (`is_rotating`) until the rotation is ended."""

    auth_token = serializers.CharField(write_only=True, max_length=200, required=False)
    is_rotating = serializers.SerializerMethodField()

    class Meta:
        model = ProviderAccount
        fields = [
            "id", "name", "provider", "account_sid", "auth_token", "calls_per_second", "is_active", "is_rotating",
            "created_at",
        ]  # fmt: skip
        read_only_fields = ["created_at"]

    def get_is_rotating(self, row: ProviderAccount) -> bool:
        return bool(row.previous_auth_token)

    def validate(self, attrs: dict[str, Any]) -> dict[str, Any]:
        attrs = super().validate(attrs)
        before = self.instance
        has_token = bool(attrs.get("auth_token") or (before and before.auth_token))
        is_active = attrs.get("is_active", before.is_active if before else True)
        if is_active and not has_token:
            raise serializers.ValidationError(
                {"auth_token": "An active account needs a token: without one its webhooks cannot be verified."}
            )
        return attrs

    def create(self, validated_data: dict[str, Any]) -> ProviderAccount:
        validated_data.setdefault("auth_token", "")
        made: ProviderAccount = super().create(validated_data)
        return made

    def update(self, instance: ProviderAccount, validated_data: dict[str, Any]) -> ProviderAccount:
        token = validated_data.pop("auth_token", "")
        super().update(instance, validated_data)
        if token and token != instance.auth_token:
            services.set_token(instance, token, actor=self.context["request"].actor)
        return instance


class AccountViewSet(
    Versioned,
    OrganizationViewSet,
    mixins.ListModelMixin,
    mixins.RetrieveModelMixin,
    mixins.CreateModelMixin,
    mixins.UpdateModelMixin,
):
    """Accounts at telephone providers. They are not deleted, but set inactive: calls remember them."""

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
        """From now on only the present token is accepted on webhooks."""
        account = self.get_object()
        services.end_rotation(account, actor=request.actor)
        return Response(self.get_serializer(self.get_queryset().get(pk=account.pk)).data)


class PoolSerializer(Saving):
    """A named limit: at most `concurrency` calls (or messages) at once, and `rate_per_minute` (null: no limit).
    `in_use` is how many calls are open now."""

    in_use = serializers.IntegerField(read_only=True, default=0)

    class Meta:
        model = DispatchPool
        fields = [
            "id", "code", "name", "kind", "concurrency", "rate_per_minute", "is_default", "is_paused", "in_use"
        ]  # fmt: skip
        read_only_fields = ["is_paused"]

    def validate(self, attrs: dict[str, Any]) -> dict[str, Any]:
        if attrs.get("is_default"):
            kind = attrs.get("kind") or getattr(self.instance, "kind", DispatchPool.Kind.CALLS)
            others = DispatchPool.objects.of(self.context["request"].organization).filter(
                kind=kind, is_default=True
            )
            if other := others.exclude(pk=self.instance.pk if self.instance else 0).first():
                raise serializers.ValidationError(
                    {"is_default": f"{other} ({other.code}) is the default already: switch that off first."}
                )
        return super().validate(attrs)

    def validate_kind(self, value: str) -> str:
        if self.instance is not None and value != self.instance.kind:
            raise serializers.ValidationError("A pool keeps its kind. Make another pool.")
        return value


class NumberSerializer(Saving):
    """A caller number and its lines. Of `max_channels`, some are reserved for alerts, further ones for offers.
    `in_use` is how many calls are open now."""

    phone = PhoneNumberField()
    pool = OwnedSlugRelatedField("code", queryset=DispatchPool.objects.filter(kind="calls"))
    in_use = serializers.IntegerField(read_only=True, default=0)

    class Meta:
        model = OutboundNumber
        fields = [
            "id", "phone", "name", "account", "pool", "max_channels", "reserved_for_alerts", "reserved_for_offers",
            "sends_texts", "texts_per_second", "is_paused", "in_use",
        ]  # fmt: skip
        read_only_fields = ["is_paused"]

    def validate(self, attrs: dict[str, Any]) -> dict[str, Any]:
        def now(name: str, otherwise: int) -> int:
            return int(attrs.get(name, getattr(self.instance, name, otherwise)))

        reserved = now("reserved_for_alerts", 0) + now("reserved_for_offers", 0)
        if reserved > (lines := now("max_channels", 1)):
            raise serializers.ValidationError(
                {"max_channels": f"{reserved} lines are reserved, but there are only {lines}."}
            )
        return super().validate(attrs)


class Paused(Conflict):
    """409: it cannot be resumed."""

    default_code = "number_taken"


class LimitedViewSet(
    Versioned,
    OrganizationViewSet,
    mixins.ListModelMixin,
    mixins.RetrieveModelMixin,
    mixins.CreateModelMixin,
    mixins.UpdateModelMixin,
):
    """What pools and numbers share. They are not deleted, but paused: calls remember them."""

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


def _switch(serializer: type[Saving], paused: bool) -> Callable:
    """The action that pauses, or resumes."""

    def switch(self: LimitedViewSet, request: Request, **kwargs: Any) -> Response:
        return self._set_paused(paused)

    switch.__name__ = "pause" if paused else "resume"
    switch.__doc__ = "No new calls; those under way go on." if paused else "New calls may begin again."
    return extend_schema(request=None, responses=serializer)(action(detail=True, methods=["post"])(switch))


class PoolViewSet(LimitedViewSet):
    """Dispatch pools. They are not deleted, but paused: calls remember them."""

    subject = "pool"
    queryset = DispatchPool.objects.order_by("-id")
    serializer_class = PoolSerializer
    filterset_fields = ["kind", "code", "is_paused"]
    pause = _switch(PoolSerializer, True)
    resume = _switch(PoolSerializer, False)


class NumberViewSet(LimitedViewSet):
    """Outbound numbers. They are not deleted, but paused: calls remember them."""

    subject = "number"
    queryset = OutboundNumber.objects.select_related("pool", "account").order_by("-id")
    serializer_class = NumberSerializer
    filterset_fields = ["account", "is_paused"]
    pause = _switch(NumberSerializer, True)
    resume = _switch(NumberSerializer, False)


router = SimpleRouter()
router.register("provider-accounts", AccountViewSet, basename="provider-account")
router.register("pools", PoolViewSet, basename="pool")
router.register("numbers", NumberViewSet, basename="number")
urlpatterns = router.urls
