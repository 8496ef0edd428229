"""When a caller number is unhealthy and rests."""

from django.core.validators import MaxValueValidator, MinValueValidator
from django.db import models

from accounts.models import Organization
from accounts.scoping import OwnedModel
from dispatch.core.languages import gettext

_PERCENT = [MinValueValidator(0), MaxValueValidator(100)]


class NumberHealthPolicy(OwnedModel):
    """An organization's thresholds for the health of its caller numbers. Without a row, the defaults apply."""

    organization = models.OneToOneField(
        Organization, on_delete=models.PROTECT, related_name="number_health_policy"
    )
    window_hours = models.PositiveSmallIntegerField(
        "window (hours)",
        default=24,
        validators=[MinValueValidator(1), MaxValueValidator(72)],
        help_text="The calls and texts of this time count.",
    )
    min_calls = models.PositiveSmallIntegerField(
        "minimum number of calls",
        default=50,
        validators=[MinValueValidator(10), MaxValueValidator(5000)],
        help_text="A number with fewer calls in the window is not judged.",
    )
    min_answer_percent = models.PositiveSmallIntegerField(
        "minimum answer rate (%)", default=10, validators=_PERCENT, help_text="0 means any."
    )
    max_error_percent = models.PositiveSmallIntegerField(
        "maximum error rate (%)",
        default=25,
        validators=_PERCENT,
        help_text="Share of calls that failed for another reason than the called phone. 100 means any.",
    )
    max_blocked_percent = models.PositiveSmallIntegerField(
        "maximum share blocked (%)",
        default=20,
        validators=_PERCENT,
        help_text="Share of calls, or of the latest texts, that carriers blocked as unwanted. 100 means any.",
    )
    rest_hours = models.PositiveSmallIntegerField(
        "rest (hours)",
        default=4,
        validators=[MinValueValidator(1), MaxValueValidator(168)],
        help_text="How long an unhealthy number is avoided while another of its pool is healthy.",
    )

    class Meta:
        verbose_name = "number health policy"
        verbose_name_plural = "number health policies"
        ordering = ["organization_id"]

    def __str__(self) -> str:
        return gettext("Number health policy")
