"""Serialize bulk imports, and validate their rows' container."""

from __future__ import annotations

from typing import Any

from drf_spectacular.utils import extend_schema_field
from rest_framework import serializers

from dispatch.core.api.serializers import BoundedListField, StrictSerializer
from dispatch.schedules.models import BulkError, BulkImport

MAX_IN_BULK = 100_000


class BulkFormSerializer(StrictSerializer):
    """Up to 100,000 schedules. `defaults` applies to each row, unless the row overrides it."""

    defaults = serializers.DictField(required=False, default=dict)
    schedules = BoundedListField(
        child=serializers.DictField(),
        allow_empty=False,
        max_length=MAX_IN_BULK,
        help_text=("The fields of a single schedule."),
    )


class BulkSerializer(serializers.ModelSerializer):
    """The progress of a bulk import. It is `done` when created + refused = total."""

    class Meta:
        model = BulkImport
        fields = ["id", "status", "total", "created", "refused", "created_at", "ended_at"]
        read_only_fields = fields


class BulkErrorSerializer(serializers.ModelSerializer):
    """The reasons why a row was rejected. Rows are counted from 0."""

    class Meta:
        model = BulkError
        fields = ["row", "errors"]
        read_only_fields = fields


class BulkDetailSerializer(BulkSerializer):
    """A bulk import with its first 100 rejected rows."""

    row_errors = serializers.SerializerMethodField()

    class Meta(BulkSerializer.Meta):
        fields = [*BulkSerializer.Meta.fields, "row_errors"]
        read_only_fields = fields

    @extend_schema_field(BulkErrorSerializer(many=True))
    def get_row_errors(self, row: BulkImport) -> Any:
        return BulkErrorSerializer(row.row_errors.all()[:100], many=True).data
