from django.apps import AppConfig


class LeadsConfig(AppConfig):
    name = "dispatch.leads"
    label = "leads"

    def ready(self) -> None:
        from django.db.models.signals import post_delete, post_save

        from dispatch.core import generation
        from dispatch.core.personal import register
        from dispatch.leads import calls, gating, metrics  # noqa: F401  (its gauges register themselves)
        from dispatch.leads.models import CallingRule, ClosedDay, Holiday, RetryRule
        from dispatch.leads.personal import PART
        from dispatch.leads.services import repairing

        calls.register()
        generation.on_lost(repairing.rebuild)
        # In this process at once; the others read it again within a second.
        for model in (CallingRule, ClosedDay, Holiday, RetryRule):
            for changed in (post_save, post_delete):
                changed.connect(lambda **_: gating.forget(), sender=model, weak=False)
        register("leads", PART)
