"""The outbox in the admin: endpoints in `admin_endpoints`, messages and groups in `admin_messages`."""

from dispatch.outbox import admin_endpoints, admin_messages

__all__ = ["admin_endpoints", "admin_messages"]
