"""Serialize notifications and alerts for the API and the socket."""

from __future__ import annotations

from typing import Any

from django.db.models import Case, OuterRef, QuerySet, Subquery, When
from django.db.models.functions import Coalesce
from drf_spectacular.utils import extend_schema_field
from rest_framework import serializers

from accounts.api.base import OwnedSerializer
from dispatch.core.languages import gettext as _
from dispatch.jobs.models import Job
from notifications.models import Alert, Delivery, Notification
from notifications.rendering import outcome_of, path_to, title_and_body
from notifications.rules import BY_KIND


def with_asked_at(rows: QuerySet) -> QuerySet:
    """Annotate notifications with the time of the customer's request (`asked_at`), for jobs."""
    job = Job.objects.filter(pk=OuterRef("subject_id"), organization_id=OuterRef("organization_id"))
    asked_at = job.values_list(Coalesce("submission__created_at", "created_at"))
    return rows.annotate(asked_at=Case(When(subject_type="job", then=Subquery(asked_at))))


class NotificationSerializer(OwnedSerializer):
    """A notification.

    `kind_label`: the name of its kind, such as "A job may be a duplicate".
    `acknowledged_by`: name of the user who acknowledged the alert. `settled_how`: how its cause ended. `page`:
    path of the console page for its subject, or empty. `asked_at`: when the job's customer sent the request; null
    for other subjects.
    """

    asked_at = serializers.SerializerMethodField()
    acknowledged_by = serializers.SerializerMethodField()
    page = serializers.SerializerMethodField()
    kind_label = serializers.SerializerMethodField()

    class Meta:
        model = Notification
        fields = [
            "id", "alert", "event_id", "kind", "kind_label", "level", "title", "body", "subject_type",
            "subject_id", "page", "created_at", "asked_at", "read_at", "acknowledged_at", "acknowledged_by",
            "settled_at", "settled_how",
        ]  # fmt: skip
        read_only_fields = fields

    @extend_schema_field(serializers.DateTimeField(allow_null=True))
    def get_asked_at(self, row: Notification) -> Any:
        if not hasattr(row, "asked_at"):
            row = with_asked_at(Notification.objects.filter(pk=row.pk)).get()
        asked_at = getattr(row, "asked_at", None)
        return asked_at.isoformat() if asked_at else None

    @extend_schema_field(serializers.CharField(allow_null=True))
    def get_acknowledged_by(self, row: Notification) -> Any:
        return str(row.acknowledged_by) if row.acknowledged_by else None

    def to_representation(self, row: Notification) -> dict[str, Any]:
        """Return the fields, with title, details and outcome in the active language: English for API keys."""
        shown: dict[str, Any] = super().to_representation(row)
        title, body = title_and_body(row)
        return {**shown, "title": title, "body": body, "settled_how": outcome_of(row)}

    def get_kind_label(self, row: Notification) -> str:
        rule = BY_KIND.get(row.kind)
        return _(rule.label) if rule else row.kind

    def get_page(self, row: Notification) -> str:
        return path_to(row)


class DeliverySerializer(serializers.ModelSerializer):
    """One delivery of an alert: recipient, channel and status.

    `step`: the escalation step; null if the delivery was immediate.
    """

    to = serializers.SerializerMethodField(help_text="The user, or the name of the team's channel.")

    class Meta:
        model = Delivery
        fields = ["id", "to", "channel", "cycle", "step", "status", "attempts", "error", "created_at", "ended_at"]
        read_only_fields = fields

    def get_to(self, row: Delivery) -> str:
        return str(row.notification.user or row.destination)


class AlertSerializer(OwnedSerializer):
    """An alert. `next_action_at`: when it next escalates. `cycle` and `step`: its position in the plan."""

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
        deliveries = []
        for notification in row.notifications.all():
            for delivery in notification.deliveries.all():
                delivery.notification = notification
                deliveries.append(delivery)
        return DeliverySerializer(sorted(deliveries, key=lambda delivery: delivery.pk), many=True).data


class SummarySerializer(serializers.Serializer):
    """Badge counts: unread notifications and unacknowledged alerts."""

    unread = serializers.IntegerField()
    open_alerts = serializers.IntegerField()


class ReadSerializer(serializers.Serializer):
    """The number of notifications that were marked read."""

    read = serializers.IntegerField()
