"""A JSON value that is encrypted at rest: an endpoint's headers may carry a password."""

from __future__ import annotations

import json
from typing import Any

from dispatch.core.crypto import EncryptedTextField


class EncryptedJSONField(EncryptedTextField):
    """A JSON value in Python, a Fernet token in the table. Not searchable."""

    def get_prep_value(self, value: Any) -> Any:
        return super().get_prep_value(value if value is None or isinstance(value, str) else json.dumps(value))

    def from_db_value(self, value: str | None, expression: Any, connection: Any) -> Any:
        text = super().from_db_value(value, expression, connection)
        return json.loads(text) if text else text

    def to_python(self, value: Any) -> Any:
        return value  # TextField would make text of it

    def value_to_string(self, obj: Any) -> str:
        return json.dumps(self.value_from_object(obj))
