"""Serve the API of the global switches, for superusers."""

from __future__ import annotations

from django.urls import path
from drf_spectacular.utils import extend_schema
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from accounts.auth.permissions import SUPERUSER
from dispatch.leads.api.calling_rule_serializers import EngineSwitchSerializer
from dispatch.leads.models import EngineSwitch
from dispatch.leads.services import switches


class EngineSwitchView(APIView):
    """The kill switch and the promoter's pause, for all organizations."""

    required = {"get": SUPERUSER, "patch": SUPERUSER}

    @extend_schema(responses=EngineSwitchSerializer)
    def get(self, request: Request) -> Response:
        """Return the switches."""
        return Response(EngineSwitchSerializer(EngineSwitch.objects.first() or EngineSwitch()).data)

    @extend_schema(request=EngineSwitchSerializer, responses=EngineSwitchSerializer)
    def patch(self, request: Request) -> Response:
        """Change the switches. The change takes effect within a second, and no lead is lost.

        The event log of each organization records it.
        """
        serializer = EngineSwitchSerializer(data=request.data, partial=True)
        serializer.is_valid(raise_exception=True)
        row = switches.set_engine(**serializer.validated_data, actor=request.actor)
        return Response(EngineSwitchSerializer(row).data)


urlpatterns = [path("lead-engine/", EngineSwitchView.as_view(), name="lead-engine")]
