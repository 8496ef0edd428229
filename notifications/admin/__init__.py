"""Admin pages of notifications: `notices` and `channels`."""

from notifications.admin import channels, notices

__all__ = ["channels", "notices"]
