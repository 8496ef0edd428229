"""Provide the two tenants of the walk."""

from tests.support.tenants import ours, theirs, world

__all__ = ["ours", "theirs", "world"]
