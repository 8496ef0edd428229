"""The shape of a notification, in the API and on the socket."""

from __future__ import annotations

from typing import Any

from drf_spectacular.utils import extend_schema_field
from rest_framework import serializers

from accounts.owned_api import OwnedSerializer
from notifications.models import Alert, Delivery, Notification
from notifications.words import path_to


class NotificationSerializer(OwnedSerializer):
    """`acknowledged_by` is who took an alert on, by name; `settled_how` what ended its cause; `page` the path
    of the console's page where it is dealt with, empty when there is none."""

    acknowledged_by = serializers.SerializerMethodField()
    page = serializers.SerializerMethodField()

    class Meta:
        model = Notification
        fields = [
            "id", "alert", "event_id", "kind", "level", "title", "body", "subject_type", "subject_id", "page",
            "created_at", "read_at", "acknowledged_at", "acknowledged_by", "settled_at", "settled_how",
        ]  # fmt: skip
        read_only_fields = fields

    @extend_schema_field(serializers.CharField(allow_null=True))
    def get_acknowledged_by(self, row: Notification) -> Any:
        return str(row.acknowledged_by) if row.acknowledged_by else None

    def get_page(self, row: Notification) -> str:
        return path_to(row)


class DeliverySerializer(serializers.ModelSerializer):
    """One way by which an alert left the house: to whom, how that went. `step` is that of the escalation, null for
    what went out at once."""

    to = serializers.CharField(source="notification.user")

    class Meta:
        model = Delivery
        fields = ["id", "to", "channel", "cycle", "step", "status", "attempts", "error", "created_at", "ended_at"]
        read_only_fields = fields


class AlertSerializer(OwnedSerializer):
    """An alert. `next_action_at` is when it escalates next; `cycle` and `step` are where it stands."""

    acknowledged_by = serializers.SerializerMethodField()
    deliveries = serializers.SerializerMethodField()

    class Meta:
        model = Alert
        fields = [
            "id", "event_id", "kind", "title", "body", "subject_type", "subject_id", "status", "created_at",
            "repeats", "next_repeat_at", "cycle", "step", "next_action_at", "acknowledged_at", "acknowledged_by",
            "acknowledged_via", "settled_at", "settled_how", "deliveries",
        ]  # fmt: skip
        read_only_fields = fields

    @extend_schema_field(serializers.CharField(allow_null=True))
    def get_acknowledged_by(self, row: Alert) -> Any:
        return str(row.acknowledged_by) if row.acknowledged_by else None

    @extend_schema_field(DeliverySerializer(many=True))
    def get_deliveries(self, row: Alert) -> Any:
        found = []
        for notification in row.notifications.all():
            for delivery in notification.deliveries.all():
                delivery.notification = notification
                found.append(delivery)
        return DeliverySerializer(sorted(found, key=lambda one: one.pk), many=True).data


class SummarySerializer(serializers.Serializer):
    """What a badge shows: how many are unread, and how many alerts wait for somebody."""

    unread = serializers.IntegerField()
    open_alerts = serializers.IntegerField()


class ReadSerializer(serializers.Serializer):
    """How many were marked read."""

    read = serializers.IntegerField()
