"""Configure the capacity app."""

from django.apps import AppConfig


class CapacityConfig(AppConfig):
    """Register how leases and rates in Redis are rebuilt."""

    name = "dispatch.capacity"
    label = "capacity"

    def ready(self) -> None:
        from dispatch.capacity import line_leases, redis_scripts
        from dispatch.core.redis import generation

        generation.on_lost(line_leases.rebuild_leases)
        redis_scripts.on_redis_recovery(line_leases.catch_up_leases)
