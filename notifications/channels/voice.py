"""Handle alert calls: the spoken alert and the key that acknowledges it.

It is in the language of the member, else in that of the organization. Registered with telephony's handlers for
purpose `alert`.
"""

from __future__ import annotations

from accounts.tenancy import actor_of
from dispatch.telephony import handlers
from dispatch.telephony.handlers import VoicePrompt
from dispatch.telephony.models import Call
from dispatch.telephony.speech import speaking, speech_for
from notifications import rendering
from notifications.models import Alert, Delivery
from notifications.services import acknowledge_alert
from notifications.services.acknowledgement import PHONE
from notifications.services.deliveries import apply_call_report, find_obstacle, recipient_of

ACKNOWLEDGE_KEY = "1"


class AlertCallHandler:
    """Handler for calls of purpose `alert`. Their subject is a Delivery."""

    def on_answer(self, call: Call) -> VoicePrompt:
        """Speak the alert, or say that it is resolved, unless the person has left the organization."""
        row = load_delivery(call.subject_id)
        if find_obstacle(row):
            return speak("goodbye", row)
        alert = row.notification.alert
        if alert is None or alert.status != Alert.Status.OPEN:
            return speak("over", row)
        return speak("alert", row, keys=ACKNOWLEDGE_KEY)

    def on_key(self, call: Call, key: str) -> VoicePrompt:
        """Acknowledge the alert for everyone if the key is 1; otherwise repeat it."""
        row = load_delivery(call.subject_id)
        if key != ACKNOWLEDGE_KEY or row.notification.alert_id is None:
            return self.on_answer(call)
        return acknowledge_by_key(row, call_id=call.pk)

    def on_status_change(self, call: Call) -> None:
        """Record the call's status on its delivery."""
        apply_call_report(call)


def acknowledge_by_key(row: Delivery, call_id: int | None = None) -> VoicePrompt:
    """Acknowledge the delivery's alert for its user, and return what they hear. `call_id`: of an alert call.

    A user who has left the organization acknowledges nothing.
    """
    if find_obstacle(row):
        return speak("goodbye", row)
    user = recipient_of(row)
    assert row.notification.alert_id is not None
    alert, _ = acknowledge_alert(
        row.notification.alert_id, user=user, actor=actor_of(user), via=PHONE, call_id=call_id
    )
    is_theirs = alert.status == Alert.Status.ACKNOWLEDGED and alert.acknowledged_by_id == user.pk
    return speak("acknowledged" if is_theirs else "over", load_delivery(row.pk))


def speak(prompt: str, row: Delivery, keys: str = "") -> VoicePrompt:
    """Return the prompt of this name (see `rendering.render_call`) about the delivery's alert."""
    with speaking(speech_for(row.notification.organization, language=rendering.language_of(row.notification))):
        return VoicePrompt(rendering.render_call(prompt, row.notification), keys=keys)


def load_delivery(delivery_id: int) -> Delivery:
    """Load the delivery with its notification, user, organization and alert. Raise Delivery.DoesNotExist."""
    delivery: Delivery = Delivery.objects.select_related(
        "organization", "notification__user", "notification__organization", "notification__alert__acknowledged_by"
    ).get(pk=delivery_id)
    return delivery


def register() -> None:
    """Register the handler of alert calls with telephony."""
    handlers.register_calls("alert", AlertCallHandler())
