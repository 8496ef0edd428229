"""Serve the API of campaigns and of the organization's switch."""

from __future__ import annotations

from typing import Any

from django.urls import path
from drf_spectacular.utils import extend_schema, inline_serializer
from rest_framework import mixins, serializers
from rest_framework.decorators import action
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.routers import SimpleRouter

from accounts.api.base import OrganizationViewSet
from accounts.auth.permissions import MEMBER
from accounts.models import ApiKey
from dispatch.leads.api.calling_rule_serializers import LeadDispatchSerializer
from dispatch.leads.api.campaign_serializers import CampaignSerializer
from dispatch.leads.models import Campaign, LeadDispatch
from dispatch.leads.progress import progress_of
from dispatch.leads.services import switches

_READ, _WRITE, _MANAGE = ApiKey.Scope.READ, ApiKey.Scope.LEADS, ApiKey.Scope.MANAGE
_PROGRESS = inline_serializer(
    "CampaignProgress",
    {
        "total": serializers.IntegerField(),
        **{
            name: serializers.DictField(child=serializers.IntegerField())
            for name in ("statuses", "outcomes", "waiting")
        },
    },
)


class CampaignViewSet(
    OrganizationViewSet,  # first, so that its perform_create takes precedence
    mixins.ListModelMixin,
    mixins.RetrieveModelMixin,
    mixins.CreateModelMixin,
    mixins.UpdateModelMixin,
):
    """Campaigns. They are paused, never deleted, because leads refer to them. Changes apply from the next call."""

    queryset = (
        Campaign.objects.select_related("pool", "agent")
        .prefetch_related("retry_rules", "branches", "disposition_rules")
        .order_by("-id")
    )
    serializer_class = CampaignSerializer
    http_method_names = ["get", "post", "patch"]
    filterset_fields = ["code", "is_paused"]
    required = {
        "list": _READ, "retrieve": _READ, "progress": _READ, "create": _MANAGE, "partial_update": _MANAGE,
        "pause": (MEMBER, _WRITE), "resume": (MEMBER, _WRITE),
    }  # fmt: skip

    @extend_schema(request=None, responses=CampaignSerializer)
    @action(detail=True, methods=["post"])
    def pause(self, request: Request, pk: str) -> Response:
        """Pause the campaign within a second; calls in progress continue."""
        return self._switch(True, request)

    @extend_schema(request=None, responses=CampaignSerializer)
    @action(detail=True, methods=["post"])
    def resume(self, request: Request, pk: str) -> Response:
        """Resume the campaign; leads that waited for this are due again at once."""
        return self._switch(False, request)

    @extend_schema(responses=_PROGRESS)
    @action(detail=True, methods=["get"])
    def progress(self, request: Request, pk: str) -> Response:
        """Count the campaign's leads by state, and waiting leads by the reason why they wait.

        Leads without a reason are `due`, and wait for a line, or `scheduled` for later.
        """
        return Response(progress_of(self.get_object()))

    def _switch(self, is_paused: bool, request: Request) -> Response:
        switches.pause_campaign(self.get_object().pk, is_paused, actor=request.actor)
        return Response(self.get_serializer(self.get_object()).data)


class LeadDispatchViewSet(OrganizationViewSet):
    """The organization's lead calling: `off`, `dry_run` (everything but the call) or `live`; and its pause."""

    queryset = LeadDispatch.objects.all()
    serializer_class = LeadDispatchSerializer
    pagination_class = None
    filter_backends: list[Any] = []
    required = {"retrieve": _READ, "partial_update": _MANAGE}

    def retrieve(self, request: Request) -> Response:
        """Return the switch. An organization that never set it is off."""
        row = self.get_queryset().first() or LeadDispatch()
        return Response(LeadDispatchSerializer(row).data)

    def partial_update(self, request: Request) -> Response:
        """Change the switch. It takes effect within a second; no lead is lost."""
        serializer = LeadDispatchSerializer(data=request.data, partial=True)
        serializer.is_valid(raise_exception=True)
        row = switches.set_dispatch(request.organization.pk, **serializer.validated_data, actor=request.actor)
        return Response(LeadDispatchSerializer(row).data)


router = SimpleRouter()
router.register("campaigns", CampaignViewSet, basename="campaign")
_switch = LeadDispatchViewSet.as_view({"get": "retrieve", "patch": "partial_update"})
urlpatterns = [*router.urls, path("lead-dispatch/", _switch, name="lead-dispatch")]
