"""Users' notification preferences, and organizations' notification rules and escalation policies."""

from typing import ClassVar

from django.core.exceptions import ValidationError
from django.db import models
from django.db.models import Q

from accounts.models import User
from accounts.scoping import OwnedModel
from dispatch.capacity.models import DispatchPool
from dispatch.core.languages import gettext, mark
from notifications import rules
from notifications.models.notifications import Level

# Steps of an escalation policy. Each alert copies them.
MAX_STEPS = 50


class Preference(OwnedModel):
    """One user's choice for one kind of event in one organization. Without a row, the default applies.

    A critical alert is always shown. If `sms`, `voice`, `chat` and `push` are off, colleagues are called
    instead; if everybody has turned them off, the alert reaches everyone regardless.
    """

    user = models.ForeignKey(User, on_delete=models.CASCADE, related_name="+")
    kind = models.CharField(max_length=64)
    shown = models.BooleanField(default=True, help_text="Show it as it happens. Otherwise it is only listed.")
    email = models.BooleanField("email", default=False)
    sms = models.BooleanField("text", default=False)
    voice = models.BooleanField("call", default=False, help_text="Alerts only.")
    chat = models.BooleanField("chat", null=True, help_text="Empty: the default of the kind.")
    push = models.BooleanField("push", null=True, help_text="Empty: the default of the kind.")

    class Meta:
        ordering = ["kind"]
        constraints = [
            models.UniqueConstraint(fields=["organization", "user", "kind"], name="one_preference_per_kind")
        ]

    def __str__(self) -> str:
        rule = rules.BY_KIND.get(self.kind)
        return gettext(rule.label) if rule else self.kind


class Route(OwnedModel):
    """An organization's override of recipients and level for one kind of event."""

    class To(models.TextChoices):
        DISPATCHERS = rules.DISPATCHERS, "Dispatchers"
        ADMINS = rules.ADMINS, "Admins"

    kind = models.CharField(max_length=64)
    to = models.CharField(
        max_length=16, choices=To, blank=True, help_text=("Leave empty to use the installation's default.")
    )
    level = models.CharField(
        max_length=16, choices=Level, blank=True, help_text=("Leave empty to use the default level.")
    )
    is_on = models.BooleanField("enabled", default=True)

    class Meta:
        verbose_name = "notification rule"
        ordering = ["kind"]
        constraints = [models.UniqueConstraint(fields=["organization", "kind"], name="one_route_per_kind")]

    def __str__(self) -> str:
        rule = rules.BY_KIND.get(self.kind)
        return gettext(rule.label) if rule else self.kind

    def clean(self) -> None:
        rule = rules.BY_KIND.get(self.kind)
        if rule is None:
            raise ValidationError(
                {"kind": gettext("Unknown kind. Must be one of {kinds}.").format(kinds=", ".join(rules.BY_KIND))}
            )
        if rule.level == rules.CRITICAL and not self.is_on:
            raise ValidationError(
                {"is_on": (gettext("A critical alert can't be turned off. Choose other recipients instead."))}
            )
        if rule.level == rules.CRITICAL and self.level not in ("", Level.CRITICAL):
            raise ValidationError(
                {"level": gettext("A critical alert stays critical. Choose other recipients instead.")}
            )


class EscalationPolicy(OwnedModel):
    """How an organization's alerts repeat and escalate.

    An empty field falls back to the settings, and so do the steps if there are none.
    """

    repeat_s = models.PositiveIntegerField(
        "repeat every (s)", null=True, blank=True, help_text="On the dispatchers' screens."
    )
    again_after_s = models.PositiveIntegerField(
        "start over after (s)",
        null=True,
        blank=True,
        help_text="Time after the last step, if nobody has acknowledged.",
    )
    return_after_s = models.PositiveIntegerField(
        "return after (s)",
        null=True,
        blank=True,
        help_text="Time after which an acknowledged alert opens again if nothing has happened.",
    )
    call_pool = models.ForeignKey(
        DispatchPool, null=True, blank=True, on_delete=models.PROTECT, related_name="+",
        limit_choices_to={"kind": "calls"}, help_text=(
            "Pool whose numbers place alert calls. Leave empty to use the default pool."
        ),
    )  # fmt: skip
    push_shows_details = models.BooleanField(
        "show details in push notifications", default=True, db_default=True, help_text=(
            "Otherwise they name only the kind of event, for example on a locked screen."
        ),
    )  # fmt: skip

    class Meta:
        verbose_name_plural = "escalation policies"
        constraints = [models.UniqueConstraint(fields=["organization"], name="one_escalation_policy")]

    def __str__(self) -> str:
        return gettext("Escalation policy of {organization}").format(organization=self.organization)

    def clean(self) -> None:
        if self.repeat_s is not None and self.repeat_s < 10:
            raise ValidationError({"repeat_s": gettext("Must be at least 10 seconds.")})
        if self.again_after_s is not None and self.again_after_s < 60:
            raise ValidationError({"again_after_s": gettext("Must be at least 60 seconds.")})
        if self.return_after_s is not None and self.return_after_s < 60:
            raise ValidationError({"return_after_s": gettext("Must be at least 60 seconds.")})


class EscalationStep(OwnedModel):
    """One escalation step: audience, channels, and delay after the previous step."""

    class Audience(models.TextChoices):
        ON_DUTY = "on_duty", "Dispatchers on duty"
        DISPATCHERS = "dispatchers", "All dispatchers"
        ADMINS = "admins", "Admins"

    policy = models.ForeignKey(EscalationPolicy, on_delete=models.CASCADE, related_name="steps")
    position = models.PositiveSmallIntegerField(default=1)
    audience = models.CharField(max_length=16, choices=Audience)
    after_s = models.PositiveIntegerField(
        "delay (s)", default=60, help_text="Time after the previous step, or after the alert for the first step."
    )
    spacing_s = models.PositiveIntegerField(
        "between people (s)",
        default=0,
        help_text="0 contacts everyone at once. Otherwise one person after another, in escalation order.",
    )
    sms = models.BooleanField("text", default=True)
    voice = models.BooleanField("call", default=True)
    chat = models.BooleanField("chat", default=True, db_default=True)
    push = models.BooleanField("push", default=True, db_default=True)

    REFUSALS: ClassVar[dict[str, str]] = {
        "a_step_has_a_channel": mark("Choose text or call. A step needs one of them.")
    }

    class Meta:
        ordering = ["position", "id"]
        constraints = [
            models.UniqueConstraint(fields=["policy", "position"], name="one_step_per_position"),
            models.CheckConstraint(condition=Q(sms=True) | Q(voice=True), name="a_step_has_a_channel"),
        ]

    def __str__(self) -> str:
        return f"{self.position}. {self.get_audience_display()}"
