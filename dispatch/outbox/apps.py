from django.apps import AppConfig


class OutboxConfig(AppConfig):
    name = "dispatch.outbox"
    label = "outbox"

    def ready(self) -> None:
        from dispatch.core import generation
        from dispatch.core.personal import register
        from dispatch.outbox import checks, metrics, publishing  # noqa: F401
        from dispatch.outbox.personal import PART
        from dispatch.outbox.services import forgetting

        # A Redis that lost its data lost the pointers in it; another queue's are where they were.
        generation.on_lost(publishing.publish_lost)
        forgetting.register()
        register("outbox", PART)
