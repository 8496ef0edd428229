"""Configure the leads app."""

from django.apps import AppConfig


class LeadsConfig(AppConfig):
    """Connect leads to telephony, Redis and the handling of personal data at startup."""

    name = "dispatch.leads"
    label = "leads"

    def ready(self) -> None:
        from django.db.models.signals import post_delete, post_save

        from dispatch.core.privacy.personal_data import register
        from dispatch.core.redis import generation
        from dispatch.leads import checks, eligibility, grouped_reports, history, metrics, retention, voice  # noqa: F401
        from dispatch.leads.models import CallingRule, ClosedDay, DispositionRule, Holiday, RetryRule
        from dispatch.leads.personal import PART
        from dispatch.leads.services import reconciliation

        history.register()
        voice.register()
        grouped_reports.register()
        generation.on_lost(reconciliation.rebuild_schedule)
        # Changed rules apply immediately in this process; other processes read them again within a second.
        for model in (CallingRule, ClosedDay, DispositionRule, Holiday, RetryRule):
            for changed in (post_save, post_delete):
                changed.connect(lambda **_: eligibility.reset(), sender=model, weak=False)
        retention.register()
        register("leads", PART)
