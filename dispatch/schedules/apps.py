"""Configure the schedules app."""

from django.apps import AppConfig

from dispatch.core.languages import mark


class SchedulesConfig(AppConfig):
    """Register kinds, checks, metrics, retention rules and the personal-data handler at startup."""

    name = "dispatch.schedules"
    label = "schedules"

    def ready(self) -> None:
        from dispatch.core.privacy import personal_data, retention
        from dispatch.core.redis import generation
        from dispatch.core.runtime import autoscaler_metrics as scaling_metrics  # noqa: F401
        from dispatch.schedules import checks, history, kinds, metrics  # noqa: F401
        from dispatch.schedules.personal import PART
        from dispatch.schedules.services import held_runs, reconciliation
        from dispatch.schedules.services import retention as run_retention

        history.register()
        held_runs.register()
        kinds.load_kinds()
        # When Redis loses its data, it also loses the messages on its queues.
        generation.on_lost(reconciliation.resend_all)
        personal_data.register("schedules", PART)
        retention.register(
            "runs", run_retention.RUN_DAYS, run_retention.delete_expired_runs, label=mark("Ended runs")
        )
        retention.register(
            "schedules",
            run_retention.SCHEDULE_DAYS,
            run_retention.delete_expired_schedules,
            label=mark("Schedules without runs"),
        )
