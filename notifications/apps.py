from django.apps import AppConfig


class NotificationsConfig(AppConfig):
    name = "notifications"

    def ready(self) -> None:
        from dispatch.core.personal import register
        from notifications import ageing, alert_calls, alert_texts, checks, hints, metrics  # noqa: F401
        from notifications.personal import PART

        alert_calls.register()
        alert_texts.register()
        ageing.register()
        hints.listen()
        register("notifications", PART)
