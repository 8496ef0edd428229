"""System checks for the settings of notifications."""

from __future__ import annotations

from typing import Any

from django.conf import settings
from django.core.checks import CheckMessage, Error, Warning, register  # noqa: A004  (Django's name)

from notifications.escalation_rules import ADMINS, DISPATCHERS, ON_DUTY, Step


@register()
def escalation(app_configs: Any, **kwargs: Any) -> list[CheckMessage]:
    """Check that ALERT_STEPS is a list of steps and that the alert intervals are long enough."""
    problems: list[CheckMessage] = []
    try:
        steps = [Step(**step) for step in settings.ALERT_STEPS]
        wrong = [step.audience for step in steps if step.audience not in (ON_DUTY, DISPATCHERS, ADMINS)]
    except TypeError as error:
        steps, wrong = [], [str(error)]
    if wrong or not steps:
        problems.append(
            Error(
                f"ALERT_STEPS is not a valid list of steps: {', '.join(wrong) or 'it is empty'}.",
                hint='Use the form [{"audience": "on_duty", "after_s": 120, "spacing_s": 45}, …]. The '
                "audience is on_duty, dispatchers or admins.",
                id="dispatch.E070",
            )
        )
    for name, value, minimum in (
        ("ALERT_REPEAT_S", settings.ALERT_REPEAT_S, 10),
        ("ALERT_AGAIN_AFTER_S", settings.ALERT_AGAIN_AFTER_S, 60),
        ("ALERT_RETURN_AFTER_S", settings.ALERT_RETURN_AFTER_S, 60),
    ):
        if value < minimum:
            problems.append(
                Error(
                    (f"{name} is {value}, which is too short."),
                    hint=(f"Set it to at least {minimum} seconds."),
                    id="dispatch.E071",
                )
            )
    return problems


@register(deploy=True)
def mail(app_configs: Any, **kwargs: Any) -> list[CheckMessage]:
    """Warn if production has no mail server."""
    if settings.EMAIL_IS_SET_UP:
        return []
    return [
        Warning(
            "EMAIL_URL is empty: notifications cannot be sent by email.",
            hint="Set it to the mail server's URL, for example smtp+tls://user:password@mail.example.com:587.",
            id="dispatch.W072",
        )
    ]
