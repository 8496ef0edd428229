"""Define the calling rules: when, how often and whom to call. Admins edit them, and every call reads them."""

from __future__ import annotations

from typing import ClassVar

from django.contrib.postgres.fields import ArrayField
from django.core.validators import MaxValueValidator, MinValueValidator, RegexValidator
from django.db import models
from django.db.models import F, Q
from phonenumber_field.modelfields import PhoneNumberField

from accounts.scoping import OwnedModel
from dispatch.core import clock
from dispatch.core.languages import gettext, mark
from dispatch.leads.models.campaigns import Campaign, every_day
from dispatch.leads.rules import states

a_country = RegexValidator(r"^[A-Z]{2}$", "Two capital letters, such as US.")
a_region = RegexValidator(
    r"^([A-Z0-9]{1,3})?$", ("Code of a state, such as FL. Leave empty for the whole country.")
)

# Outcomes of a call after which the lead may be called again. Other outcomes end the lead, even if a rule exists.
RETRIED = (
    states.Outcome.NO_ANSWER, states.Outcome.BUSY, states.Outcome.FAILED, states.Outcome.VOICEMAIL,
    states.Outcome.NOT_PLACED, states.Outcome.LOST,
)  # fmt: skip

RETRIED_CHOICES = [(word.value, word.value.replace("_", " ")) for word in RETRIED]


class CallingRule(models.Model):
    """Hours in which the law of a country or state allows calls, in the called person's local time.

    Rows with the same place and name form one set of hours; all sets that apply to a place must be open.
    Superusers maintain them for all organizations.
    """

    country = models.CharField(max_length=2, validators=[a_country], default="US")
    region = models.CharField("state", max_length=3, blank=True, validators=[a_region])
    name = models.CharField(max_length=80)
    weekdays = ArrayField(
        models.PositiveSmallIntegerField(validators=[MaxValueValidator(6)]),
        default=every_day,
        help_text="0 is Monday.",
    )
    window_from = models.TimeField(default="08:00")
    window_until = models.TimeField(default="21:00")
    keeps_holidays = models.BooleanField(default=False, help_text="No calls there on a holiday.")
    since = models.DateField(
        null=True, blank=True, help_text="First day on which it applies. Leave empty if it always did."
    )
    until = models.DateField(
        null=True, blank=True, help_text="Last day on which it applies. Leave empty for no end."
    )
    source = models.CharField(max_length=200, help_text="Source of the rule.")

    REFUSALS: ClassVar[dict[str, str]] = {
        "calling_rule_ends_after_it_begins": mark("The last day is before the first day.")
    }

    class Meta:
        ordering = ["country", "region", "name", "id"]
        constraints = [
            models.CheckConstraint(
                condition=Q(since=None) | Q(until=None) | Q(since__lte=F("until")),
                name="calling_rule_ends_after_it_begins",
            )
        ]

    def __str__(self) -> str:
        return self.name


class Holiday(models.Model):
    """A day on which campaigns and states that observe holidays allow no calls, for all organizations."""

    country = models.CharField(max_length=2, validators=[a_country], default="US")
    region = models.CharField("state", max_length=3, blank=True, validators=[a_region])
    date = models.DateField()
    name = models.CharField(max_length=80)

    class Meta:
        ordering = ["date"]
        constraints = [
            models.UniqueConstraint(fields=["country", "region", "date"], name="one_holiday_per_place_and_day")
        ]

    def __str__(self) -> str:
        return f"{self.name} ({self.date})"


class ClosedDay(OwnedModel):
    """A day on which an organization's campaigns that observe holidays make no calls anywhere."""

    date = models.DateField()
    name = models.CharField(max_length=80)

    class Meta:
        ordering = ["date"]
        constraints = [models.UniqueConstraint(fields=["organization", "date"], name="one_closed_day_per_day")]

    def __str__(self) -> str:
        return f"{self.name} ({self.date})"


class DoNotCall(OwnedModel):
    """A phone that no campaign of the organization calls."""

    class Source(models.TextChoices):
        KEY = "key", mark("Pressed the opt-out key")
        TEXT = "text", mark("Replied STOP")
        API = "api", mark("API")
        PERSON = "person", mark("Entered manually")
        FILE = "file", mark("Imported")

    phone = PhoneNumberField()
    source = models.CharField(max_length=8, choices=Source, default=Source.PERSON)
    note = models.CharField(max_length=200, blank=True)
    created_at = models.DateTimeField(default=clock.now, editable=False)

    class Meta:
        ordering = ["-id"]
        verbose_name_plural = "do not call"
        constraints = [models.UniqueConstraint(fields=["organization", "phone"], name="do_not_call_once")]

    def __str__(self) -> str:
        return str(self.phone)


class DoNotCallEverywhere(models.Model):
    """A phone that no organization calls. Superusers maintain the list."""

    phone = PhoneNumberField(unique=True)
    note = models.CharField(max_length=200, blank=True)
    created_at = models.DateTimeField(default=clock.now, editable=False)

    class Meta:
        ordering = ["-id"]
        verbose_name_plural = "do not call, everywhere"

    def __str__(self) -> str:
        return str(self.phone)


class RetryRule(OwnedModel):
    """The rule for calling a lead again after one outcome of a campaign's call.

    Without a row for an outcome, the LEADS_RETRY_… settings apply.
    """

    campaign = models.ForeignKey(Campaign, on_delete=models.CASCADE, related_name="retry_rules")
    outcome = models.CharField(max_length=24, choices=RETRIED_CHOICES)
    attempts = models.PositiveSmallIntegerField(
        "most attempts", default=3, validators=[MaxValueValidator(50)], help_text="0 or 1: not called again."
    )
    delay_s = models.PositiveIntegerField("delay (s)", default=3600, help_text="After the first such call.")
    factor = models.FloatField(
        default=2.0,
        validators=[MinValueValidator(1.0), MaxValueValidator(10.0)],
        help_text="Each further delay is multiplied by this.",
    )
    longest_s = models.PositiveIntegerField("longest delay (s)", default=86_400)
    jitter = models.FloatField(
        default=0.1,
        validators=[MinValueValidator(0.0), MaxValueValidator(1.0)],
        help_text="Varies each delay by up to this share, in both directions.",
    )

    class Meta:
        ordering = ["outcome"]
        constraints = [models.UniqueConstraint(fields=["campaign", "outcome"], name="one_retry_rule_per_outcome")]

    def __str__(self) -> str:
        return f"{self.campaign}: {self.get_outcome_display()}"


class CustomerRate(OwnedModel):
    """The maximum number of calls on a customer's behalf in any period of `per_s` seconds, over all campaigns."""

    customer = models.SlugField(max_length=64)
    most = models.PositiveIntegerField("maximum calls", validators=[MinValueValidator(1)])
    per_s = models.PositiveIntegerField(
        "in any (s)", default=60, validators=[MinValueValidator(1), MaxValueValidator(86_400)]
    )

    class Meta:
        ordering = ["customer"]
        constraints = [models.UniqueConstraint(fields=["organization", "customer"], name="one_rate_per_customer")]

    def __str__(self) -> str:
        return gettext("{customer}: {most} in {seconds} s").format(
            customer=self.customer, most=self.most, seconds=self.per_s
        )
