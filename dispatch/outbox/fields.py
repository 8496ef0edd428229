"""Store a JSON value encrypted at rest: an endpoint's headers may contain a password."""

from __future__ import annotations

import json
from typing import Any

from dispatch.core.crypto import EncryptedTextField


class EncryptedJSONField(EncryptedTextField):
    """Hold a JSON value in Python and a Fernet token in the table. Not searchable."""

    def get_prep_value(self, value: Any) -> Any:
        return super().get_prep_value(value if value is None or isinstance(value, str) else json.dumps(value))

    def from_db_value(self, value: str | None, expression: Any, connection: Any) -> Any:
        text = super().from_db_value(value, expression, connection)
        return json.loads(text) if text else text

    def to_python(self, value: Any) -> Any:
        return value  # TextField would convert it to text

    def value_to_string(self, obj: Any) -> str:
        return json.dumps(self.value_from_object(obj))
