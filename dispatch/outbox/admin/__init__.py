"""Provide the admin pages of the outbox."""

from dispatch.outbox.admin import endpoints, messages

__all__ = ["endpoints", "messages"]
