"""REST API for notification preferences, notification rules and the escalation policy."""

from __future__ import annotations

from typing import Any

from django.db import transaction
from django.http import Http404
from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import OpenApiParameter, extend_schema
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from accounts.api.base import DeletableViewSet, OwnedSerializer, OwnedSlugRelatedField
from accounts.api.etags import StaleResource, VersionedMixin, compute_etag, named_etags
from accounts.auth.permissions import MEMBER
from accounts.models import ApiKey, Organization, User
from accounts.tenancy import user_of
from dispatch.capacity.models import DispatchPool
from dispatch.core import events
from dispatch.core.api.serializers import StrictSerializer
from notifications import rules, services
from notifications.models import EscalationPolicy, EscalationStep, Level, Route
from notifications.models.preferences import MAX_STEPS
from notifications.services.preferences import Wants, plan_of

_READ, _MANAGE = ApiKey.Scope.READ, ApiKey.Scope.MANAGE
_KIND = OpenApiParameter("kind", OpenApiTypes.STR, OpenApiParameter.PATH, enum=list(rules.BY_KIND))


class PreferenceSerializer(StrictSerializer):
    """The caller's preferences for one kind of event.

    `shown`: show the event as it happens, not only in the list; a critical alert is always shown. The `sms`,
    `voice`, `chat` and `push` of a critical kind are part of its escalation. Other kinds never use voice.
    """

    kind = serializers.ChoiceField(choices=rules.KIND_CHOICES, read_only=True)
    label = serializers.CharField(read_only=True)  # type: ignore[assignment]
    level = serializers.ChoiceField(choices=Level.choices, read_only=True)
    shown = serializers.BooleanField(required=False)
    email = serializers.BooleanField(required=False)
    sms = serializers.BooleanField(required=False)
    voice = serializers.BooleanField(required=False)
    chat = serializers.BooleanField(required=False, help_text="Send it to the caller's chat channels.")
    push = serializers.BooleanField(required=False, help_text="Send it to the caller's browsers.")
    is_own = serializers.BooleanField(
        read_only=True, help_text=("True if the user chose this, false if these are the defaults.")
    )


class PreferencesView(APIView):
    """List the caller's notification preferences. For users only: API keys have no preferences."""

    required = {"get": MEMBER}

    @extend_schema(responses=PreferenceSerializer(many=True))
    def get(self, request: Request) -> Response:
        return Response(PreferenceSerializer(list(_preferences(request).values()), many=True).data)


class PreferenceView(APIView):
    """Change the caller's preferences for one kind of event. Omitted fields keep their values."""

    required = {"patch": MEMBER}

    @extend_schema(request=PreferenceSerializer(partial=True), responses=PreferenceSerializer, parameters=[_KIND])
    def patch(self, request: Request, kind: str) -> Response:
        if kind not in rules.BY_KIND:
            raise Http404
        body = PreferenceSerializer(data=request.data, partial=True)
        body.is_valid(raise_exception=True)
        user = user_of(request)
        with transaction.atomic():
            # Without a choice there is no row to lock, so one user's changes wait for each other.
            User.objects.select_for_update(no_key=True).get(pk=user.pk)
            before = _preferences(request)[kind]
            names = ("shown", "email", "sms", "voice", "chat", "push")
            wants = Wants(**{name: body.validated_data.get(name, before[name]) for name in names})
            services.save_preference(user, request.organization.pk, kind, wants, actor=request.actor)
        return Response(PreferenceSerializer(_preferences(request)[kind]).data)


def _preferences(request: Request) -> dict[str, dict[str, Any]]:
    return {
        choice.rule.kind: {
            "kind": choice.rule.kind,
            "label": choice.rule.label,
            "level": choice.level,
            "shown": choice.wants.shown,
            "email": choice.wants.email,
            "sms": choice.wants.sms,
            "voice": choice.wants.voice,
            "chat": choice.wants.chat,
            "push": choice.wants.push,
            "is_own": choice.is_own,
        }
        for choice in services.choices_of(user_of(request), request.organization.pk)
    }


class RouteSerializer(OwnedSerializer):
    """An organization's override for one kind of event: recipients, level, or off.

    A critical alert can be sent to other recipients. It cannot be downgraded or turned off.
    """

    kind = serializers.ChoiceField(choices=rules.KIND_CHOICES)

    class Meta:
        model = Route
        fields = ["id", "kind", "to", "level", "is_on"]

    def validate(self, attrs: dict[str, Any]) -> dict[str, Any]:
        attrs = super().validate(attrs)
        row = Route(kind=self.instance.kind if self.instance else "")
        for name in ("kind", "to", "level", "is_on"):
            setattr(row, name, attrs.get(name, getattr(self.instance or row, name)))
        row.clean()
        return attrs


class RouteViewSet(VersionedMixin, DeletableViewSet):
    """Notification rules: this organization's overrides.

    Without a rule, the installation's defaults apply.
    """

    subject = "notification_rule"
    queryset = Route.objects.order_by("-id")
    serializer_class = RouteSerializer


class StepSerializer(StrictSerializer):
    """One escalation step.

    `after_s`: seconds after the previous step. `spacing_s`: 0 contacts everyone at once; otherwise seconds between
    people, in the order of their memberships' `alert_order`.
    """

    audience = serializers.ChoiceField(choices=EscalationStep.Audience.choices)
    after_s = serializers.IntegerField(min_value=0, max_value=86_400)
    spacing_s = serializers.IntegerField(min_value=0, max_value=3600, default=0)
    sms = serializers.BooleanField(default=True)
    voice = serializers.BooleanField(default=True)
    chat = serializers.BooleanField(default=True)
    push = serializers.BooleanField(default=True)

    def validate(self, attrs: dict[str, Any]) -> dict[str, Any]:
        if not (attrs["sms"] or attrs["voice"]):
            raise serializers.ValidationError("Enable sms, voice or both.")
        return attrs


class EscalationSerializer(StrictSerializer):
    """How unacknowledged alerts repeat and escalate.

    Writing null or empty `steps` restores the installation's defaults. Open alerts keep the plan that was in
    effect when they were raised.
    """

    repeat_s = serializers.IntegerField(min_value=10, max_value=86_400, allow_null=True, required=False)
    again_after_s = serializers.IntegerField(min_value=60, max_value=604_800, allow_null=True, required=False)
    return_after_s = serializers.IntegerField(
        min_value=60,
        max_value=604_800,
        allow_null=True,
        required=False,
        help_text="Seconds after which an acknowledged alert opens again if nothing has happened.",
    )
    call_pool = OwnedSlugRelatedField(
        "code", queryset=DispatchPool.objects.filter(kind="calls"), allow_null=True, required=False
    )
    push_shows_details = serializers.BooleanField(
        default=True, help_text="False: push notifications name only the kind of event."
    )
    steps = StepSerializer(many=True, required=False, max_length=MAX_STEPS)  # type: ignore[call-arg]


class EscalationView(APIView):
    """Read or replace the organization's escalation policy."""

    required = {"get": _READ, "put": _MANAGE}

    @extend_schema(responses=EscalationSerializer)
    def get(self, request: Request) -> Response:
        """Return the policy in effect. The ETag is its version."""
        return self._answer(request)

    @extend_schema(
        request=EscalationSerializer,
        responses=EscalationSerializer,
        parameters=[
            OpenApiParameter(
                "If-Match", str, OpenApiParameter.HEADER, description=("The ETag from your last read.")
            )
        ],
    )
    def put(self, request: Request) -> Response:
        """Replace the policy."""
        body = EscalationSerializer(data=request.data, context={"request": request})
        body.is_valid(raise_exception=True)
        new = body.validated_data
        organization = request.organization
        with transaction.atomic():
            Organization.objects.select_for_update(no_key=True).get(pk=organization.pk)
            etags = named_etags(request)
            if etags and self._etag(request) not in etags:
                raise StaleResource(
                    "The escalation policy has changed since you read it. Fetch it again and retry."
                )
            policy, _ = EscalationPolicy.objects.update_or_create(
                organization=organization,
                defaults={
                    "repeat_s": new.get("repeat_s"),
                    "again_after_s": new.get("again_after_s"),
                    "return_after_s": new.get("return_after_s"),
                    "call_pool": new.get("call_pool"),
                    "push_shows_details": new["push_shows_details"],
                },
            )
            policy.steps.all().delete()
            EscalationStep.objects.bulk_create(
                EscalationStep(organization=organization, policy=policy, position=position, **step)
                for position, step in enumerate(new.get("steps", ()), start=1)
            )
            events.append(organization.pk, "escalation_policy.changed", policy.pk, actor=request.actor)
        return self._answer(request)

    def _answer(self, request: Request) -> Response:
        shown = self._data(request)
        return Response(shown, headers={"ETag": compute_etag(shown)})

    def _etag(self, request: Request) -> str:
        return compute_etag(self._data(request))

    def _data(self, request: Request) -> dict[str, Any]:
        plan = plan_of(request.organization.pk)
        policy = EscalationPolicy.objects.of(request.organization).select_related("call_pool").first()
        shown = {
            "repeat_s": plan.repeat_s,
            "again_after_s": plan.again_after_s,
            "return_after_s": plan.return_after_s,
            "call_pool": policy.call_pool if policy else None,
            "push_shows_details": policy.push_shows_details if policy else True,
            "steps": [
                {
                    "audience": step.audience, "after_s": step.after_s, "spacing_s": step.spacing_s,
                    "sms": step.sms, "voice": step.voice, "chat": step.chat, "push": step.push,
                }
                for step in plan.steps
            ],
        }  # fmt: skip
        return dict(EscalationSerializer(shown, context={"request": request}).data)
