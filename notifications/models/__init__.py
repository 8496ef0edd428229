"""What was told to whom (`told`), and what people and organizations chose (`chosen`)."""

from notifications.models.chosen import EscalationPolicy, EscalationStep, Preference, Route
from notifications.models.told import Alert, Channel, Claim, Delivery, Level, Notification

__all__ = [
    "Alert",
    "Channel",
    "Claim",
    "Delivery",
    "EscalationPolicy",
    "EscalationStep",
    "Level",
    "Notification",
    "Preference",
    "Route",
]
