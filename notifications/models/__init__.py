"""Models of notifications.

`notifications`: notifications, alerts, deliveries and claims. `channels`: chat services and webhooks.
`preferences`: choices of users and organizations. `push`: browsers and messages to them.
`phone_confirmations`: which phones alerts may use.
"""

from notifications.models.channels import AlertChannel
from notifications.models.notifications import Alert, Channel, Claim, Delivery, Level, Notification
from notifications.models.phone_confirmations import PhoneConfirmation
from notifications.models.preferences import EscalationPolicy, EscalationStep, Preference, Route
from notifications.models.push import PushKey, PushMessage, PushSubscription

__all__ = [
    "Alert",
    "AlertChannel",
    "Channel",
    "Claim",
    "Delivery",
    "EscalationPolicy",
    "EscalationStep",
    "Level",
    "Notification",
    "PhoneConfirmation",
    "Preference",
    "PushKey",
    "PushMessage",
    "PushSubscription",
    "Route",
]
