"""Admin pages of notifications: `notices`, `channels` and `browsers`."""

from notifications.admin import browsers, channels, notices

__all__ = ["browsers", "channels", "notices"]
