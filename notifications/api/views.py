"""REST API for the caller's notifications and the organization's alerts."""

from __future__ import annotations

from typing import Any

import django_filters
from django.db.models import Prefetch, QuerySet
from django.urls import path
from drf_spectacular.utils import extend_schema
from rest_framework import mixins
from rest_framework.decorators import action
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.routers import SimpleRouter

from accounts.api.base import OrganizationViewSet, OwnedFilterSet
from accounts.api.filters import BooleanFilter
from accounts.auth.permissions import MEMBER
from accounts.models import ApiKey
from accounts.tenancy import user_of
from notifications import services
from notifications.api.channels import ChannelViewSet, PushSubscriptionViewSet, TeamChannelViewSet
from notifications.api.config import EscalationView, PreferencesView, PreferenceView, RouteViewSet
from notifications.api.serializers import (
    AlertSerializer,
    NotificationSerializer,
    ReadSerializer,
    SummarySerializer,
    with_asked_at,
)
from notifications.models import Alert, Delivery, Notification
from notifications.services.acknowledgement import APP


class NotificationFilter(OwnedFilterSet):
    """Filter notifications: `?unread=true&level=critical`."""

    unread = BooleanFilter(field_name="read_at", lookup_expr="isnull")

    class Meta:
        model = Notification
        fields = ["unread", "level", "kind"]


class NotificationViewSet(mixins.ListModelMixin, mixins.RetrieveModelMixin, OrganizationViewSet):
    """The caller's notifications, newest first. For users only: API keys have no notifications."""

    queryset = Notification.objects.select_related("acknowledged_by")
    serializer_class = NotificationSerializer
    filterset_class = NotificationFilter
    required = dict.fromkeys(["list", "retrieve", "read", "read_all", "acknowledge", "summary"], MEMBER)

    def get_queryset(self) -> QuerySet:
        rows = super().get_queryset()
        if getattr(self, "swagger_fake_view", False):
            return rows
        return with_asked_at(rows.filter(user=self.request.user))

    @extend_schema(request=None, responses=NotificationSerializer)
    @action(detail=True, methods=["post"])
    def read(self, request: Request, **kwargs: Any) -> Response:
        """Mark one notification read."""
        services.read(user_of(request), request.organization.pk, [self.get_object().pk])
        return Response(self.get_serializer(self.get_object()).data)

    @extend_schema(request=None, responses=NotificationSerializer)
    @action(detail=True, methods=["post"])
    def acknowledge(self, request: Request, **kwargs: Any) -> Response:
        """Acknowledge a notification. An alert is acknowledged for everyone in the organization."""
        row = services.acknowledge(self.get_object().pk, user=user_of(request), actor=request.actor)
        return Response(self.get_serializer(row).data)

    @extend_schema(request=None, responses=ReadSerializer)
    @action(detail=False, methods=["post"], url_path="read-all")
    def read_all(self, request: Request, **kwargs: Any) -> Response:
        """Mark all of the caller's notifications read."""
        return Response({"read": services.read(user_of(request), request.organization.pk)})

    @extend_schema(responses=SummarySerializer, filters=False)
    @action(detail=False, pagination_class=None, filter_backends=[])
    def summary(self, request: Request, **kwargs: Any) -> Response:
        """Return the numbers of unread notifications and unacknowledged alerts."""
        rows = self.get_queryset()
        waiting = rows.filter(level=Notification.Level.CRITICAL, acknowledged_at=None, settled_at=None)
        return Response({"unread": rows.filter(read_at=None).count(), "open_alerts": waiting.count()})


class AlertFilter(OwnedFilterSet):
    """Filter alerts: `?status=open&kind=job.pending&subject_type=job&subject_id=12`."""

    subject_id = django_filters.NumberFilter(max_value=2**63 - 1)

    class Meta:
        model = Alert
        fields = ["status", "kind", "subject_type", "subject_id"]


class AlertViewSet(mixins.ListModelMixin, mixins.RetrieveModelMixin, OrganizationViewSet):
    """The organization's alerts, each with its deliveries and the user who acknowledged it."""

    queryset = Alert.objects.select_related("acknowledged_by").prefetch_related(
        Prefetch(
            "notifications",
            Notification.objects.select_related("user").prefetch_related(
                Prefetch("deliveries", Delivery.objects.select_related("destination").order_by("pk"))
            ),
        )
    )
    serializer_class = AlertSerializer
    filterset_class = AlertFilter
    required = {"list": ApiKey.Scope.READ, "retrieve": ApiKey.Scope.READ, "acknowledge": MEMBER}

    @extend_schema(request=None, responses=AlertSerializer)
    @action(detail=True, methods=["post"])
    def acknowledge(self, request: Request, **kwargs: Any) -> Response:
        """Acknowledge the alert for everyone. It stops on all screens and phones.

        A second acknowledgment changes nothing.
        """
        alert = self.get_object()
        services.acknowledge_alert(alert.pk, user=user_of(request), actor=request.actor, via=APP)
        return Response(self.get_serializer(self.get_object()).data)


router = SimpleRouter()
router.register("notifications", NotificationViewSet, basename="notification")
router.register("alerts", AlertViewSet, basename="alert")
router.register("alert-channels", ChannelViewSet, basename="alert-channel")
router.register("team-channels", TeamChannelViewSet, basename="team-channel")
router.register("push-subscriptions", PushSubscriptionViewSet, basename="push-subscription")
router.register("notification-rules", RouteViewSet, basename="notification-rule")
urlpatterns = [
    path("notification-preferences/", PreferencesView.as_view(), name="notification-preferences"),
    path("notification-preferences/<str:kind>/", PreferenceView.as_view(), name="notification-preference"),
    path("escalation-policy/", EscalationView.as_view(), name="escalation-policy"),
    *router.urls,
]
