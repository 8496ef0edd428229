"""Define the admin pages of organizations, members and keys, and the base classes of every admin page."""

from accounts.admin import api_keys, handover_notes, limits, organizations, retention, single_sign_on

__all__ = ["api_keys", "handover_notes", "limits", "organizations", "retention", "single_sign_on"]
