from django.apps import AppConfig


class JobsConfig(AppConfig):
    name = "dispatch.jobs"
    label = "jobs"

    def ready(self) -> None:
        from dispatch.capacity import lines
        from dispatch.core import own_retention
        from dispatch.core.personal import register
        from dispatch.jobs import inbound, line_waiters, metrics, offer_calls, sql  # noqa: F401
        from dispatch.jobs.personal import PART

        offer_calls.register()
        inbound.register()
        lines.when_freed(line_waiters.line_freed)
        for condition in sql.EVENTS_OF_OPEN_JOBS:
            own_retention.keep_events(condition)
        register("jobs", PART)
