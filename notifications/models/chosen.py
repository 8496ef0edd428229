"""Who wants what how, and how an organization's alerts escalate."""

from django.core.exceptions import ValidationError
from django.db import models
from django.db.models import Q

from accounts.models import User
from accounts.scoping import OwnedModel
from dispatch.capacity.models import DispatchPool
from notifications import rules
from notifications.models.told import Level


class Preference(OwnedModel):
    """What one user chose for one kind of event there. Without a row the table of rules decides.

    A critical alert is always shown; without `sms` and `voice` others are called instead, and when nobody at all
    is left, everybody is."""

    user = models.ForeignKey(User, on_delete=models.CASCADE, related_name="+")
    kind = models.CharField(max_length=64)
    shown = models.BooleanField(default=True, help_text="Shown as it happens; else it is only in the list.")
    email = models.BooleanField("e-mail", default=False)
    sms = models.BooleanField("SMS", default=False)
    voice = models.BooleanField("voice call", default=False, help_text="For alerts only.")

    class Meta:
        ordering = ["kind"]
        constraints = [
            models.UniqueConstraint(fields=["organization", "user", "kind"], name="one_preference_per_kind")
        ]

    def __str__(self) -> str:
        rule = rules.BY_KIND.get(self.kind)
        return rule.label if rule else self.kind


class Route(OwnedModel):
    """How an organization has one kind of event told, where that differs from the table of rules."""

    class To(models.TextChoices):
        DISPATCHERS = rules.DISPATCHERS, "Dispatchers"
        ADMINS = rules.ADMINS, "Admins"

    kind = models.CharField(max_length=64)
    to = models.CharField(max_length=16, choices=To, blank=True, help_text="Empty: as the installation has it.")
    level = models.CharField(max_length=16, choices=Level, blank=True, help_text="Empty: as it is.")
    is_on = models.BooleanField("told", default=True)

    class Meta:
        verbose_name = "notification rule"
        ordering = ["kind"]
        constraints = [models.UniqueConstraint(fields=["organization", "kind"], name="one_route_per_kind")]

    def __str__(self) -> str:
        rule = rules.BY_KIND.get(self.kind)
        return rule.label if rule else self.kind

    def clean(self) -> None:
        rule = rules.BY_KIND.get(self.kind)
        if rule is None:
            raise ValidationError({"kind": f"There is no such kind; there are {', '.join(rules.BY_KIND)}."})
        if rule.level == rules.CRITICAL and not self.is_on:
            raise ValidationError({"is_on": "A critical alert can be sent to others, not silenced for everybody."})
        if rule.level == rules.CRITICAL and self.level not in ("", Level.CRITICAL):
            raise ValidationError({"level": "A critical alert stays critical; choose who gets it instead."})


class EscalationPolicy(OwnedModel):
    """How an organization's alerts repeat and escalate. An empty field falls back to the settings, and so do the
    steps while there is none."""

    repeat_s = models.PositiveIntegerField(
        "repeated every (s)", null=True, blank=True, help_text="On the dispatchers' screens."
    )
    again_after_s = models.PositiveIntegerField(
        "begins again after (s)",
        null=True,
        blank=True,
        help_text="After the last step, while nobody acknowledges.",
    )
    call_pool = models.ForeignKey(
        DispatchPool, null=True, blank=True, on_delete=models.PROTECT, related_name="+",
        limit_choices_to={"kind": "calls"}, help_text="Whose numbers call; empty: the default pool.",
    )  # fmt: skip

    class Meta:
        verbose_name_plural = "escalation policies"
        constraints = [models.UniqueConstraint(fields=["organization"], name="one_escalation_policy")]

    def __str__(self) -> str:
        return f"Escalation in {self.organization}"

    def clean(self) -> None:
        if self.repeat_s is not None and self.repeat_s < 10:
            raise ValidationError({"repeat_s": "At least 10 seconds."})
        if self.again_after_s is not None and self.again_after_s < 60:
            raise ValidationError({"again_after_s": "At least 60 seconds."})


class EscalationStep(OwnedModel):
    """One step: whom it reaches, how, and how long after the one before."""

    class Audience(models.TextChoices):
        ON_DUTY = "on_duty", "Dispatchers on duty"
        DISPATCHERS = "dispatchers", "All dispatchers"
        ADMINS = "admins", "Admins"

    policy = models.ForeignKey(EscalationPolicy, on_delete=models.CASCADE, related_name="steps")
    position = models.PositiveSmallIntegerField(default=1)
    audience = models.CharField(max_length=16, choices=Audience)
    after_s = models.PositiveIntegerField(
        "waits (s)", default=60, help_text="After the step before; the first one: after the alert."
    )
    spacing_s = models.PositiveIntegerField(
        "between people (s)",
        default=0,
        help_text="0: all of them at once; else one after another, in their order.",
    )
    sms = models.BooleanField("SMS", default=True)
    voice = models.BooleanField("voice call", default=True)

    class Meta:
        ordering = ["position", "id"]
        constraints = [
            models.UniqueConstraint(fields=["policy", "position"], name="one_step_per_position"),
            models.CheckConstraint(condition=Q(sms=True) | Q(voice=True), name="a_step_has_a_channel"),
        ]

    def __str__(self) -> str:
        return f"{self.position}. {self.get_audience_display()}"
