"""System checks of what notifications stand on."""

from __future__ import annotations

from typing import Any

from django.conf import settings
from django.core.checks import CheckMessage, Error, Warning, register  # noqa: A004  (Django's name)

from notifications.steps import ADMINS, DISPATCHERS, ON_DUTY, Step


@register()
def escalation(app_configs: Any, **kwargs: Any) -> list[CheckMessage]:
    """ALERT_STEPS must be steps, and the times must let people be reached."""
    found: list[CheckMessage] = []
    try:
        steps = [Step(**step) for step in settings.ALERT_STEPS]
        wrong = [step.audience for step in steps if step.audience not in (ON_DUTY, DISPATCHERS, ADMINS)]
    except TypeError as error:
        steps, wrong = [], [str(error)]
    if wrong or not steps:
        found.append(
            Error(
                f"ALERT_STEPS is not a list of steps: {', '.join(wrong) or 'it is empty'}.",
                hint='Write it as [{"audience": "on_duty", "after_s": 120, "spacing_s": 45}, …]; an audience is '
                "on_duty, dispatchers or admins.",
                id="dispatch.E070",
            )
        )
    for name, value, least in (
        ("ALERT_REPEAT_S", settings.ALERT_REPEAT_S, 10),
        ("ALERT_AGAIN_AFTER_S", settings.ALERT_AGAIN_AFTER_S, 60),
    ):
        if value < least:
            found.append(Error(f"{name} is {value}.", hint=f"Give at least {least} seconds.", id="dispatch.E071"))
    return found


@register(deploy=True)
def mail(app_configs: Any, **kwargs: Any) -> list[CheckMessage]:
    """Production sends e-mail only when it is told how."""
    if settings.EMAIL_IS_SET_UP:
        return []
    return [
        Warning(
            "EMAIL_URL is empty: nobody can be notified by e-mail.",
            hint="Set it to the mail server, as smtp+tls://user:password@mail.example.com:587.",
            id="dispatch.W072",
        )
    ]
