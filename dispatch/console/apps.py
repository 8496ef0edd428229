"""Application configuration of the console."""

from django.apps import AppConfig


class ConsoleConfig(AppConfig):
    """The console has templates and static files, but no models."""

    name = "dispatch.console"
    label = "console"

    def ready(self) -> None:
        from dispatch.console import checks  # noqa: F401
