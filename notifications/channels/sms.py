"""Handle alert texts, the replies to them, and calls to the number that sent them.

Registered with telephony's handlers for purpose `alert`.
"""

from __future__ import annotations

from datetime import datetime

from accounts.tenancy import actor_of
from dispatch.core import languages
from dispatch.core.accents import without_accents
from dispatch.core.languages import gettext as _
from dispatch.telephony import handlers
from dispatch.telephony.handlers import VoicePrompt
from dispatch.telephony.models import InboundCall, Text
from notifications import rendering
from notifications.channels.voice import ACKNOWLEDGE_KEY, acknowledge_by_key, load_delivery, speak
from notifications.models import Alert, Delivery
from notifications.services import acknowledge_alert, alert_links, phone_confirmation
from notifications.services.acknowledgement import TEXT
from notifications.services.deliveries import apply_text_report, find_obstacle, is_needed, recipient_of

# Replies that acknowledge an alert.
ACKNOWLEDGING_REPLIES = frozenset({"1", "ACK", "OK", "YES", "SI"})


class AlertSmsHandler:
    """Handler for texts and inbound calls of purpose `alert`. A text's subject is a Delivery."""

    def should_send(self, text: Text) -> bool:
        """Return False if the alert was acknowledged or resolved, or the person has left or has another phone."""
        if text.subject_id is None:
            return True
        row = load_delivery(text.subject_id)
        has_phone = str(recipient_of(row).phone) == str(text.to_phone)
        return has_phone and is_needed(row.notification) and not find_obstacle(row)

    def on_status_change(self, text: Text) -> None:
        """Record the text's status on its delivery."""
        apply_text_report(text)

    def on_sms(self, text: Text) -> str | None:
        """Acknowledge the alert most recently sent to that phone if the reply is 1, OK, YES or ACK."""
        if without_accents(text.body).strip().strip(".!").upper() not in ACKNOWLEDGING_REPLIES:
            return None
        last = _last_to(text.organization_id, text.from_phone)
        if last is None:
            return None
        with languages.override(rendering.language_of(last.notification)):
            return _acknowledge_by_text(last, TEXT)

    def on_help(self, text: Text) -> str | None:
        last = _last_to(text.organization_id, text.from_phone)
        if last is None:
            return None
        with languages.override(rendering.language_of(last.notification)):
            words = _("{name}: alerts. Reply 1 to acknowledge an alert, STOP to stop receiving texts.")
            return words.format(name=text.organization.name)

    def on_stop(self, text: Text) -> None:
        """Do nothing: an opted-out user still gets calls."""

    def on_call(self, call: InboundCall) -> VoicePrompt | None:
        """Play the open alert when a user calls the number back."""
        last = _last_to(call.organization_id, call.from_phone)
        if last is None or not is_needed(last.notification):
            return None
        call.subject_id = last.pk
        return speak("alert", last, keys=ACKNOWLEDGE_KEY)

    def on_key(self, call: InboundCall, key: str, *, arrived_at: datetime, state: str = "") -> VoicePrompt:
        last = load_delivery(call.subject_id) if call.subject_id else None
        if last is None:
            return VoicePrompt(())
        return acknowledge_by_key(last)

    def on_digits(
        self, call: InboundCall, digits: str, *, state: str = "", is_repeated: bool = False
    ) -> VoicePrompt:
        """Do nothing: alerts ask for no number."""
        return VoicePrompt(())


def _last_to(organization_id: int, phone: str) -> Delivery | None:
    """Return the latest alert delivery to that phone by text or call. Open alerts take precedence.

    Deliveries to people who have left the organization do not count.
    """
    if not phone:
        return None
    people = alert_links.recipients_of(organization_id).filter(phone=phone)
    sent = Delivery.objects.of(organization_id).filter(
        notification__user__in=people,
        notification__alert__isnull=False,
        channel__in=("sms", "voice"),
        organization__is_active=True,
    )
    still_open = sent.filter(notification__alert__status=Alert.Status.OPEN).order_by("-pk").first()
    last = still_open or sent.order_by("-pk").first()
    if last is None:
        return None
    row = load_delivery(last.pk)
    return row if phone_confirmation.is_usable(organization_id, recipient_of(row)) else None


def _acknowledge_by_text(row: Delivery, via: str) -> str:
    """Acknowledge the alert for the user and return the reply."""
    user = recipient_of(row)
    assert row.notification.alert_id is not None
    alert, is_first = acknowledge_alert(row.notification.alert_id, user=user, actor=actor_of(user), via=via)
    if is_first or (alert.status == Alert.Status.ACKNOWLEDGED and alert.acknowledged_by_id == user.pk):
        title = rendering.title_of(row.notification)
        return _("Thank you. You acknowledged: {title}").format(title=title)
    if alert.status == Alert.Status.ACKNOWLEDGED:
        name = alert.acknowledged_by or _("Someone")
        return _("{name} already acknowledged this alert.").format(name=name)
    return f"{_('This alert is resolved.')} {alert.settled_how if languages.is_english() else ''}".strip()


def register() -> None:
    """Register the handlers of alert texts and inbound calls with telephony."""
    handler = AlertSmsHandler()
    handlers.register_texts("alert", handler)
    handlers.register_inbound("alert", handler)
