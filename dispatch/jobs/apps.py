"""Application configuration of the jobs slice."""

from django.apps import AppConfig


class JobsConfig(AppConfig):
    """Register the slice's handlers, recovery, metrics and retention conditions at startup."""

    name = "dispatch.jobs"
    label = "jobs"

    def ready(self) -> None:
        from django.conf import settings

        from accounts import services as accounts
        from dispatch.capacity import line_leases
        from dispatch.core.privacy import event_retention
        from dispatch.core.privacy.personal_data import register
        from dispatch.core.runtime.rq_worker import before_first_job
        from dispatch.core.zips import load_zip_codes
        from dispatch.jobs import history, metrics, retention, sql  # noqa: F401
        from dispatch.jobs.channels import customer, grouped_reports, inbound, news, preview, voice
        from dispatch.jobs.personal import PART
        from dispatch.jobs.services import config, leaving, line_wakeups, recovery
        from dispatch.technicians import services as technicians

        before_first_job(settings.DISPATCH_QUEUE, load_zip_codes)
        history.register()
        recovery.register()
        technicians.on_leaving(
            technicians.LeavingHandler(
                leaving.lock_jobs, leaving.apply_answers, leaving.give_back_all, leaving.withdraw_offers
            )
        )
        voice.register()
        grouped_reports.register()
        inbound.register()
        news.register()
        customer.register()
        preview.register()
        accounts.on_time_zone_change(config.wake_quiet_jobs)
        line_leases.on_lines_released(line_wakeups.line_freed)
        for condition in sql.EVENTS_OF_OPEN_JOBS:
            event_retention.keep_events(condition)
        retention.register()
        register("jobs", PART)
