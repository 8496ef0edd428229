"""The event scheduling manager."""
