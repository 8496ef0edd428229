"""What a person hears when an alert calls, and what their key does: notifications' side of telephony's
`purposes`."""

from __future__ import annotations

from accounts.current import actor_of
from dispatch.telephony import purposes
from dispatch.telephony.models import Call
from dispatch.telephony.purposes import Prompt
from notifications import words
from notifications.models import Alert, Delivery
from notifications.services import acknowledge_alert
from notifications.services.acknowledging import PHONE
from notifications.services.delivering import tell_of

ACKNOWLEDGE_KEY = "1"


class AlertCalls:
    """The handler of calls with purpose `alert`; their subject is a Delivery."""

    def answered(self, call: Call) -> Prompt:
        """The alert in words, or that it is over."""
        row = find(call.subject_id)
        alert = row.notification.alert
        if alert is None or alert.status != Alert.Status.OPEN:
            return Prompt(words.spoken("over", row.notification))
        return Prompt(words.spoken("alert", row.notification), keys=ACKNOWLEDGE_KEY)

    def pressed(self, call: Call, key: str) -> Prompt:
        """1 takes the alert on, for everybody; anything else tells it again."""
        row = find(call.subject_id)
        if key != ACKNOWLEDGE_KEY or row.notification.alert_id is None:
            return self.answered(call)
        user = row.notification.user
        alert, _ = acknowledge_alert(
            row.notification.alert_id, user=user, actor=actor_of(user), via=PHONE, call_id=call.pk
        )
        is_theirs = alert.status == Alert.Status.ACKNOWLEDGED and alert.acknowledged_by_id == user.pk
        return Prompt(words.spoken("acknowledged" if is_theirs else "over", find(call.subject_id).notification))

    def changed(self, call: Call) -> None:
        """Whether it was answered, and how it ended."""
        tell_of(call)


def find(delivery_id: int) -> Delivery:
    """The delivery, with all that is said of it. Raises Delivery.DoesNotExist."""
    found: Delivery = Delivery.objects.select_related(
        "notification__user", "notification__organization", "notification__alert__acknowledged_by"
    ).get(pk=delivery_id)
    return found


def register() -> None:
    """Registers the alert purpose with telephony."""
    purposes.register("alert", AlertCalls())
