"""Provide the admin pages of the outbox."""

from dispatch.outbox.admin import catalog, endpoints, messages, portal

__all__ = ["catalog", "endpoints", "messages", "portal"]
