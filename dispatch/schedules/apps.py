from django.apps import AppConfig


class SchedulesConfig(AppConfig):
    name = "dispatch.schedules"
    label = "schedules"

    def ready(self) -> None:
        from dispatch.core import generation, personal, retention
        from dispatch.schedules import checks, kinds, metrics  # noqa: F401
        from dispatch.schedules.personal import PART
        from dispatch.schedules.scaling import metrics as scaling_metrics  # noqa: F401
        from dispatch.schedules.services import forgetting, reconciling

        kinds.load()
        # A Redis that lost its data lost the messages in it.
        generation.on_lost(reconciling.send_again)
        personal.register("schedules", PART)
        retention.register("runs", forgetting.RUN_DAYS, forgetting.forget_runs, label="Runs that have ended")
        retention.register(
            "schedules", forgetting.SCHEDULE_DAYS, forgetting.forget_schedules, label="Schedules without runs"
        )
