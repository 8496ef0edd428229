"""Campaign, Lead, and the switches that hold them back."""

from __future__ import annotations

from typing import Any

from django.contrib.postgres.fields import ArrayField
from django.core.validators import MaxValueValidator, MinValueValidator, RegexValidator, URLValidator
from django.db import models
from django.db.models import Q
from phonenumber_field.modelfields import PhoneNumberField

from accounts.models import Organization
from accounts.scoping import OwnedModel
from dispatch.capacity.models import DispatchPool
from dispatch.core import clock
from dispatch.core.crypto import EncryptedTextField
from dispatch.leads.rules import words

check_url = URLValidator(schemes=["http", "https"])
one_key = RegexValidator(r"^[0-9]?$", "One key, 0 to 9.")


def every_day() -> list[int]:
    return [0, 1, 2, 3, 4, 5, 6]


def _between(low: int, high: int) -> list[Any]:
    return [MinValueValidator(low), MaxValueValidator(high)]


class Campaign(OwnedModel):
    """A set of leads with its calling window, retry rules, script and pool. Read as it is now at every call."""

    class WithoutAnswer(models.TextChoices):
        CALL = "call", "Call all the same"
        LATER = "later", "Ask again later"
        DROP = "drop", "Do not call"

    code = models.SlugField(max_length=64)
    name = models.CharField(max_length=120)
    pool = models.ForeignKey(
        DispatchPool,
        on_delete=models.PROTECT,
        related_name="+",
        limit_choices_to={"kind": "calls"},
        help_text="Whose numbers call.",
    )
    is_paused = models.BooleanField(default=False)
    customer = models.SlugField(
        max_length=64, blank=True, help_text="On whose behalf it calls, for rate limits; a lead may name another."
    )

    # When it may call, in the called person's local time.
    window_from = models.TimeField(default="08:00", help_text="Local time of the person called.")
    window_until = models.TimeField(default="21:00", help_text="Earlier than the start: past midnight.")
    weekdays = ArrayField(
        models.PositiveSmallIntegerField(validators=[MaxValueValidator(6)]),
        default=every_day,
        help_text="0 is Monday. Of an overnight window, the day on which it begins.",
    )
    keeps_holidays = models.BooleanField(default=True, help_text="Nobody is called on a holiday.")
    patience_h = models.PositiveIntegerField(
        "patience (h)",
        default=168,
        validators=[MinValueValidator(1), MaxValueValidator(8760)],
        help_text="A lead that could not be called for so long after its due time is given up.",
    )
    max_attempts = models.PositiveSmallIntegerField("most attempts", default=3, validators=_between(1, 50))
    max_attempts_24h = models.PositiveSmallIntegerField(
        "most attempts in 24 h", default=3, validators=_between(1, 50), help_text="In any 24 hours, per phone."
    )

    # What is heard.
    script = models.TextField(blank=True, help_text="Read out; a line a sentence.")
    keys = models.JSONField(
        default=dict, blank=True, help_text='What is said when a key is pressed: {"1": "Thank you."}'
    )
    opt_out_key = models.CharField(
        max_length=1, blank=True, default="9", validators=[one_key], help_text="Empty: none."
    )
    answer_url = models.CharField(
        "TwiML URL",
        max_length=2000,
        blank=True,
        validators=[check_url],
        help_text="Hands the call over to this document instead of reading the script.",
    )
    detect_machines = models.BooleanField(default=False, help_text="Answering-machine detection.")
    ring_timeout_s = models.PositiveSmallIntegerField("ring time (s)", default=30, validators=_between(5, 600))
    time_limit_s = models.PositiveSmallIntegerField(
        "longest call (s)", default=300, validators=_between(10, 14400)
    )

    # The question whether a lead is still wanted.
    precheck_url = models.CharField("pre-check URL", max_length=2000, blank=True, validators=[check_url])
    precheck_secret = EncryptedTextField(blank=True, default="", help_text="Signs the question.")
    precheck_timeout_s = models.FloatField(
        "time-out (s)", default=2.0, validators=[MinValueValidator(0.1), MaxValueValidator(30)]
    )
    precheck_without_answer = models.CharField(
        "without an answer", max_length=8, choices=WithoutAnswer, default=WithoutAnswer.LATER
    )
    created_at = models.DateTimeField(default=clock.now, editable=False)

    class Meta:
        ordering = ["-id"]
        constraints = [
            models.UniqueConstraint(fields=["organization", "code"], name="one_campaign_per_code"),
            models.CheckConstraint(condition=Q(max_attempts__gte=1), name="campaign_calls_once_at_least"),
        ]

    def __str__(self) -> str:
        return self.name


class Lead(OwnedModel):
    """A phone number to call. `backlog` → `processing` → `finished` with an outcome, or back to `backlog` for a
    further attempt. Its attempts are Calls of purpose `lead` with this id as their subject."""

    class Status(models.TextChoices):
        BACKLOG = words.Status.BACKLOG, "Waiting"
        PROCESSING = words.Status.PROCESSING, "Being called"
        FINISHED = words.Status.FINISHED, "Finished"

    class Outcome(models.TextChoices):
        NONE = "", "—"
        ANSWERED = words.Outcome.ANSWERED, "Answered"
        NO_ANSWER = words.Outcome.NO_ANSWER, "No answer"
        BUSY = words.Outcome.BUSY, "Busy"
        FAILED = words.Outcome.FAILED, "Failed"
        VOICEMAIL = words.Outcome.VOICEMAIL, "Voicemail"
        INVALID_NUMBER = words.Outcome.INVALID_NUMBER, "Invalid number"
        PRECHECK_FAILED = words.Outcome.PRECHECK_FAILED, "Not wanted any more"
        NOT_PLACED = words.Outcome.NOT_PLACED, "Not placed"
        DO_NOT_CALL = words.Outcome.DO_NOT_CALL, "Do not call"
        OUTSIDE_WINDOW = words.Outcome.OUTSIDE_WINDOW, "Outside its hours for too long"
        CANCELLED = words.Outcome.CANCELLED, "Cancelled"
        EXHAUSTED = words.Outcome.EXHAUSTED, "Attempts exhausted"
        LOST = words.Outcome.LOST, "End never reported"
        DRY_RUN = words.Outcome.DRY_RUN, "Dry run"

    # Without indexes of their own: those below begin with them.
    organization = models.ForeignKey(Organization, on_delete=models.PROTECT, related_name="+", db_index=False)
    campaign = models.ForeignKey(Campaign, on_delete=models.PROTECT, related_name="leads", db_index=False)
    phone = PhoneNumberField()
    lat = models.FloatField(null=True, blank=True)
    lng = models.FloatField(null=True, blank=True)
    customer = models.CharField(max_length=64, blank=True, help_text="Empty: the campaign's.")
    external_id = models.CharField(
        max_length=120, blank=True, help_text="The client's own name for it, one of its kind in the campaign."
    )
    data = models.JSONField(default=dict, blank=True, help_text="Handed to the script's places and the TwiML URL.")

    status = models.CharField(max_length=16, choices=Status, default=Status.BACKLOG)
    outcome = models.CharField(max_length=24, choices=Outcome, default="", blank=True)
    reason = models.CharField(
        max_length=32, default="", blank=True, help_text="Why it waits, or what ended it (rules.words.Reason)."
    )
    wanted_at = models.DateTimeField(default=clock.now, help_text="When it was first to be called.")
    due_at = models.DateTimeField(default=clock.now, help_text="When it is to be called next.")
    attempts = models.PositiveSmallIntegerField(default=0, help_text="Those that count against the most.")
    token = models.PositiveSmallIntegerField(
        default=0, help_text="The `attempt` of its newest Call; whatever speaks of an older one changes nothing."
    )
    worker = models.CharField(max_length=64, default="", blank=True, help_text="The dialer that claimed it.")
    claimed_at = models.DateTimeField(null=True, blank=True)
    last_outcome = models.CharField(max_length=24, default="", blank=True, help_text="Of the last attempt.")
    created_at = models.DateTimeField(default=clock.now)
    finished_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        ordering = ["-id"]
        constraints = [
            models.UniqueConstraint(
                fields=["campaign", "external_id"], condition=~Q(external_id=""), name="one_lead_per_external_id"
            ),
            models.CheckConstraint(
                condition=Q(status="finished", finished_at__isnull=False) & ~Q(outcome="")
                | Q(status__in=["backlog", "processing"], finished_at__isnull=True, outcome=""),
                name="finished_lead_has_an_outcome",
            ),
            models.CheckConstraint(
                condition=~Q(status="processing") | Q(claimed_at__isnull=False, token__gte=1),
                name="lead_in_processing_is_claimed",
            ),
            models.CheckConstraint(
                condition=Q(lat__isnull=True, lng__isnull=True) | Q(lat__isnull=False, lng__isnull=False),
                name="lead_position_is_whole",
            ),
        ]
        indexes = [
            models.Index(fields=["due_at", "id"], condition=Q(status="backlog"), name="lead_to_call"),
            models.Index(fields=["claimed_at"], condition=Q(status="processing"), name="lead_being_called"),
            models.Index(fields=["campaign", "status"], name="lead_of_campaign"),
            models.Index(
                fields=["campaign", "reason", "id"],
                condition=Q(status="backlog", reason__in=words.HELD),
                name="lead_that_is_held",
            ),
            models.Index(fields=["organization", "phone"], name="lead_of_phone"),
        ]

    def __str__(self) -> str:
        return f"Lead {self.pk}"


class LeadDispatch(OwnedModel):
    """How far the leads of an organization go: off, dry-run (everything but the call) or live; and its pause.
    An organization without this row is off."""

    class Mode(models.TextChoices):
        OFF = words.Mode.OFF, "Off"
        DRY_RUN = words.Mode.DRY_RUN, "Dry run"
        LIVE = words.Mode.LIVE, "Live"

    organization = models.OneToOneField(Organization, on_delete=models.CASCADE, related_name="lead_dispatch")
    mode = models.CharField(max_length=8, choices=Mode, default=Mode.OFF)
    is_paused = models.BooleanField(default=False)

    class Meta:
        verbose_name_plural = "lead dispatch"

    def __str__(self) -> str:
        return f"{self.organization}: {self.get_mode_display()}"


class EngineSwitch(models.Model):
    """The one row of switches for all organizations."""

    is_stopped = models.BooleanField("kill switch", default=False, help_text="Nobody's lead is called.")
    promoter_paused = models.BooleanField(default=False, help_text="Due leads stay in the schedule.")

    class Meta:
        verbose_name_plural = "engine switches"
        constraints = [models.CheckConstraint(condition=Q(pk=1), name="one_engine_switch")]

    def __str__(self) -> str:
        return "Lead calling for all organizations"
