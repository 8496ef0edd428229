"""The API of the switches for all organizations: for superusers."""

from __future__ import annotations

from typing import Any

from django.urls import path
from drf_spectacular.utils import extend_schema
from rest_framework.permissions import BasePermission
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from dispatch.leads.models import EngineSwitch
from dispatch.leads.serializers import EngineSwitchSerializer
from dispatch.leads.services import switches


class IsSuperuser(BasePermission):
    """A signed-in superuser; no API key, whatever its scopes, for it belongs to one organization."""

    message = "These switches are for all organizations: only superusers see and change them."

    def has_permission(self, request: Request, view: Any) -> bool:
        return bool(request.user and request.user.is_active and request.user.is_superuser)


class EngineSwitchView(APIView):
    """The kill switch and the promoter's pause, for all organizations."""

    permission_classes = [IsSuperuser]

    @extend_schema(responses=EngineSwitchSerializer)
    def get(self, request: Request) -> Response:
        """The switches as they are."""
        return Response(EngineSwitchSerializer(EngineSwitch.objects.first() or EngineSwitch()).data)

    @extend_schema(request=EngineSwitchSerializer, responses=EngineSwitchSerializer)
    def patch(self, request: Request) -> Response:
        """Effective within a second, and lifted without loss. Each organization's log is told."""
        serializer = EngineSwitchSerializer(data=request.data, partial=True)
        serializer.is_valid(raise_exception=True)
        row = switches.set_engine(**serializer.validated_data, actor=request.actor)
        return Response(EngineSwitchSerializer(row).data)


urlpatterns = [path("lead-engine/", EngineSwitchView.as_view(), name="lead-engine")]
