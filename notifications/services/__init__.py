"""Change notifications, alerts and preferences. No other code does."""

from notifications.services.acknowledgement import acknowledge, acknowledge_alert
from notifications.services.notifications import handle, people_of, read, unread_of
from notifications.services.preferences import choices_of, reset_preferences, save_preference, wants_of

__all__ = [
    "acknowledge",
    "acknowledge_alert",
    "choices_of",
    "handle",
    "people_of",
    "read",
    "reset_preferences",
    "save_preference",
    "unread_of",
    "wants_of",
]
