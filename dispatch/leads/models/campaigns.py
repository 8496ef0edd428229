"""Define Campaign, Lead, and the switches that hold them back."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

from django.contrib.postgres.fields import ArrayField
from django.core.exceptions import ValidationError
from django.core.validators import MaxValueValidator, MinValueValidator, RegexValidator, URLValidator
from django.db import models
from django.db.models import Q
from phonenumber_field.modelfields import PhoneNumberField

from accounts.models import Organization, validate_own_voice
from accounts.scoping import OwnedModel
from accounts.speech_fields import own_language, own_voice
from dispatch.capacity.models import DispatchPool
from dispatch.core import clock
from dispatch.core.crypto import EncryptedTextField
from dispatch.core.languages import gettext, mark
from dispatch.leads.rules import states
from dispatch.leads.rules.script import has_words

check_url = URLValidator(schemes=["http", "https"])
check_purpose = RegexValidator(
    r"^[a-z][a-z0-9_]{0,39}$", "Use lowercase letters, digits and underscores, such as marketing."
)
one_key = RegexValidator(r"^[0-9]?$", "One key, 0 to 9.")

# Moments outside of these years cannot be read from PostgreSQL, or not be shown in every time zone.
FIRST_YEAR, MAX_AHEAD = 1900, timedelta(days=366 * 5)


def check_due_at(due_at: datetime) -> None:
    """Accept when a new lead is due (aware). Raises ValidationError."""
    if due_at.year < FIRST_YEAR:
        raise ValidationError(gettext("Must be after {year}.").format(year=FIRST_YEAR))
    if due_at > clock.now() + MAX_AHEAD:
        raise ValidationError(gettext("Must be at most five years from now."))


def every_day() -> list[int]:
    """Return all weekdays, from Monday = 0."""
    return [0, 1, 2, 3, 4, 5, 6]


def _between(low: int, high: int) -> list[Any]:
    return [MinValueValidator(low), MaxValueValidator(high)]


class Campaign(OwnedModel):
    """A set of leads with its calling window, retry rules, script and pool. Every call reads its current state."""

    class WithoutAnswer(models.TextChoices):
        CALL = "call", "Call anyway"
        LATER = "later", "Ask again later"
        DROP = "drop", "Do not call"

    code = models.SlugField(max_length=64)
    name = models.CharField(max_length=120)
    pool = models.ForeignKey(
        DispatchPool,
        on_delete=models.PROTECT,
        related_name="+",
        limit_choices_to={"kind": "calls"},
        help_text="The pool whose numbers make the calls.",
    )
    is_paused = models.BooleanField(default=False)
    customer = models.SlugField(
        max_length=64,
        blank=True,
        help_text=("The customer on whose behalf it calls, for rate limits. A lead can name another one."),
    )

    # The calling window, in the called person's local time.
    window_from = models.TimeField(default="08:00", help_text="Local time of the person called.")
    window_until = models.TimeField(
        default="21:00", help_text="If earlier than the start, the window runs past midnight."
    )
    weekdays = ArrayField(
        models.PositiveSmallIntegerField(validators=[MaxValueValidator(6)]),
        default=every_day,
        help_text="0 is Monday. For an overnight window, the day on which it begins.",
    )
    keeps_holidays = models.BooleanField(default=True, help_text="No calls on holidays.")
    patience_h = models.PositiveIntegerField(
        "patience (h)",
        default=168,
        validators=[MinValueValidator(1), MaxValueValidator(8760)],
        help_text="A lead that couldn't be called within this time after it was due is given up.",
    )
    max_attempts = models.PositiveSmallIntegerField("most attempts", default=3, validators=_between(1, 50))
    max_attempts_24h = models.PositiveSmallIntegerField(
        "most attempts in 24 h", default=3, validators=_between(1, 50), help_text="In any 24 hours, per phone."
    )

    # Script.
    language = own_language("Of the script. Leave empty for the organization's.")
    voice = own_voice("It must speak the language of the script. Leave empty for the organization's.")
    script = models.TextField(blank=True, help_text="Read aloud; one sentence per line.")
    keys = models.JSONField(
        default=dict, blank=True, help_text=('What is said when a key is pressed, for example {"1": "Thank you."}')
    )
    recording = models.ForeignKey(
        "leads.Recording",
        on_delete=models.RESTRICT,
        related_name="+",
        null=True,
        blank=True,
        help_text="Played instead of reading the script.",
    )
    variables = models.CharField(
        max_length=400,
        blank=True,
        default="",
        db_default="",
        help_text="Names of your leads' data that the script uses, separated by commas. name, appointment and "
        "other usual names are known.",
    )
    voicemail = models.TextField(
        "message for voicemail",
        blank=True,
        default="",
        db_default="",
        help_text="Left after the beep if a machine answers. Needs answering-machine detection.",
    )
    voicemail_recording = models.ForeignKey(
        "leads.Recording",
        on_delete=models.RESTRICT,
        related_name="+",
        null=True,
        blank=True,
        help_text="Left on voicemail instead of the message.",
    )
    opt_out_key = models.CharField(
        max_length=1, blank=True, default="9", validators=[one_key], help_text="Leave empty for none."
    )
    answer_url = models.CharField(
        "TwiML URL",
        max_length=2000,
        blank=True,
        validators=[check_url],
        help_text="Hands the call over to this document instead of reading the script.",
    )
    consent_purpose = models.CharField(
        "needs consent for",
        max_length=40,
        blank=True,
        default="",
        db_default="",
        validators=[check_purpose],
        help_text="A purpose in your words, such as marketing. Leads without a recorded consent for it are not "
        "called. Leave empty to need none.",
    )
    detect_machines = models.BooleanField(default=False, help_text="Answering-machine detection.")
    ring_timeout_s = models.PositiveSmallIntegerField("ring time (s)", default=30, validators=_between(5, 600))
    time_limit_s = models.PositiveSmallIntegerField(
        "longest call (s)", default=300, validators=_between(10, 14400)
    )

    # The pre-check, which asks whether a lead is still wanted.
    precheck_url = models.CharField("pre-check URL", max_length=2000, blank=True, validators=[check_url])
    precheck_secret = EncryptedTextField(blank=True, default="", help_text="Signs the pre-check request.")
    precheck_timeout_s = models.FloatField(
        "time-out (s)", default=2.0, validators=[MinValueValidator(0.1), MaxValueValidator(30)]
    )
    precheck_without_answer = models.CharField(
        "if there is no response", max_length=8, choices=WithoutAnswer, default=WithoutAnswer.LATER
    )
    allows_duplicates = models.BooleanField(
        "call a phone more than once at a time",
        default=False,
        db_default=False,
        help_text="Off: a lead is left out while the campaign has an open lead to the same phone.",
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

    def clean(self) -> None:
        if self.organization_id is not None:
            validate_own_voice(self.organization, self.language, self.voice)

    @property
    def has_words(self) -> bool:
        """Return whether a call of the campaign says something."""
        return has_words(self.script, self.answer_url, self.recording_id is not None) or self.agent_answers

    @property
    def agent_answers(self) -> bool:
        """Return whether a voice agent takes the answered calls."""
        agent = getattr(self, "agent", None)
        return agent is not None and bool(agent.starts == "answer")


class Lead(OwnedModel):
    """A phone number to call.

    `backlog` → `processing` → `finished` with an outcome, or back to `backlog` for another attempt. Its attempts
    are Calls with the purpose `lead` and this id as their subject.
    """

    class Status(models.TextChoices):
        BACKLOG = states.Status.BACKLOG, mark("Waiting")
        PROCESSING = states.Status.PROCESSING, mark("Being called")
        FINISHED = states.Status.FINISHED, mark("Finished")

    class Outcome(models.TextChoices):
        NONE = "", "—"
        ANSWERED = states.Outcome.ANSWERED, mark("Answered")
        NO_ANSWER = states.Outcome.NO_ANSWER, mark("No answer")
        BUSY = states.Outcome.BUSY, mark("Busy")
        FAILED = states.Outcome.FAILED, mark("Failed")
        VOICEMAIL = states.Outcome.VOICEMAIL, mark("Voicemail")
        INVALID_NUMBER = states.Outcome.INVALID_NUMBER, mark("Invalid number")
        PRECHECK_FAILED = states.Outcome.PRECHECK_FAILED, mark("No longer wanted")
        NOT_PLACED = states.Outcome.NOT_PLACED, mark("Not placed")
        DO_NOT_CALL = states.Outcome.DO_NOT_CALL, mark("Do not call")
        OUTSIDE_WINDOW = states.Outcome.OUTSIDE_WINDOW, mark("Outside its hours for too long")
        CANCELLED = states.Outcome.CANCELLED, mark("Canceled")
        EXHAUSTED = states.Outcome.EXHAUSTED, mark("Attempts exhausted")
        LOST = states.Outcome.LOST, mark("End never reported")
        DRY_RUN = states.Outcome.DRY_RUN, mark("Dry run")
        NO_CONSENT = states.Outcome.NO_CONSENT, mark("No consent")

    # No separate indexes: those below begin with these columns.
    organization = models.ForeignKey(Organization, on_delete=models.PROTECT, related_name="+", db_index=False)
    campaign = models.ForeignKey(Campaign, on_delete=models.PROTECT, related_name="leads", db_index=False)
    phone = PhoneNumberField()
    lat = models.FloatField(null=True, blank=True)
    lng = models.FloatField(null=True, blank=True)
    customer = models.CharField(max_length=64, blank=True, help_text="Leave empty for the campaign's.")
    external_id = models.CharField(
        max_length=120, blank=True, help_text="The client's own ID for it, unique in the campaign."
    )
    data = models.JSONField(
        default=dict, blank=True, help_text=("Fills the script's placeholders and is passed to the TwiML URL.")
    )

    status = models.CharField(max_length=16, choices=Status, default=Status.BACKLOG)
    outcome = models.CharField(max_length=24, choices=Outcome, default="", blank=True)
    reason = models.CharField(max_length=32, default="", blank=True, help_text="Why it waits, or what ended it.")
    wanted_at = models.DateTimeField(default=clock.now, help_text="When it was first to be called.")
    due_at = models.DateTimeField(default=clock.now, help_text="When it is to be called next.")
    attempts = models.PositiveSmallIntegerField(default=0, help_text="Attempts that count against the maximum.")
    token = models.PositiveSmallIntegerField(
        default=0,
        help_text=("The `attempt` of its newest Call; anything that refers to an older one changes nothing."),
    )
    refusals = models.IntegerField(
        default=0, db_default=0, editable=False, help_text="Consecutive calls that the provider refused."
    )
    sent_back = models.IntegerField(
        default=0, db_default=0, editable=False, help_text="Consecutive calls that the provider never accepted."
    )
    worker = models.CharField(max_length=64, default="", blank=True, help_text="The dialer that claimed it.")
    claimed_at = models.DateTimeField(null=True, blank=True)
    last_outcome = models.CharField(max_length=24, default="", blank=True, help_text="Result of the last attempt.")
    disposition = models.CharField(
        max_length=40, blank=True, default="", db_default="", help_text="The outcome in the organization's words."
    )
    notes = models.TextField(blank=True, default="", db_default="")
    contact_from = models.TimeField(
        null=True, blank=True, help_text="The person may be called from this local time, within all other hours."
    )
    contact_until = models.TimeField(null=True, blank=True)
    call_back_at = models.DateTimeField(
        null=True, blank=True, help_text="When the person asked to be called again, during the call."
    )
    cancel_requested_at = models.DateTimeField(
        null=True, blank=True, editable=False, help_text="When it was canceled during its call."
    )
    created_at = models.DateTimeField(default=clock.now)
    finished_at = models.DateTimeField(null=True, blank=True)
    simulated_at = models.DateTimeField(null=True, blank=True, help_text="When a dry run would have called it.")
    simulated_outcome = models.CharField(
        max_length=24,
        blank=True,
        default="",
        db_default="",
        help_text="What a dry run would have done: called, or the outcome with which it would have ended.",
    )
    is_only_of_phone = models.BooleanField(
        null=True, editable=False, help_text="Whether the campaign has no other open lead to this phone."
    )

    class Meta:
        ordering = ["-id"]
        constraints = [
            models.UniqueConstraint(
                fields=["campaign", "external_id"], condition=~Q(external_id=""), name="one_lead_per_external_id"
            ),
            models.UniqueConstraint(
                fields=["campaign", "phone"],
                condition=Q(is_only_of_phone=True) & ~Q(status="finished"),
                name="one_open_lead_per_phone",
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
            models.Index(fields=["campaign", "-id"], name="lead_newest_of_campaign"),
            models.Index(
                fields=["campaign", "reason", "id"],
                condition=Q(status="backlog", reason__in=states.HELD),
                name="lead_held",
            ),
            models.Index(
                fields=["campaign", "due_at"],
                condition=Q(status="backlog", reason="customer_rate"),
                name="lead_in_rate_queue",
            ),
            models.Index(fields=["organization", "phone"], name="lead_of_phone"),
            models.Index(fields=["organization", "-id"], name="lead_newest"),
            models.Index(
                fields=["organization", "finished_at"], condition=Q(status="finished"), name="lead_finished"
            ),
        ]

    def __str__(self) -> str:
        return gettext("Lead {id}").format(id=self.pk)


class LeadDispatch(OwnedModel):
    """The mode of an organization's lead calling, off, dry run (everything but the call) or live, and its pause.

    An organization without this row is off.
    """

    class Mode(models.TextChoices):
        OFF = states.Mode.OFF, mark("Off")
        DRY_RUN = states.Mode.DRY_RUN, mark("Dry run")
        LIVE = states.Mode.LIVE, mark("Live")

    organization = models.OneToOneField(Organization, on_delete=models.CASCADE, related_name="lead_dispatch")
    mode = models.CharField(max_length=8, choices=Mode, default=Mode.OFF)
    is_paused = models.BooleanField(default=False)
    agent_hosts = models.CharField(
        "hosts of voice agents",
        max_length=1000,
        blank=True,
        default="",
        db_default="",
        help_text="Hosts that the WebSocket URLs of campaigns may name, separated by commas, such as "
        "bots.example.com or *.example.com. Leave empty to allow any.",
    )

    class Meta:
        verbose_name_plural = "lead dispatch"

    def __str__(self) -> str:
        return f"{self.organization}: {self.get_mode_display()}"


class EngineSwitch(models.Model):
    """The single row of switches for all organizations."""

    is_stopped = models.BooleanField("kill switch", default=False, help_text="No leads are called.")
    promoter_paused = models.BooleanField(default=False, help_text="Due leads stay in the schedule.")

    class Meta:
        verbose_name_plural = "engine switches"
        constraints = [models.CheckConstraint(condition=Q(pk=1), name="one_engine_switch")]

    def __str__(self) -> str:
        return gettext("Lead calling for all organizations")
