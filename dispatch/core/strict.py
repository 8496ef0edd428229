"""Bodies of the API that refuse what they do not know."""

from __future__ import annotations

from typing import Any

from rest_framework import serializers

MOST_TOLD = 20


class Strict(serializers.Serializer):
    """Refuses fields that it does not know, so that a misspelled one is not silently lost. Those that are only
    read may be sent back as they came."""

    def to_internal_value(self, data: Any) -> Any:
        if isinstance(data, dict) and (unknown := set(data) - set(self.fields)):
            raise serializers.ValidationError(
                {
                    name: serializers.ErrorDetail("There is no such field.", code="unknown")
                    for name in sorted(unknown)[:MOST_TOLD]
                }
            )
        return super().to_internal_value(data)
