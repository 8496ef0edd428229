"""Application configuration of the notifications app."""

from django.apps import AppConfig


class NotificationsConfig(AppConfig):
    """Register the app's call, text and push handlers, retention, live updates and personal data at startup."""

    name = "notifications"

    def ready(self) -> None:
        from accounts import alert_phones
        from accounts import services as accounts
        from dispatch.core.privacy.personal_data import register
        from dispatch.jobs import technician_messages
        from dispatch.technicians import services as technicians
        from notifications import checks, live_updates, metrics, retention, translation  # noqa: F401
        from notifications.channels import phone_codes, sms, voice
        from notifications.personal import PART
        from notifications.services import (
            ownership,
            phone_confirmation,
            push_messages,
            push_sign_out,
            push_subscriptions,
        )

        voice.register()
        sms.register()
        phone_codes.register()
        alert_phones.register(phone_confirmation.alert_phone)
        technician_messages.register(push_messages.write_for_technician)
        push_sign_out.register()
        accounts.on_member_left(push_subscriptions.remove_of_member)
        accounts.on_member_left(ownership.release_of_member)
        technicians.on_links_voided(push_subscriptions.remove_of_technician)
        retention.register()
        translation.register()
        live_updates.start_listening()
        register("notifications", PART)
