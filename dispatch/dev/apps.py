"""Configure the development tools."""

from django.apps import AppConfig


class DevConfig(AppConfig):
    """Register the getting-started tips of the demo."""

    name = "dispatch.dev"
    label = "dev"

    def ready(self) -> None:
        from dispatch.dev.demo import hints  # noqa: F401
