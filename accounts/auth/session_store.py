"""Store sessions in the database with the idle and the absolute limit (SESSION_ENGINE)."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

from django.conf import settings
from django.contrib.sessions.backends.db import SessionStore as DatabaseStore

from dispatch.core import clock

# When the user signed in, in Unix seconds.
SIGNED_IN_AT = "signed_in_at"


def expiry_of(data: Any) -> datetime:
    """Return when a session with this content ends if it is used now: by the idle or the absolute limit."""
    idle = clock.now() + timedelta(hours=settings.SESSION_IDLE_HOURS)
    if (signed_in_at := data.get(SIGNED_IN_AT)) is None:
        return idle
    return min(idle, datetime.fromtimestamp(signed_in_at, UTC) + timedelta(hours=settings.SESSION_MAX_HOURS))


class SessionStore(DatabaseStore):
    """Set `expire_date` on each save. Django does not load a session after it, so no other check is needed.

    `expires_at` is the `expire_date` that was loaded; None for a session that this request created.
    """

    expires_at: datetime | None = None

    def create_model_instance(self, data: Any) -> Any:
        row = super().create_model_instance(data)
        row.expire_date = expiry_of(data)
        return row

    def _get_session_from_db(self) -> Any:
        row = super()._get_session_from_db()  # type: ignore[misc]
        self.expires_at = row.expire_date if row else None
        return row
