"""Validate API bodies strictly: unknown fields are errors, and lists are bounded.

DRF validates every item of a list before its `max_length` and reports an error for each, so 150 KB of `[]` would
cost seconds of CPU and megabytes of response. `StrictSerializer` checks the length of every list and object before
its items; the fields here also stop after the first errors.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from django.core.exceptions import ValidationError as ModelValidationError
from rest_framework import serializers
from rest_framework.fields import get_error_detail
from rest_framework.settings import api_settings

# Maximum items of a list, or members of an object, for a field without a limit.
MAX_ITEMS = 1000
# Maximum items with reported errors; validation stops there.
MAX_ITEM_ERRORS = 50
MAX_UNKNOWN_REPORTED = 20
# Rows of a `LatestSerializer`.
MAX_LATEST = 100


class LatestSerializer(serializers.ListSerializer):
    """Serialize the last MAX_LATEST rows of a relation that has no limit, oldest first."""

    def to_representation(self, data: Any) -> Any:
        return super().to_representation(list(data.order_by("-pk")[:MAX_LATEST])[::-1])


class StrictSerializer(serializers.Serializer):
    """Reject unknown fields, so that misspelled fields are not silently ignored.

    Read-only fields may be sent back unchanged. Lists that are too long are rejected before their items are
    validated. The rows of a list replace all former ones, so each must be complete, also in a PATCH.
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
            self._check_complete(data)
        return super().to_internal_value(data)

    def _check_complete(self, data: dict[Any, Any]) -> None:
        """Require the fields of a list's row in a PATCH, of which DRF requires no field at any depth."""
        if isinstance(self.parent, serializers.ListSerializer) and getattr(self.root, "partial", False):
            missing = [name for name, field in self.fields.items() if field.required and name not in data]
            if missing:
                required = serializers.Field.default_error_messages["required"]
                raise serializers.ValidationError(
                    {name: serializers.ErrorDetail(str(required), code="required") for name in missing}
                )

    def _check_lengths(self, data: dict[Any, Any]) -> None:
        """Reject a list that is too long before any of its items is validated."""
        errors = {}
        for name, field in self.fields.items():
            if not field.read_only and (error := length_error(field, data.get(name))):
                errors[name] = [error]
        if errors:
            raise serializers.ValidationError(errors)


def length_error(field: Any, value: Any) -> serializers.ErrorDetail | None:
    """Return the error of a list or object that exceeds its field's limit, without validating its items."""
    if isinstance(field, serializers.JSONField) or not isinstance(value, list | Mapping):
        return None  # a JSON field holds any value; the body's size limits it
    if isinstance(field, serializers.DictField) and isinstance(field.child, _Unvalidated):
        return None
    if isinstance(value, Mapping) and not isinstance(field, serializers.DictField):
        return None  # a nested serializer has fixed fields
    limit = getattr(field, "max_length", None) or MAX_ITEMS
    if len(value) <= limit:
        return None
    unit = "items" if isinstance(value, list) else "members"
    return serializers.ErrorDetail(f"At most {limit:,} {unit} allowed; got {len(value):,}.", code="max_length")


_Unvalidated: type = type(serializers.DictField().child)


class BoundedListField(serializers.ListField):
    """A ListField that checks the length first and stops after MAX_ITEM_ERRORS items with errors."""

    def __init__(self, **options: Any) -> None:
        options.setdefault("max_length", MAX_ITEMS)
        super().__init__(**options)

    def to_internal_value(self, data: Any) -> list[Any]:
        if error := length_error(self, data):
            raise serializers.ValidationError([error])
        return super().to_internal_value(data)

    def run_child_validation(self, data: Any) -> list[Any]:
        result: list[Any] = []
        errors: dict[int, Any] = {}
        for index, item in enumerate(data):
            try:
                result.append(self.child.run_validation(item))
            except serializers.ValidationError as error:
                errors[index] = error.detail
            except ModelValidationError as error:
                errors[index] = get_error_detail(error)
            if len(errors) >= MAX_ITEM_ERRORS:
                break
        if errors:
            raise serializers.ValidationError(errors)  # type: ignore[arg-type]
        return result


class BoundedListSerializer(serializers.ListSerializer):
    """A ListSerializer for bodies: checks the length first and stops after MAX_ITEM_ERRORS items with errors."""

    def to_internal_value(self, data: Any) -> list[Any]:
        if error := length_error(self, data):
            raise serializers.ValidationError({api_settings.NON_FIELD_ERRORS_KEY: [error]})
        self._failed = 0
        return super().to_internal_value(data)

    def run_child_validation(self, data: Any) -> Any:
        if self._failed >= MAX_ITEM_ERRORS:
            return None  # the body is rejected already
        try:
            return super().run_child_validation(data)
        except serializers.ValidationError:
            self._failed += 1
            raise
