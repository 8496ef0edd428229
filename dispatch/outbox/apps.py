"""Configure the outbox app."""

from django.apps import AppConfig


class OutboxConfig(AppConfig):
    """Register the outbox's checks, metrics, retention rule and personal-data handler at startup."""

    name = "dispatch.outbox"
    label = "outbox"

    def ready(self) -> None:
        from dispatch.core.privacy.personal_data import register
        from dispatch.core.redis import generation
        from dispatch.outbox import checks, history, metrics, publisher  # noqa: F401
        from dispatch.outbox.personal import PART
        from dispatch.outbox.services import retention

        # Flushing Redis loses the pointers in it; pointers in another queue are unaffected.
        generation.on_lost(publisher.publish_lost)
        history.register()
        retention.register()
        register("outbox", PART)
