"""The API of technicians and skills: Admins and keys with `manage` edit, Dispatchers read and set duty."""

from __future__ import annotations

from typing import Any

import django_filters
from drf_spectacular.utils import extend_schema
from rest_framework import mixins
from rest_framework.decorators import action
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.routers import SimpleRouter

from accounts.models import ApiKey
from accounts.owned_api import OrganizationViewSet, OwnedFilterSet
from accounts.permissions import MEMBER
from accounts.versions import Versioned
from dispatch.technicians import editing
from dispatch.technicians.models import Skill, Technician
from dispatch.technicians.serializers import (
    DutySerializer,
    PositionSerializer,
    SkillSerializer,
    TechnicianSerializer,
)

_READ, _MANAGE = ApiKey.Scope.READ, ApiKey.Scope.MANAGE


class SkillViewSet(
    Versioned,
    OrganizationViewSet,  # first, so that its perform_create is the one that counts
    mixins.ListModelMixin,
    mixins.RetrieveModelMixin,
    mixins.CreateModelMixin,
    mixins.UpdateModelMixin,
):
    """What technicians can do and service types require."""

    subject = "skill"
    queryset = Skill.objects.order_by("name", "id")
    serializer_class = SkillSerializer
    http_method_names = ["get", "post", "patch"]
    required = {"list": _READ, "retrieve": _READ, "create": _MANAGE, "partial_update": _MANAGE}


class TechnicianFilter(OwnedFilterSet):
    """`?on_duty=true&is_active=true&skill=gas&name=ana`"""

    skill = django_filters.CharFilter(field_name="skills__code", distinct=True)
    name = django_filters.CharFilter(lookup_expr="icontains")

    class Meta:
        model = Technician
        fields = ["on_duty", "is_active", "skill", "name"]


class TechnicianViewSet(
    Versioned,
    OrganizationViewSet,  # first, so that its perform_create is the one that counts
    mixins.ListModelMixin,
    mixins.RetrieveModelMixin,
    mixins.CreateModelMixin,
    mixins.UpdateModelMixin,
):
    """Technicians. They are not deleted, but set inactive: their jobs remember them."""

    subject = "technician"
    queryset = Technician.objects.prefetch_related("skills", "shifts").order_by("name", "id")
    serializer_class = TechnicianSerializer
    filterset_class = TechnicianFilter
    http_method_names = ["get", "post", "patch"]
    required = {
        "list": _READ,
        "retrieve": _READ,
        "create": _MANAGE,
        "partial_update": _MANAGE,
        "position": _MANAGE,
        "duty": (MEMBER, _MANAGE),  # any Dispatcher; a key only if it may manage
    }

    @extend_schema(request=PositionSerializer, responses=TechnicianSerializer)
    @action(detail=True, methods=["post"])
    def position(self, request: Request, **kwargs: Any) -> Response:
        """Where the technician is now."""
        given = PositionSerializer(data=request.data)
        given.is_valid(raise_exception=True)
        technician = editing.move(self.get_object().pk, **given.validated_data)
        return Response(self.get_serializer(technician).data)

    @extend_schema(request=DutySerializer, responses=TechnicianSerializer)
    @action(detail=True, methods=["post"])
    def duty(self, request: Request, **kwargs: Any) -> Response:
        """Puts the technician on or off duty."""
        given = DutySerializer(data=request.data)
        given.is_valid(raise_exception=True)
        technician = self.get_object()
        editing.set_duty(technician.pk, given.validated_data["on_duty"], actor=request.actor)
        technician.refresh_from_db()
        return Response(self.get_serializer(technician).data)


router = SimpleRouter()
router.register("technicians", TechnicianViewSet, basename="technician")
router.register("skills", SkillViewSet, basename="skill")
urlpatterns = router.urls
