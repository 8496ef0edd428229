"""Store sessions in the database with the idle and the absolute limit (SESSION_ENGINE)."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

from django.conf import settings
from django.contrib.sessions.backends.db import SessionStore as DatabaseStore

from dispatch.core import clock

# When the user signed in, in Unix seconds.
SIGNED_IN_AT = "signed_in_at"
# When the limits of a session began that is older than they are, in Unix seconds. It does not prove a sign-in.
LIMITED_FROM = "limited_from"


def expiry_of(data: Any) -> datetime:
    """Return when a session with this content ends if it is used now: by the idle or the absolute limit."""
    idle = clock.now() + timedelta(hours=settings.SESSION_IDLE_HOURS)
    if (began_at := data.get(SIGNED_IN_AT, data.get(LIMITED_FROM))) is None:
        return idle
    return min(idle, datetime.fromtimestamp(began_at, UTC) + timedelta(hours=settings.SESSION_MAX_HOURS))


def has_limits(data: Any) -> bool:
    """Return whether a session with this content ends by the absolute limit."""
    return SIGNED_IN_AT in data or LIMITED_FROM in data


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
