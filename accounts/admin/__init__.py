"""Define the admin pages of organizations, members and keys, and the base classes of every admin page."""

from accounts.admin import api_keys, limits, organizations, retention

__all__ = ["api_keys", "limits", "organizations", "retention"]
