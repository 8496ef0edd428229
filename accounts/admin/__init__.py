"""Define the admin pages of organizations, members and keys, and the base classes of every admin page."""

from accounts.admin import organizations

__all__ = ["organizations"]
