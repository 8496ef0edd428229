"""Say for each member whether alerts reach their phone.

The slice that confirms phones (`notifications`) registers the expression. Members' pages and the API use it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from django.db import models
from django.db.models import QuerySet


class AlertPhone(models.TextChoices):
    """What alerts can do with a member's phone. ACCEPTED: use it unconfirmed, for a limited time."""

    CONFIRMED = "confirmed", "Confirmed"
    ACCEPTED = "accepted", "Accepted for now"
    UNCONFIRMED = "unconfirmed", "Not confirmed"
    NONE = "none", "No phone"


USABLE = (AlertPhone.CONFIRMED, AlertPhone.ACCEPTED)
_expression: Callable[[], Any] | None = None


def register(expression: Callable[[], Any]) -> None:
    """Register what makes the expression of a membership's AlertPhone."""
    global _expression
    _expression = expression


def with_alert_phone(memberships: QuerySet) -> QuerySet:
    """Annotate each membership with `alert_phone`, an AlertPhone."""
    assert _expression is not None
    return memberships.annotate(alert_phone=_expression())
