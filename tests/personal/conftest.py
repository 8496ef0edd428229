"""The two tenants of the walks; `made` is the one whose data is asked for."""

from tests.support.tenants import ours as made
from tests.support.tenants import theirs, world

__all__ = ["made", "theirs", "world"]
