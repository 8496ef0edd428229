from django.apps import AppConfig


class TechniciansConfig(AppConfig):
    name = "dispatch.technicians"
    label = "technicians"

    def ready(self) -> None:
        from dispatch.core.personal import register
        from dispatch.technicians import signals  # noqa: F401
        from dispatch.technicians.personal import PART

        register("technicians", PART)
