from django.apps import AppConfig


class SchedulesConfig(AppConfig):
    name = "dispatch.schedules"
    label = "schedules"

    def ready(self) -> None:
        from dispatch.schedules.scaling import metrics  # noqa: F401  (its gauges register themselves)
