"""Configure the telephony app."""

from django.apps import AppConfig


class TelephonyConfig(AppConfig):
    """Connect telephony to capacity, retention and the handling of personal data at startup."""

    name = "dispatch.telephony"
    label = "telephony"

    def ready(self) -> None:
        from dispatch.capacity import providers
        from dispatch.capacity.lease_reconciliation import register_open_call_reader
        from dispatch.core.privacy.personal_data import register
        from dispatch.core.runtime import reachability
        from dispatch.telephony import checks, error_texts, history, metrics, number_check_calls, retention  # noqa: F401  (some register themselves)
        from dispatch.telephony.personal import PART
        from dispatch.telephony.providers import NAMES, probe_server
        from dispatch.telephony.services import spend_caps
        from dispatch.telephony.services.sms_requests import wake_held_texts
        from dispatch.telephony.sql import OpenCalls

        providers.register(NAMES)
        reachability.process.probe = probe_server
        register_open_call_reader(OpenCalls())
        history.register()
        retention.register()
        number_check_calls.register()
        spend_caps.on_resume(wake_held_texts)
        register("telephony", PART)
