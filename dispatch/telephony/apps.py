from django.apps import AppConfig


class TelephonyConfig(AppConfig):
    name = "dispatch.telephony"
    label = "telephony"

    def ready(self) -> None:
        from dispatch.capacity.truth import register_truth
        from dispatch.telephony import ageing, checks  # noqa: F401
        from dispatch.telephony.sql import OpenCalls

        register_truth(OpenCalls())
        ageing.register()
