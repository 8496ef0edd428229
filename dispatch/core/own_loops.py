"""Core's own loops."""

from dispatch.core import generation
from dispatch.core.loops import Loop


def watch_redis() -> None:
    """Finds a Redis that lost its data and rebuilds it."""
    generation.ensure()


LOOPS = [Loop("redis_generation", watch_redis, interval_s=1.0)]
