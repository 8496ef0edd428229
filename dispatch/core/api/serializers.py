"""Validate API bodies strictly: unknown fields are errors."""

from __future__ import annotations

from typing import Any

from rest_framework import serializers

from dispatch.core.api.lists import length_error

MAX_UNKNOWN_REPORTED = 20


class StrictSerializer(serializers.Serializer):
    """Reject unknown fields, so that misspelled fields are not silently ignored.

    Read-only fields may be sent back unchanged. Lists that are too long are rejected before their items are
    validated.
    """

    def to_internal_value(self, data: Any) -> Any:
        if isinstance(data, dict) and (unknown := set(data) - set(self.fields)):
            raise serializers.ValidationError(
                {
                    name: serializers.ErrorDetail("Unknown field.", code="unknown")
                    for name in sorted(unknown)[:MAX_UNKNOWN_REPORTED]
                }
            )
        if isinstance(data, dict):
            self._check_lengths(data)
        return super().to_internal_value(data)

    def _check_lengths(self, data: dict[Any, Any]) -> None:
        """Reject a list that is too long before any of its items is validated."""
        errors = {}
        for name, field in self.fields.items():
            if not field.read_only and (error := length_error(field, data.get(name))):
                errors[name] = [error]
        if errors:
            raise serializers.ValidationError(errors)
