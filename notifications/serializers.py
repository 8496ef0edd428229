"""The shape of a notification, in the API and on the socket."""

from __future__ import annotations

from typing import Any

from drf_spectacular.utils import extend_schema_field
from rest_framework import serializers

from accounts.owned_api import OwnedSerializer
from notifications.models import Notification


class NotificationSerializer(OwnedSerializer):
    """`acknowledged_by` is who took an alert on, by name; `settled_how` what ended its cause."""

    acknowledged_by = serializers.SerializerMethodField()

    class Meta:
        model = Notification
        fields = [
            "id", "event_id", "kind", "level", "title", "body", "subject_type", "subject_id", "created_at",
            "read_at", "acknowledged_at", "acknowledged_by", "settled_at", "settled_how",
        ]  # fmt: skip
        read_only_fields = fields

    @extend_schema_field(serializers.CharField(allow_null=True))
    def get_acknowledged_by(self, row: Notification) -> Any:
        return str(row.acknowledged_by) if row.acknowledged_by else None


class SummarySerializer(serializers.Serializer):
    """What a badge shows: how many are unread, and how many alerts wait for somebody."""

    unread = serializers.IntegerField()
    open_alerts = serializers.IntegerField()


class ReadSerializer(serializers.Serializer):
    """How many were marked read."""

    read = serializers.IntegerField()
