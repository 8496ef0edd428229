"""The API of leads: one or thousands added, looked at, cancelled, called now."""

from __future__ import annotations

from typing import Any

import django_filters
from drf_spectacular.utils import OpenApiExample, extend_schema, inline_serializer
from rest_framework import mixins, serializers
from rest_framework.decorators import action
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.routers import SimpleRouter

from accounts.models import ApiKey
from accounts.owned_api import OrganizationViewSet, OwnedFilterSet, OwnedSlugRelatedField, answer_once
from dispatch.core.parsers import LargeJSONParser
from dispatch.core.strict import Strict
from dispatch.leads import bulk
from dispatch.leads.models import Campaign, Lead
from dispatch.leads.serializers import LeadDetailSerializer, LeadSerializer, NewLeadSerializer
from dispatch.leads.services import by_hand, intake
from dispatch.leads.services.intake import NewLead

_READ, _WRITE = ApiKey.Scope.READ, ApiKey.Scope.LEADS


class LeadBulkSerializer(Strict):
    """A campaign's code, and up to 10,000 lines; each is checked by itself."""

    campaign = OwnedSlugRelatedField("code", queryset=Campaign.objects.select_related("organization"))
    leads = serializers.ListField(child=serializers.JSONField(), allow_empty=False, max_length=bulk.MOST)

    def to_internal_value(self, data: Any) -> Any:
        """As DRF's, without a field for each line: `bulk` reads the lines."""
        lines = data.get("leads") if isinstance(data, dict) else None
        if not isinstance(lines, list) or len(lines) <= 1:
            return super().to_internal_value(data)
        found = super().to_internal_value({**data, "leads": lines[:1]})
        if len(lines) > bulk.MOST:
            raise serializers.ValidationError({"leads": f"At most {bulk.MOST} lines in a request."})
        return {**found, "leads": lines}


class LeadResultSerializer(serializers.Serializer):
    """`line` counts from 1. `is_new` is false for one that was there; `field` and `error` stand for a bad one."""

    line = serializers.IntegerField()
    id = serializers.IntegerField(required=False)
    is_new = serializers.BooleanField(required=False)
    field = serializers.CharField(required=False)
    error = serializers.CharField(required=False)


_RESULTS = inline_serializer(
    "LeadsAdded",
    {
        "accepted": serializers.IntegerField(help_text="New leads."),
        "known": serializers.IntegerField(help_text="Lines whose external_id the campaign had already."),
        "rejected": serializers.IntegerField(),
        "results": LeadResultSerializer(many=True),
    },
)


class LeadFilter(OwnedFilterSet):
    """`?campaign=spring&status=backlog&reason=outside_window&phone=%2B16025550134&due_before=…`"""

    campaign = django_filters.CharFilter(field_name="campaign__code")
    phone = django_filters.CharFilter(field_name="phone")
    due_after = django_filters.IsoDateTimeFilter(field_name="due_at", lookup_expr="gte")
    due_before = django_filters.IsoDateTimeFilter(field_name="due_at", lookup_expr="lt")

    class Meta:
        model = Lead
        fields = ["status", "outcome", "reason", "external_id", "customer"]


class LeadViewSet(OrganizationViewSet, mixins.ListModelMixin, mixins.RetrieveModelMixin):
    """Phone numbers to call at their due time, through every gate."""

    queryset = Lead.objects.select_related("campaign__pool", "organization").order_by("-id")
    serializer_class = LeadSerializer
    filterset_class = LeadFilter
    required = {
        "list": _READ, "retrieve": _READ, "create": _WRITE, "bulk": _WRITE, "destroy": _WRITE,
        "dispatch_now": _WRITE,
    }  # fmt: skip

    def get_serializer_class(self) -> Any:
        return LeadDetailSerializer if self.action == "retrieve" else LeadSerializer

    @extend_schema(
        request=NewLeadSerializer,
        responses={201: LeadSerializer, 200: LeadSerializer},
        examples=[
            OpenApiExample(
                "A lead",
                {"campaign": "spring", "phone": "+16025550134", "due_at": "2026-11-20T18:00:00Z"},
                request_only=True,
            )
        ],
    )
    def create(self, request: Request) -> Response:
        """201: written, and called at its due time, also when it was added while Redis is away. 200: the campaign
        has a lead of this external_id, which is the answer."""
        serializer = NewLeadSerializer(data=request.data, context=self.get_serializer_context())
        serializer.is_valid(raise_exception=True)
        asked = dict(serializer.validated_data)
        campaign = asked.pop("campaign")

        def make() -> tuple[int, dict]:
            (answer,) = intake.accept(campaign, [NewLead(**asked)], actor=request.actor)
            if answer.error:
                raise serializers.ValidationError({bulk.field_of(answer.error): answer.error})
            lead = self.get_queryset().get(pk=answer.id)
            return 201 if answer.is_new else 200, dict(LeadSerializer(lead).data)

        return answer_once(request, "leads", make)

    @extend_schema(request=LeadBulkSerializer, responses={201: _RESULTS})
    @action(detail=False, methods=["post"], parser_classes=[LargeJSONParser])
    def bulk(self, request: Request) -> Response:
        """Up to 10,000 at once. Bad lines are reported and the good ones kept."""
        serializer = LeadBulkSerializer(data=request.data, context=self.get_serializer_context())
        serializer.is_valid(raise_exception=True)
        campaign, lines = serializer.validated_data["campaign"], serializer.validated_data["leads"]
        return answer_once(request, "leads-bulk", lambda: (201, bulk.accept(campaign, lines, actor=request.actor)))

    @extend_schema(responses={204: None})
    def destroy(self, request: Request, pk: str) -> Response:
        """Cancels it. 409 once it is being called, or has ended."""
        by_hand.cancel(self.get_object().pk, actor=request.actor)
        return Response(status=204)

    @extend_schema(request=None, responses=LeadSerializer)
    @action(detail=True, methods=["post"], url_path="dispatch-now")
    def dispatch_now(self, request: Request, pk: str) -> Response:
        """Makes it due at once; every gate is still asked."""
        lead = by_hand.dispatch_now(self.get_object().pk, actor=request.actor)
        return Response(LeadSerializer(self.get_queryset().get(pk=lead.pk)).data)


router = SimpleRouter()
router.register("leads", LeadViewSet, basename="lead")
urlpatterns = router.urls
