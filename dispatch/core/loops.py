"""Define the loops of `core`."""

from dispatch.core.redis import generation
from dispatch.core.runtime.loops import Loop


def watch_redis() -> None:
    """Detect that Redis has lost its data, and rebuild it."""
    generation.ensure_generation()


LOOPS = [Loop("redis_generation", watch_redis, interval_s=1.0)]
