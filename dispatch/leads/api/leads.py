"""Serve the API of leads: add one or thousands, list them, cancel them, call them now."""

from __future__ import annotations

from typing import Any

import django_filters
from drf_spectacular.utils import OpenApiExample, extend_schema, inline_serializer
from rest_framework import mixins, serializers
from rest_framework.decorators import action
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.routers import SimpleRouter

from accounts.api.base import OrganizationViewSet, OwnedFilterSet, OwnedSlugRelatedField, respond_idempotently
from accounts.api.filters import PhoneFilter
from accounts.models import ApiKey
from dispatch.core.api.openapi import IDEMPOTENCY_KEY
from dispatch.core.api.serializers import StrictSerializer
from dispatch.leads import bulk_intake
from dispatch.leads.api.lead_serializers import (
    LeadDetailSerializer,
    LeadSerializer,
    NewLeadSerializer,
    OutcomeSerializer,
)
from dispatch.leads.models import Campaign, Lead
from dispatch.leads.services import actions, intake, outcomes
from dispatch.leads.services.intake import NewLead

_READ, _WRITE = ApiKey.Scope.READ, ApiKey.Scope.LEADS


class LeadBulkSerializer(StrictSerializer):
    """A campaign's code, and up to 10,000 leads. Each lead is checked separately."""

    campaign = OwnedSlugRelatedField("code", queryset=Campaign.objects.select_related("organization"))
    leads = serializers.ListField(
        child=serializers.JSONField(), allow_empty=False, max_length=bulk_intake.MAX_ENTRIES
    )

    def to_internal_value(self, data: Any) -> Any:
        """Validate as DRF does, without a field for each lead: `bulk_intake` parses them."""
        entries = data.get("leads") if isinstance(data, dict) else None
        if not isinstance(entries, list) or len(entries) <= 1:
            return super().to_internal_value(data)
        validated = super().to_internal_value({**data, "leads": entries[:1]})
        if len(entries) > bulk_intake.MAX_ENTRIES:
            raise serializers.ValidationError({"leads": f"At most {bulk_intake.MAX_ENTRIES} leads per request."})
        return {**validated, "leads": entries}


class LeadResultSerializer(serializers.Serializer):
    """The result for one lead. `line` is its position in the request, from 1.

    `is_new` is false for an existing lead. Then `is_duplicate` says whether it is an open lead to the same phone
    (its `id` is null if that lead has ended meanwhile). `field` and `error` describe an invalid lead.
    """

    line = serializers.IntegerField()
    id = serializers.IntegerField(required=False, allow_null=True)
    is_new = serializers.BooleanField(required=False)
    is_duplicate = serializers.BooleanField(required=False)
    field = serializers.CharField(required=False)
    error = serializers.CharField(required=False)


_RESULTS = inline_serializer(
    "LeadsAdded",
    {
        "accepted": serializers.IntegerField(help_text="New leads."),
        "known": serializers.IntegerField(help_text="Leads whose external_id already exists in the campaign."),
        "duplicates": serializers.IntegerField(
            help_text="Leads left out because the campaign has an open lead to their phone."
        ),
        "rejected": serializers.IntegerField(),
        "results": LeadResultSerializer(many=True),
    },
)


class LeadFilter(OwnedFilterSet):
    """Filter leads: `?campaign=spring&status=backlog&reason=outside_window&phone=%2B16025550134&due_before=…`."""

    campaign = django_filters.CharFilter(field_name="campaign__code")
    phone = PhoneFilter()
    due_after = django_filters.IsoDateTimeFilter(field_name="due_at", lookup_expr="gte")
    due_before = django_filters.IsoDateTimeFilter(field_name="due_at", lookup_expr="lt")

    class Meta:
        model = Lead
        fields = ["status", "outcome", "reason", "external_id", "customer"]


class LeadViewSet(OrganizationViewSet, mixins.ListModelMixin, mixins.RetrieveModelMixin):
    """Leads: phone numbers to call at their due time, within all calling rules."""

    queryset = Lead.objects.select_related("campaign__pool", "organization").order_by("-id")
    serializer_class = LeadSerializer
    filterset_class = LeadFilter
    required = {
        "list": _READ, "retrieve": _READ, "create": _WRITE, "bulk": _WRITE, "destroy": _WRITE,
        "dispatch_now": _WRITE, "outcome": _WRITE,
    }  # fmt: skip

    def get_serializer_class(self) -> Any:
        return LeadDetailSerializer if self.action == "retrieve" else LeadSerializer

    @extend_schema(
        request=NewLeadSerializer,
        responses={201: LeadSerializer, 200: LeadSerializer},
        parameters=[IDEMPOTENCY_KEY],
        examples=[
            OpenApiExample(
                "A lead",
                {"campaign": "spring", "phone": "+16025550134", "due_at": "2026-11-20T18:00:00Z"},
                request_only=True,
            )
        ],
    )
    def create(self, request: Request) -> Response:
        """Add a lead, to be called at its due time.

        201: the lead is stored, and will be called even if Redis is unavailable now. 200: the campaign already has
        a lead with this external_id, which is returned. 409: the campaign has an open lead to this phone
        (`conflict.lead`) and does not allow duplicates.
        """
        serializer = NewLeadSerializer(data=request.data, context=self.get_serializer_context())

        def add_lead() -> tuple[int, dict]:
            serializer.is_valid(raise_exception=True)
            fields = dict(serializer.validated_data)
            campaign = fields.pop("campaign")
            (result,) = intake.accept_leads(campaign, [NewLead(**fields)], actor=request.actor)
            if result.error:
                raise serializers.ValidationError({bulk_intake.field_of(result.error): result.error})
            if result.is_duplicate:
                raise intake.DuplicateLead(result.id)
            lead = self.get_queryset().get(pk=result.id)
            return 201 if result.is_new else 200, dict(LeadSerializer(lead).data)

        return respond_idempotently(request, "leads", add_lead)

    @extend_schema(request=LeadBulkSerializer, responses={201: _RESULTS}, parameters=[IDEMPOTENCY_KEY])
    @action(detail=False, methods=["post"], parser_classes=[bulk_intake.EntriesParser])
    def bulk(self, request: Request) -> Response:
        """Add up to 10,000 leads. Valid leads are added, and invalid leads are reported."""
        serializer = LeadBulkSerializer(data=request.data, context=self.get_serializer_context())

        def add_leads() -> tuple[int, dict]:
            serializer.is_valid(raise_exception=True)
            campaign, entries = serializer.validated_data["campaign"], serializer.validated_data["leads"]
            return 201, bulk_intake.accept_entries(campaign, entries, actor=request.actor)

        return respond_idempotently(request, "leads-bulk", add_leads)

    @extend_schema(responses={204: None})
    def destroy(self, request: Request, pk: str) -> Response:
        """Cancel the lead. Its call is hung up, and then the lead ends. Returns 409 if it has ended."""
        actions.cancel_lead(self.get_object().pk, actor=request.actor)
        return Response(status=204)

    @extend_schema(request=None, responses=LeadSerializer)
    @action(detail=True, methods=["post"], url_path="dispatch-now")
    def dispatch_now(self, request: Request, pk: str) -> Response:
        """Make the lead due now. All calling rules still apply.

        A lead that waits for the rate of its customer keeps its place, unless the rate allows its call now.
        """
        lead = actions.dispatch_now(self.get_object().pk, actor=request.actor)
        return Response(LeadSerializer(self.get_queryset().get(pk=lead.pk)).data)

    @extend_schema(request=OutcomeSerializer, responses=LeadSerializer)
    @action(detail=True, methods=["post"])
    def outcome(self, request: Request, pk: str) -> Response:
        """Report the outcome of a call, during it or afterwards.

        409: the lead has ended and is to be called back, but the campaign has another open lead to its phone, or
        its personal data was erased.
        """
        serializer = OutcomeSerializer(data=request.data)
        serializer.is_valid(raise_exception=True)
        lead = outcomes.report_outcome(self.get_object().pk, **serializer.validated_data, actor=request.actor)
        return Response(LeadSerializer(self.get_queryset().get(pk=lead.pk)).data)


router = SimpleRouter()
router.register("leads", LeadViewSet, basename="lead")
urlpatterns = router.urls
