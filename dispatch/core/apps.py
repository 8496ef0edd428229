"""Configure the core app."""

from django.apps import AppConfig
from django.conf import settings


class CoreConfig(AppConfig):
    """Register core's checks and retention rules at startup, and arm crash points in development."""

    name = "dispatch.core"
    label = "core"

    def ready(self) -> None:
        from dispatch.core import checks, fault_injection  # noqa: F401
        from dispatch.core.db import clock_difference
        from dispatch.core.labels import translate_model_labels
        from dispatch.core.privacy import event_retention

        event_retention.register()
        clock_difference.install()
        translate_model_labels()
        if settings.DEVELOPMENT:
            fault_injection.load_from_environment()
