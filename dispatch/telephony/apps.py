from django.apps import AppConfig


class TelephonyConfig(AppConfig):
    name = "dispatch.telephony"
    label = "telephony"

    def ready(self) -> None:
        from dispatch.capacity import providers
        from dispatch.capacity.truth import register_truth
        from dispatch.core.personal import register
        from dispatch.telephony import ageing, checks, metrics, number_tests  # noqa: F401  (some register themselves)
        from dispatch.telephony.personal import PART
        from dispatch.telephony.providers import NAMES
        from dispatch.telephony.sql import OpenCalls

        providers.register(NAMES)
        register_truth(OpenCalls())
        ageing.register()
        number_tests.register()
        register("telephony", PART)
