"""The API of technicians and skills. Admins and API keys with `manage` edit; dispatchers read and set duty."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import django_filters
from drf_spectacular.utils import extend_schema
from rest_framework import mixins
from rest_framework.decorators import action
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.routers import SimpleRouter

from accounts.api.base import OrganizationViewSet, OwnedFilterSet
from accounts.api.etags import VersionedMixin
from accounts.auth.permissions import MEMBER
from accounts.models import ApiKey
from dispatch.technicians import services
from dispatch.technicians.models import Skill, Technician
from dispatch.technicians.serializers import (
    DutySerializer,
    PositionSerializer,
    SkillSerializer,
    TechnicianSerializer,
)

_READ, _MANAGE = ApiKey.Scope.READ, ApiKey.Scope.MANAGE


class SkillViewSet(
    VersionedMixin,
    OrganizationViewSet,  # before the mixins, so that its perform_create wins
    mixins.ListModelMixin,
    mixins.RetrieveModelMixin,
    mixins.CreateModelMixin,
    mixins.UpdateModelMixin,
):
    """Skills that technicians have and service types require."""

    subject = "skill"
    queryset = Skill.objects.order_by("name", "id")
    serializer_class = SkillSerializer
    http_method_names = ["get", "post", "patch"]
    required = {"list": _READ, "retrieve": _READ, "create": _MANAGE, "partial_update": _MANAGE}


class TechnicianFilter(OwnedFilterSet):
    """Filter technicians: `?on_duty=true&is_active=true&skill=gas&name=ana`."""

    skill = django_filters.CharFilter(field_name="skills__code", distinct=True)
    name = django_filters.CharFilter(lookup_expr="icontains")

    class Meta:
        model = Technician
        fields = ["on_duty", "is_active", "skill", "name"]


class TechnicianViewSet(
    VersionedMixin,
    OrganizationViewSet,  # before the mixins, so that its perform_create wins
    mixins.ListModelMixin,
    mixins.RetrieveModelMixin,
    mixins.CreateModelMixin,
    mixins.UpdateModelMixin,
):
    """Technicians. Set `is_active` to false instead of deleting a technician, because jobs refer to them."""

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
        "duty": (MEMBER, _MANAGE),  # any dispatcher; an API key needs `manage`
    }

    def lock_row(self, row: Technician) -> None:
        given = self.request.data
        if isinstance(given, Mapping) and "is_active" in given:  # other edits concern no job
            services.lock_jobs_of(row.pk)
        super().lock_row(row)

    @extend_schema(request=PositionSerializer, responses=TechnicianSerializer)
    @action(detail=True, methods=["post"])
    def position(self, request: Request, **kwargs: Any) -> Response:
        """Update the technician's position."""
        body = PositionSerializer(data=request.data)
        body.is_valid(raise_exception=True)
        technician = services.move_technician(self.get_object().pk, **body.validated_data)
        return Response(self.get_serializer(technician).data)

    @extend_schema(request=DutySerializer, responses=TechnicianSerializer)
    @action(detail=True, methods=["post"])
    def duty(self, request: Request, **kwargs: Any) -> Response:
        """Put the technician on or off duty."""
        body = DutySerializer(data=request.data)
        body.is_valid(raise_exception=True)
        technician = self.get_object()
        services.set_duty(technician.pk, body.validated_data["on_duty"], actor=request.actor)
        technician.refresh_from_db()
        return Response(self.get_serializer(technician).data)


router = SimpleRouter()
router.register("technicians", TechnicianViewSet, basename="technician")
router.register("skills", SkillViewSet, basename="skill")
urlpatterns = router.urls
