"""Everything that changes notifications and alerts, by what it does."""

from notifications.services.acknowledging import acknowledge, acknowledge_alert
from notifications.services.preferences import choices_of, forget_preferences, save_preference, wants_of
from notifications.services.reading import read, unread_of
from notifications.services.writing import handle, people_of

__all__ = [
    "acknowledge",
    "acknowledge_alert",
    "choices_of",
    "forget_preferences",
    "handle",
    "people_of",
    "read",
    "save_preference",
    "unread_of",
    "wants_of",
]
