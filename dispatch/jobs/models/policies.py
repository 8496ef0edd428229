"""Models of what organizations configure: service types, dispatch policies and the public form."""

import re
from typing import ClassVar

from django.core.exceptions import ValidationError
from django.core.validators import MaxValueValidator, MinValueValidator
from django.db import models
from django.db.models import Q

from accounts.models import Organization
from accounts.scoping import OwnedModel
from dispatch.capacity.models import DispatchPool
from dispatch.core.languages import gettext, mark
from dispatch.jobs.rules import quiet_hours, slots
from dispatch.technicians.models import Skill


class ServiceType(OwnedModel):
    """A service that customers can request, with the skills that it requires and those that it prefers."""

    code = models.SlugField(max_length=64)
    name = models.CharField(max_length=80)
    spoken_name = models.CharField(
        max_length=120, blank=True, help_text="How phone prompts say it. Leave empty to use the name."
    )
    required_skills = models.ManyToManyField(Skill, blank=True, related_name="+")
    preferred_skills = models.ManyToManyField(
        Skill, blank=True, related_name="+", help_text="Technicians who have these are called earlier."
    )
    expected_minutes = models.IntegerField(
        "usual duration (min)",
        null=True,
        blank=True,
        validators=[MinValueValidator(5), MaxValueValidator(1440)],
        help_text="How long the work usually takes, for the timeline of technicians.",
    )
    is_active = models.BooleanField(default=True)

    class Meta:
        ordering = ["name"]
        constraints = [models.UniqueConstraint(fields=["organization", "code"], name="one_service_type_per_code")]

    def __str__(self) -> str:
        return self.name


def _seconds(label: str, low: int, high: int) -> models.PositiveIntegerField:
    return models.PositiveIntegerField(
        f"{label} (s)", null=True, blank=True, validators=[MinValueValidator(low), MaxValueValidator(high)]
    )


class DispatchPolicy(OwnedModel):
    """How jobs are offered, for one service type or, if that is empty, for the organization.

    An empty field falls back: service type → organization → settings. The values are frozen into a job when it
    starts (`rules.CascadePolicy`).
    """

    service_type = models.OneToOneField(
        ServiceType, null=True, blank=True, on_delete=models.CASCADE, related_name="policy"
    )
    call_pool = models.ForeignKey(
        DispatchPool,
        null=True,
        blank=True,
        on_delete=models.PROTECT,
        related_name="+",
        limit_choices_to={"kind": "calls"},
        help_text="Pool of caller numbers. Leave empty for the default pool. Changes affect running jobs.",
    )
    answer_timeout_s = _seconds("delay between attempts", 10, 3600)
    ring_timeout_s = _seconds("ring time", 5, 600)
    answered_extension_s = _seconds("time to decide after answering", 10, 600)
    line_wait_s = _seconds("max wait for a line", 5, 7200)
    technician_wait_s = _seconds("max wait for technicians with another offer", 0, 7200)
    radius_m = models.PositiveIntegerField(
        "radius (m)", null=True, blank=True, validators=[MinValueValidator(100), MaxValueValidator(500_000)]
    )
    radius_growth = models.PositiveSmallIntegerField(
        "widen the radius per round (%)",
        null=True,
        blank=True,
        validators=[MaxValueValidator(400)],
        help_text="Each round searches this much farther than the round before. 0: all rounds search the same "
        "radius.",
    )
    max_radius_m = models.PositiveIntegerField(
        "max radius (m)",
        null=True,
        blank=True,
        validators=[MinValueValidator(100), MaxValueValidator(500_000)],
        help_text="The radius never widens beyond this.",
    )
    max_candidates = models.PositiveSmallIntegerField(
        "max candidates", null=True, blank=True, validators=[MinValueValidator(1), MaxValueValidator(50)]
    )
    rounds = models.PositiveSmallIntegerField(
        null=True, blank=True, validators=[MinValueValidator(1), MaxValueValidator(5)]
    )
    offers_at_once_for_emergencies = models.PositiveSmallIntegerField(
        "technicians called at once for emergencies",
        null=True,
        blank=True,
        validators=[MinValueValidator(1), MaxValueValidator(slots.MAX_AT_ONCE)],
        help_text="The first one who accepts has the job, and the others hear that it is taken. 1: one technician "
        "after another. Each call needs a line.",
    )
    weight_distance = models.FloatField(null=True, blank=True, validators=[MinValueValidator(0)])
    weight_workload = models.FloatField(null=True, blank=True, validators=[MinValueValidator(0)])
    weight_rest = models.FloatField(null=True, blank=True, validators=[MinValueValidator(0)])
    weight_skills = models.FloatField(null=True, blank=True, validators=[MinValueValidator(0)])
    auto_pause_misses = models.PositiveSmallIntegerField(
        "missed calls in a row before a technician is paused",
        null=True,
        blank=True,
        validators=[MaxValueValidator(100)],
        help_text="0: never pause. Changes affect running jobs.",
    )
    pause_reminder_s = models.PositiveIntegerField(
        "remind of a paused job after (s)",
        null=True,
        blank=True,
        validators=[MaxValueValidator(604_800)],
        help_text="0: never.",
    )
    start_within_s = models.PositiveIntegerField(
        "work must start within (s)",
        null=True,
        blank=True,
        validators=[MaxValueValidator(604_800)],
        help_text="An assigned job that is not started by then needs attention. 0: no limit.",
    )
    finish_within_s = models.PositiveIntegerField(
        "work must end within (s)",
        null=True,
        blank=True,
        validators=[MaxValueValidator(604_800)],
        help_text="A started job that is not completed by then needs attention. 0: no limit.",
    )
    window_lead_s = models.IntegerField(
        "call technicians before an arrival window (s)",
        null=True,
        blank=True,
        validators=[MinValueValidator(0), MaxValueValidator(604_800)],
        help_text="A job with an arrival window calls nobody until this long before it.",
    )
    quiet_for = models.CharField(
        "quiet hours",
        max_length=16,
        blank=True,
        default="",
        db_default="",
        choices=[
            (quiet_hours.OFF, "Call at any hour"),
            (quiet_hours.NORMAL, "Normal jobs wait"),
            (quiet_hours.URGENT, "Urgent and normal jobs wait"),
        ],
        help_text="A job that waits calls nobody until the quiet hours end. Emergencies never wait. Changes "
        "affect running jobs.",
    )
    quiet_from = models.TimeField("from", null=True, blank=True, help_text="In the organization's time zone.")
    quiet_until = models.TimeField("until", null=True, blank=True)
    duplicate_hours = models.PositiveSmallIntegerField(
        "flag probable duplicates within (h)",
        null=True,
        blank=True,
        validators=[MaxValueValidator(720)],
        help_text="A new job is flagged if an open job of these hours has the same customer phone or address. 0: "
        "never.",
    )
    offer_by_text = models.BooleanField("also send offers by text", null=True, blank=True)
    missed_call_grace_s = models.PositiveIntegerField(
        "time to answer after a missed call (s)",
        null=True,
        blank=True,
        validators=[MaxValueValidator(3600)],
        help_text="By text, link or call-back. 0: call the next technician immediately.",
    )
    address_by_text = models.BooleanField("text the address after accepting", null=True, blank=True)
    advance_on_decline = models.BooleanField("when declined", null=True, blank=True)
    advance_on_busy = models.BooleanField("when busy", null=True, blank=True)
    advance_on_failed = models.BooleanField("when the call failed", null=True, blank=True)
    advance_on_no_answer = models.BooleanField("when not answered", null=True, blank=True)
    advance_on_hangup = models.BooleanField("when hung up without pressing a key", null=True, blank=True)

    REFUSALS: ClassVar[dict[str, str]] = {
        "one_policy_per_organization": mark(
            "The organization already has a policy for all service types. Change that policy, or choose a service "
            "type."
        )
    }

    class Meta:
        verbose_name_plural = "dispatch policies"
        constraints = [
            models.UniqueConstraint(
                fields=["organization"], condition=Q(service_type=None), name="one_policy_per_organization"
            )
        ]

    def __str__(self) -> str:
        if self.service_type is None:
            return gettext("Policy of the organization")
        return gettext("Policy of {service}").format(service=self.service_type)

    def clean(self) -> None:
        """Raise ValidationError for contradictions, including with the values that empty fields fall back to."""
        from dispatch.jobs import policies  # it reads these tables

        if problems := policies.problems_of(self):
            raise ValidationError(problems)


class PublicForm(OwnedModel):
    """An organization's request form for customers, at /f/<slug>/.

    The page does not exist without a row or while the form is switched off.
    """

    organization = models.OneToOneField(Organization, on_delete=models.PROTECT, related_name="public_form")
    is_on = models.BooleanField("switched on", default=True)
    heading = models.CharField(max_length=120, blank=True, help_text="Empty: “Request a technician”.")
    intro = models.TextField(max_length=1000, blank=True, help_text="Shown above the form.")
    thanks = models.TextField(max_length=1000, blank=True, help_text="Shown after the form is sent.")
    asks_urgency = models.BooleanField("ask how urgent it is", default=True)
    per_hour = models.PositiveIntegerField(
        "max requests per hour", default=60, validators=[MinValueValidator(1), MaxValueValidator(10_000)]
    )
    embed_origins = models.TextField(
        "websites that may embed the form",
        max_length=2000,
        blank=True,
        help_text="One per line, such as https://www.example.com. Leave empty to allow any.",
    )

    def __str__(self) -> str:
        return gettext("Form of {organization}").format(organization=self.organization)

    def clean(self) -> None:
        """Raise ValidationError for anything that isn't an origin."""
        wrong = [line for line in self._origins() if not _ORIGIN.fullmatch(line)]
        if wrong:
            raise ValidationError(
                {
                    "embed_origins": gettext("{value} isn't an origin such as https://www.example.com.").format(
                        value=wrong[0]
                    )
                }
            )

    def frame_ancestors(self) -> str:
        """Return the sites that may embed the form, in Content-Security-Policy syntax."""
        return " ".join(self._origins()) or "*"

    def _origins(self) -> list[str]:
        return [line.strip() for line in self.embed_origins.splitlines() if line.strip()]


_ORIGIN = re.compile(r"https?://(\*\.)?[A-Za-z0-9.-]+(:\d{1,5})?")
