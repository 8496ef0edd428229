"""Serve the API of messages: send one or many, list them, and retry, ignore, resolve or cancel."""

from __future__ import annotations

import json
from datetime import datetime, timedelta
from typing import Any, cast

import django_filters
from django.db.models import QuerySet
from drf_spectacular.utils import extend_schema
from rest_framework import mixins, serializers
from rest_framework.decorators import action
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.routers import SimpleRouter

from accounts.api.base import OrganizationViewSet, OwnedFilterSet, OwnedSlugRelatedField, respond_idempotently
from accounts.api.filters import BooleanFilter
from accounts.models import ApiKey
from dispatch.capacity.models import DispatchPool
from dispatch.core import clock
from dispatch.core.api.openapi import IDEMPOTENCY_KEY
from dispatch.core.api.serializers import MAX_LATEST, BoundedListSerializer, LatestSerializer, StrictSerializer
from dispatch.core.events import Actor
from dispatch.core.http.ssrf import check_target_url
from dispatch.outbox.explain import why_stuck
from dispatch.outbox.models import (
    DEFAULT_SEQUENCE,
    MAX_GROUP_LENGTH,
    Attempt,
    Endpoint,
    Message,
    MessageGroup,
    Mode,
)
from dispatch.outbox.services import actions
from dispatch.outbox.services.actions import Action
from dispatch.outbox.services.catalog import PayloadValidator
from dispatch.outbox.services.creation_times import created_before, created_since
from dispatch.outbox.services.intake import Accepted, NewMessage, accept_messages

_READ, _WRITE = ApiKey.Scope.READ, ApiKey.Scope.MESSAGES
MAX_AT_ONCE = 1000
MAX_BY_FILTER = 10_000
MAX_PAYLOAD_BYTES = 256 * 1024
FURTHEST_AHEAD = timedelta(days=3660)


def _not_too_far(moment: datetime) -> None:
    if moment > clock.now() + FURTHEST_AHEAD:
        raise serializers.ValidationError("Must be at most ten years ahead.")


def check_payload_size(payload: Any) -> None:
    """Raise ValidationError if the payload is larger than that of a message may be."""
    if len(json.dumps(payload)) > MAX_PAYLOAD_BYTES:
        raise serializers.ValidationError(f"Must be at most {MAX_PAYLOAD_BYTES} bytes.")


class SendSerializer(StrictSerializer):
    """A message to send: to an `endpoint` (its name), or to a `target_url` in a `pool` (its code)."""

    endpoint = OwnedSlugRelatedField("name", queryset=Endpoint.objects.all(), required=False)
    target_url = serializers.CharField(max_length=2000, required=False, validators=[check_target_url])
    pool = OwnedSlugRelatedField("code", queryset=DispatchPool.objects.filter(kind="messages"), required=False)
    type = serializers.RegexField(r"^[A-Za-z0-9_.\-/]{1,80}$")
    payload = serializers.JSONField(validators=[check_payload_size])
    group = serializers.CharField(
        max_length=MAX_GROUP_LENGTH,
        required=False,
        allow_null=True,
        allow_blank=True,
        help_text=(
            "Messages of one group are delivered one after another. Without a group, all messages of the endpoint "
            "are one group, in which each waits for the ones before it: name the order or customer that a message "
            "is about, or use the mode IMMEDIATE."
        ),
    )
    sequence = serializers.IntegerField(default=DEFAULT_SEQUENCE, min_value=-(2**31), max_value=2**31 - 1)
    mode = serializers.ChoiceField(choices=Mode.choices, required=False)
    scheduled_for = serializers.DateTimeField(required=False, allow_null=True, validators=[_not_too_far])
    expires_at = serializers.DateTimeField(required=False, allow_null=True, validators=[_not_too_far])
    idempotency_key = serializers.RegexField(r"^[\x21-\x7e]{1,255}$", required=False)

    class Meta:
        list_serializer_class = BoundedListSerializer

    def validate(self, attrs: dict[str, Any]) -> dict[str, Any]:
        if ("endpoint" in attrs) == ("target_url" in attrs):
            raise serializers.ValidationError({"endpoint": "Enter either an endpoint or a target_url."})
        if "pool" in attrs and "endpoint" in attrs:
            raise serializers.ValidationError({"pool": "Not allowed with an endpoint, which has its own pool."})
        begins, ends = attrs.get("scheduled_for"), attrs.get("expires_at")
        if begins and ends and ends <= begins:
            raise serializers.ValidationError({"expires_at": "Must be later than scheduled_for."})
        if problems := self._validator().problems(attrs["type"], attrs["payload"]):
            raise serializers.ValidationError(
                {f"payload.{path}" if path else "payload": text for path, text in problems.items()}
            )
        return attrs

    def _validator(self) -> PayloadValidator:
        """Return the validator of this request, which all messages of a list share."""
        context = cast(dict[str, Any], self.context)
        if "payload_validator" not in context:
            context["payload_validator"] = PayloadValidator(context["request"].organization.pk)
        return cast(PayloadValidator, context["payload_validator"])

    def to_message(self, attrs: dict[str, Any]) -> NewMessage:
        return NewMessage(
            type=attrs["type"],
            payload=json.dumps(attrs["payload"], separators=(",", ":"), ensure_ascii=False),
            endpoint=attrs.get("endpoint"),
            url=attrs.get("target_url", ""),
            pool=attrs.get("pool"),
            group=attrs.get("group"),
            sequence=attrs["sequence"],
            mode=attrs.get("mode"),
            scheduled_for=attrs.get("scheduled_for"),
            expires_at=attrs.get("expires_at"),
            idempotency_key=attrs.get("idempotency_key"),
        )


class AttemptSerializer(serializers.ModelSerializer):
    """One delivery attempt."""

    class Meta:
        model = Attempt
        list_serializer_class = LatestSerializer
        fields = [
            "number", "epoch", "outcome", "url", "started_at", "ended_at", "elapsed_s", "status_code", "answer",
            "error_class", "error", "is_spent", "is_late",
        ]  # fmt: skip


class MessageSerializer(serializers.ModelSerializer):
    """A message and its state."""

    endpoint = serializers.CharField(source="endpoint.name", default=None)
    target_url = serializers.CharField(source="url")
    group = serializers.CharField(source="group.name")
    webhook_id = serializers.CharField(source="public_id", help_text="The id that the receiver sees.")

    class Meta:
        model = Message
        fields = [
            "id", "endpoint", "target_url", "type", "group", "sequence", "mode", "status", "resolution",
            "attempts",
            "calls", "epoch", "created_at", "scheduled_for", "expires_at", "due_at", "queued_at", "started_at",
            "ended_at", "last_error", "waiting_for", "idempotency_key", "webhook_id", "replays", "replayed_at",
        ]  # fmt: skip


class MessageDetailSerializer(MessageSerializer):
    """A message with its payload, its attempts, and why it is in its current state."""

    payload = serializers.SerializerMethodField()
    why = serializers.SerializerMethodField()
    attempts_made = AttemptSerializer(many=True, help_text=f"The last {MAX_LATEST} attempts, oldest first.")

    class Meta(MessageSerializer.Meta):
        fields = [*MessageSerializer.Meta.fields, "why", "payload", "attempts_made"]

    def get_payload(self, message: Message) -> Any:
        return json.loads(message.payload)

    def get_why(self, message: Message) -> str:
        return why_stuck(message)


class NoteSerializer(StrictSerializer):
    """A note, shown in the history."""

    note = serializers.CharField(max_length=500, required=False, allow_blank=True, default="")


class ManySerializer(NoteSerializer):
    """The action, and the messages that it applies to. `filter` takes the same fields as the list."""

    action = serializers.ChoiceField(choices=[action.word for action in Action])
    filter = serializers.DictField(child=serializers.CharField(max_length=255), allow_empty=False)


class ManyDoneSerializer(serializers.Serializer):
    """The result: how many messages were changed, how many were not, and the ids of the first 1,000 changed.

    `next_after_id` is null when all are done. Otherwise, repeat the request with it as the filter's `after_id`.
    """

    changed = serializers.IntegerField()
    refused = serializers.IntegerField()
    ids = serializers.ListField(child=serializers.IntegerField())
    next_after_id = serializers.IntegerField(allow_null=True)


class ReplaySerializer(NoteSerializer):
    """Which of an endpoint's messages to send again: those created since a moment that ended without an error."""

    since = serializers.DateTimeField()
    until = serializers.DateTimeField(required=False)
    type = serializers.CharField(max_length=80, required=False)
    group = serializers.CharField(max_length=MAX_GROUP_LENGTH, required=False)
    after_id = serializers.IntegerField(
        required=False, min_value=0, help_text="`next_after_id` of the request before."
    )

    def validate(self, attrs: dict[str, Any]) -> dict[str, Any]:
        if "until" in attrs and attrs["until"] <= attrs["since"]:
            raise serializers.ValidationError({"until": "Must be later than since."})
        return attrs


class _NumbersFilter(django_filters.BaseInFilter, django_filters.NumberFilter):
    """Filter by several ids: `?id=7,8,9`."""


class MessageFilter(OwnedFilterSet):
    """Filter messages: `?status=ERROR&endpoint=ERP&group=job:7&type=order.changed&created_after=…`."""

    endpoint = django_filters.CharFilter(method="filter_endpoint")
    group = django_filters.CharFilter(field_name="group__name")
    created_after = django_filters.IsoDateTimeFilter(method="filter_after")
    created_before = django_filters.IsoDateTimeFilter(method="filter_before")
    after_id = django_filters.NumberFilter(field_name="id", lookup_expr="gt")
    id = _NumbersFilter(field_name="id")

    class Meta:
        model = Message
        fields = ["status", "mode", "type", "idempotency_key", "webhook_id"]

    def filter_endpoint(self, messages: QuerySet, name: str, value: str) -> QuerySet:
        # By id, because PostgreSQL does not use the endpoint's index for a name that it has yet to look up.
        found = Endpoint.objects.of(self.request.organization.pk).filter(name=value)
        return messages.filter(endpoint_id__in=list(found.values_list("pk", flat=True)))

    def filter_after(self, messages: QuerySet, name: str, at: datetime) -> QuerySet:
        return created_since(messages, self.request.organization.pk, at)

    def filter_before(self, messages: QuerySet, name: str, at: datetime) -> QuerySet:
        return created_before(messages, self.request.organization.pk, at)


class MessageViewSet(OrganizationViewSet, mixins.ListModelMixin, mixins.RetrieveModelMixin):
    """Messages, delivered in order within their group."""

    queryset = Message.objects.select_related("endpoint", "target", "group").order_by("-id")
    serializer_class = MessageSerializer
    filterset_class = MessageFilter
    required = {
        "list": _READ, "retrieve": _READ, "create": _WRITE, "retry": _WRITE, "ignore": _WRITE, "resolve": _WRITE,
        "cancel": _WRITE, "replay": _WRITE, "many": _WRITE,
    }  # fmt: skip

    def get_queryset(self) -> QuerySet:
        messages = super().get_queryset()
        if self.action == "retrieve":
            messages = messages.select_related("endpoint__pool", "target__pool")
        return messages

    def get_serializer_class(self) -> Any:
        return {"retrieve": MessageDetailSerializer, "create": SendSerializer}.get(self.action, MessageSerializer)

    @extend_schema(request=SendSerializer, responses={202: MessageSerializer}, parameters=[IDEMPOTENCY_KEY])
    def create(self, request: Request) -> Response:
        """Send one message, or a list of at most 1,000 in one transaction. 202 means accepted for delivery."""
        many = isinstance(request.data, list)
        if many and not 1 <= len(request.data) <= MAX_AT_ONCE:
            raise serializers.ValidationError(f"A list must contain 1 to {MAX_AT_ONCE} messages.")
        serializer = SendSerializer(data=request.data, many=many, context=self.get_serializer_context())

        def make() -> tuple[int, dict]:
            serializer.is_valid(raise_exception=True)
            bodies = serializer.validated_data if many else [serializer.validated_data]
            items = [SendSerializer().to_message(attrs) for attrs in bodies]
            accepted = accept_messages(request.organization.pk, items, actor=request.actor)
            answers = [_accepted(result) for result in accepted]
            return 202, {"messages": answers} if many else answers[0]

        return respond_idempotently(request, "messages", make)

    @extend_schema(request=NoteSerializer, responses=MessageSerializer)
    @action(detail=True, methods=["post"])
    def retry(self, request: Request, pk: str) -> Response:
        """Retry a message in ERROR, with its full retry budget."""
        return self._act(Action.RETRY, request)

    @extend_schema(request=NoteSerializer, responses=MessageSerializer)
    @action(detail=True, methods=["post"])
    def ignore(self, request: Request, pk: str) -> Response:
        """Give up on a message in ERROR (it becomes CANCELLED); its group continues."""
        return self._act(Action.IGNORE, request)

    @extend_schema(request=NoteSerializer, responses=MessageSerializer)
    @action(detail=True, methods=["post"])
    def resolve(self, request: Request, pk: str) -> Response:
        """Mark a message in ERROR as handled elsewhere (it becomes COMPLETED); its group continues."""
        return self._act(Action.RESOLVE, request)

    @extend_schema(request=NoteSerializer, responses=MessageSerializer)
    @action(detail=True, methods=["post"])
    def cancel(self, request: Request, pk: str) -> Response:
        """Cancel a message that has not ended.

        A waiting message is never sent. The result of a message in flight is recorded but doesn't change its
        status.
        """
        return self._act(Action.CANCEL, request)

    @extend_schema(request=NoteSerializer, responses=MessageSerializer)
    @action(detail=True, methods=["post"])
    def replay(self, request: Request, pk: str) -> Response:
        """Send a message again that was completed, canceled or expired.

        It keeps its webhook-id, gets the header Dispatch-Replay, and goes before later messages of its group.
        """
        return self._act(Action.REPLAY, request)

    @extend_schema(request=ManySerializer, responses=ManyDoneSerializer)
    @action(detail=False, methods=["post"], url_path="actions")
    def many(self, request: Request) -> Response:
        """Apply an action to all messages that match a filter and whose status allows it.

        The oldest are changed first, at most 10,000 per request. The others are unchanged and counted, up to
        10,000.
        """
        serializer = ManySerializer(data=request.data)
        serializer.is_valid(raise_exception=True)
        asked = serializer.validated_data
        filters = MessageFilter(data=asked["filter"], queryset=self.get_queryset(), request=request)
        if unknown := sorted(set(asked["filter"]) - set(filters.filters)):
            raise serializers.ValidationError({"filter": f"Unknown fields: {', '.join(unknown)}."})
        if not filters.is_valid():
            raise serializers.ValidationError({"filter": filters.errors})
        chosen = Action.of(asked["action"])
        return Response(act_on_matching(chosen, filters.qs, request.actor, asked["note"]))

    def _act(self, chosen: Action, request: Request) -> Response:
        serializer = NoteSerializer(data=request.data)
        serializer.is_valid(raise_exception=True)
        message = actions.act_on_one(
            chosen, self.get_object(), actor=request.actor, note=serializer.validated_data["note"]
        )
        return Response(MessageSerializer(self.get_queryset().get(pk=message.pk)).data)


def act_on_matching(chosen: Action, matching: QuerySet, actor: Actor, note: str) -> dict[str, Any]:
    """Apply the action to the oldest MAX_BY_FILTER messages that allow it; return fields of ManyDoneSerializer."""
    fitting = matching.filter(status__in=chosen.before).order_by("id").values_list("pk", flat=True)
    ids = list(fitting[:MAX_BY_FILTER])
    others = matching.exclude(status__in=chosen.before).order_by()[:MAX_BY_FILTER].count()
    done = actions.act_on_messages(chosen, ids, actor=actor, note=note)
    return {
        "changed": len(done.changed),
        "refused": len(done.refused) + others,
        "ids": done.changed[:1000],
        "next_after_id": ids[-1] if len(ids) == MAX_BY_FILTER else None,
    }


class GroupSerializer(serializers.ModelSerializer):
    """A group and the message that blocks it, if any."""

    endpoint = serializers.CharField(source="endpoint.name", default=None)

    class Meta:
        model = MessageGroup
        fields = ["id", "endpoint", "name", "blocked_by", "blocked_since", "wake_at", "created_at"]


class GroupFilter(OwnedFilterSet):
    """Filter groups: `?blocked=true&endpoint=ERP&name=job:7`."""

    endpoint = django_filters.CharFilter(field_name="endpoint__name")
    blocked = BooleanFilter(field_name="blocked_by", lookup_expr="isnull", exclude=True)

    class Meta:
        model = MessageGroup
        fields = ["name"]


class GroupViewSet(OrganizationViewSet, mixins.ListModelMixin, mixins.RetrieveModelMixin):
    """Groups, with the messages that block them and since when."""

    queryset = MessageGroup.objects.select_related("endpoint").order_by("-id")
    serializer_class = GroupSerializer
    filterset_class = GroupFilter
    required = {"list": _READ, "retrieve": _READ}


def _accepted(result: Accepted) -> dict[str, Any]:
    return {"id": result.id, "is_new": result.is_new}


router = SimpleRouter()
router.register("messages", MessageViewSet, basename="message")
router.register("message-groups", GroupViewSet, basename="message-group")
urlpatterns = router.urls
