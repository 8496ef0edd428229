from django.apps import AppConfig


class TechniciansConfig(AppConfig):
    name = "dispatch.technicians"
    label = "technicians"

    def ready(self) -> None:
        from dispatch.technicians import signals  # noqa: F401
