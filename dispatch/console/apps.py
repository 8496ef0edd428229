from django.apps import AppConfig


class ConsoleConfig(AppConfig):
    name = "dispatch.console"
    label = "console"

    def ready(self) -> None:
        from dispatch.console.demo import hints  # noqa: F401
