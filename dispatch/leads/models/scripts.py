"""Define the branches of a campaign's script: what a pressed key does."""

from __future__ import annotations

from django.core.exceptions import ValidationError
from django.core.validators import MaxValueValidator, MinValueValidator, RegexValidator
from django.db import models

from accounts.scoping import OwnedModel
from dispatch.core.languages import gettext, mark
from dispatch.leads.models.campaigns import Campaign
from dispatch.leads.rules.script import Action, branch_problems, disposition_pattern

one_digit = RegexValidator(r"^[0-9]$", "One key, 0 to 9.")
check_disposition = RegexValidator(
    disposition_pattern, "Use lowercase letters, digits and underscores, such as wants_quote."
)


class DispositionRule(OwnedModel):
    """What follows a call for whose lead an outcome was recorded. It replaces the retry rule of the call's end."""

    class Then(models.TextChoices):
        AGAIN = "again", "Call again"
        FINISH = "finish", "Don't call again"

    campaign = models.ForeignKey(
        Campaign, on_delete=models.CASCADE, related_name="disposition_rules", db_index=False
    )
    disposition = models.CharField("recorded outcome", max_length=40, validators=[check_disposition])
    then = models.CharField(max_length=8, choices=Then, default=Then.AGAIN)
    delay_h = models.PositiveSmallIntegerField(
        "after (h)", default=24, validators=[MinValueValidator(1), MaxValueValidator(2160)]
    )
    text = models.CharField(
        "text to send",
        max_length=480,
        blank=True,
        default="",
        db_default="",
        help_text="Sent when the outcome is recorded, within the calling hours. May contain placeholders.",
    )

    class Meta:
        ordering = ["disposition"]
        constraints = [
            models.UniqueConstraint(fields=["campaign", "disposition"], name="one_rule_per_disposition")
        ]

    def __str__(self) -> str:
        return f"{self.disposition}: {self.get_then_display()}"


class KeyBranch(OwnedModel):
    """What happens after a key is pressed: words, then an action. It may record an outcome."""

    class Actions(models.TextChoices):
        SAY = Action.SAY, mark("End the call")
        PLAY = Action.PLAY, mark("Play a recording")
        CONNECT = Action.CONNECT, mark("Connect to a person")
        AGENT = Action.AGENT, mark("Connect to the voice agent")
        LATER = Action.LATER, mark("Call back later")
        TEXT = Action.TEXT, mark("Send a text")
        OPT_OUT = Action.OPT_OUT, mark("Never call again")

    campaign = models.ForeignKey(Campaign, on_delete=models.CASCADE, related_name="branches", db_index=False)
    key = models.CharField(max_length=1, validators=[one_digit])
    say = models.CharField(max_length=1000, blank=True, help_text="Said first. May contain placeholders.")
    recording = models.ForeignKey(
        "leads.Recording", on_delete=models.RESTRICT, related_name="+", null=True, blank=True
    )
    action = models.CharField("then", max_length=16, choices=Actions, default=Actions.SAY)
    disposition = models.CharField(
        "outcome to record",
        max_length=40,
        blank=True,
        validators=[check_disposition],
        help_text="In your words, such as wants_quote.",
    )
    phones = models.CharField(
        "people to connect to",
        max_length=400,
        blank=True,
        help_text="Phone numbers, separated by commas. All ring; the first who accepts talks to the lead.",
    )
    introduction = models.CharField(
        max_length=500,
        blank=True,
        help_text="Only the person hears it, before accepting. May contain placeholders.",
    )
    ring_s = models.PositiveSmallIntegerField(
        "ring time (s)", default=20, validators=[MinValueValidator(5), MaxValueValidator(120)]
    )
    talk_limit_s = models.PositiveSmallIntegerField(
        "longest conversation (s)",
        default=1800,
        db_default=1800,
        validators=[MinValueValidator(10), MaxValueValidator(14400)],
        help_text="With a person who accepted. It is added to the campaign's longest call.",
    )
    otherwise = models.CharField("said if nobody accepts", max_length=1000, blank=True)
    call_back_h = models.PositiveSmallIntegerField(
        "call back after (h)", null=True, blank=True, validators=[MinValueValidator(1), MaxValueValidator(720)]
    )
    text = models.CharField("text to send", max_length=480, blank=True, help_text="May contain placeholders.")

    class Meta:
        ordering = ["key"]
        verbose_name_plural = "key branches"
        constraints = [models.UniqueConstraint(fields=["campaign", "key"], name="one_branch_per_key")]

    def __str__(self) -> str:
        return gettext("Key {key}: {action}").format(key=self.key, action=self.get_action_display())

    def clean(self) -> None:
        if problems := branch_problems(self):
            raise ValidationError(problems)

    @property
    def has_recording(self) -> bool:
        """Return whether it has a recording, which may not be saved yet."""
        return self.recording is not None

    @property
    def phone_list(self) -> list[str]:
        """Return the entered phones of the people to connect to."""
        return [phone.strip() for phone in self.phones.split(",") if phone.strip()]
