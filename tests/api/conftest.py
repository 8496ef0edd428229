"""The two tenants of the walk."""

from tests.tenants import ours, theirs, world

__all__ = ["ours", "theirs", "world"]
