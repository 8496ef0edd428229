"""Texts of alerts, and what people answer to them or ask when they call back: notifications' side of telephony's
`purposes` beside `alert_calls`."""

from __future__ import annotations

from accounts.current import actor_of
from dispatch.telephony import purposes
from dispatch.telephony.models import InboundCall, Text
from dispatch.telephony.purposes import Prompt
from notifications import words
from notifications.alert_calls import ACKNOWLEDGE_KEY, find
from notifications.models import Alert, Delivery
from notifications.services import acknowledge_alert
from notifications.services.acknowledging import PHONE, TEXT
from notifications.services.delivering import is_needed, tell_of_text

# Answers to an alert that people give in words.
TAKES_IT = frozenset({"1", "ACK", "OK", "YES"})


class AlertTexts:
    """The handler of texts with purpose `alert`, whose subject is a Delivery, and who listens to the answers."""

    def wanted(self, text: Text) -> bool:
        """Not when somebody has the alert by now."""
        return text.subject_id is None or is_needed(find(text.subject_id).notification)

    def changed(self, text: Text) -> None:
        """Whether it went out."""
        tell_of_text(text)

    def replied(self, text: Text) -> str | None:
        """1 takes on the alert that reached that phone last."""
        if text.body.strip().strip(".!").upper() not in TAKES_IT:
            return None
        last = _last_to(text.organization_id, text.from_phone)
        return _take(last, TEXT) if last else None

    def helped(self, text: Text) -> str | None:
        if _last_to(text.organization_id, text.from_phone) is None:
            return None
        return f"{text.organization.name}: alerts. Reply 1 to take an alert on, STOP to get no more texts."

    def called(self, call: InboundCall) -> Prompt | None:
        """Calling back hears the alert, while it is open."""
        last = _last_to(call.organization_id, call.from_phone)
        if last is None or not is_needed(last.notification):
            return None
        call.subject_id = last.pk
        return Prompt(words.spoken("alert", last.notification), keys=ACKNOWLEDGE_KEY)

    def pressed(self, call: InboundCall, key: str) -> Prompt:
        last = find(call.subject_id) if call.subject_id else None
        if last is None:
            return Prompt(())
        return Prompt((_take(last, PHONE), "Goodbye."))


def _last_to(organization_id: int, phone: str) -> Delivery | None:
    """The last of an alert that went to that phone by text or call; those of open alerts come first."""
    if not phone:
        return None
    sent = Delivery.objects.of(organization_id).filter(
        notification__user__phone=phone, notification__alert__isnull=False, channel__in=("sms", "voice")
    )
    still_open = sent.filter(notification__alert__status=Alert.Status.OPEN).order_by("-pk").first()
    last = still_open or sent.order_by("-pk").first()
    return find(last.pk) if last else None


def _take(row: Delivery, via: str) -> str:
    """Acknowledges for the person, and says what came of it."""
    user = row.notification.user
    assert row.notification.alert_id is not None
    alert, is_first = acknowledge_alert(row.notification.alert_id, user=user, actor=actor_of(user), via=via)
    if is_first or (alert.status == Alert.Status.ACKNOWLEDGED and alert.acknowledged_by_id == user.pk):
        return f"Thank you. You have taken on: {alert.title}"
    if alert.status == Alert.Status.ACKNOWLEDGED:
        return f"{alert.acknowledged_by or 'Somebody'} has taken this alert on already."
    return f"This alert is over. {alert.settled_how}".strip()


def register() -> None:
    """Registers texts of alerts, and who listens to their answers, with telephony."""
    handler = AlertTexts()
    purposes.register_texts("alert", handler)
    purposes.register_listener("alert", handler)
