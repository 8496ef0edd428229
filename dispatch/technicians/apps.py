"""Application configuration of the technicians slice."""

from django.apps import AppConfig


class TechniciansConfig(AppConfig):
    """Connect the slice's signals, and register its checks and personal data at startup."""

    name = "dispatch.technicians"
    label = "technicians"

    def ready(self) -> None:
        from dispatch.core.privacy.personal_data import register
        from dispatch.technicians import checks, signals  # noqa: F401
        from dispatch.technicians.personal import PART

        register("technicians", PART)
