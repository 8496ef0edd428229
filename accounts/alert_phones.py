"""Find whether alerts can use each member's phone.

The slice that confirms phones (`notifications`) registers the expression. Members' pages and the API use it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from django.db import models
from django.db.models import QuerySet

from dispatch.core.languages import mark


class AlertPhone(models.TextChoices):
    """Whether alerts can use a member's phone. ACCEPTED: unconfirmed, but they use it for a limited time."""

    CONFIRMED = "confirmed", mark("Confirmed")
    ACCEPTED = "accepted", mark("Accepted for now")
    UNCONFIRMED = "unconfirmed", mark("Not confirmed")
    NONE = "none", mark("No phone")


USABLE = (AlertPhone.CONFIRMED, AlertPhone.ACCEPTED)
_expression: Callable[[], Any] | None = None


def register(expression: Callable[[], Any]) -> None:
    """Register the function that builds the expression of a membership's AlertPhone."""
    global _expression
    _expression = expression


def with_alert_phone(memberships: QuerySet) -> QuerySet:
    """Annotate each membership with `alert_phone`, an AlertPhone."""
    assert _expression is not None
    return memberships.annotate(alert_phone=_expression())
