from django.apps import AppConfig
from django.conf import settings


class CoreConfig(AppConfig):
    name = "dispatch.core"
    label = "core"

    def ready(self) -> None:
        from dispatch.core import checks, faults, own_retention  # noqa: F401

        own_retention.register()
        if settings.DEVELOPMENT:
            faults.load_from_environment()
