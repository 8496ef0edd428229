"""The price of a call or text, and an organization's limit of what they may cost in a day."""

from datetime import date
from decimal import Decimal

from django.core.validators import MaxValueValidator, MinValueValidator, RegexValidator
from django.db import models

from accounts.models import Organization
from accounts.scoping import OwnedModel
from dispatch.core import clock
from dispatch.core.languages import gettext

CURRENCY = r"^[A-Z]{3}\Z"
_CURRENCY = [RegexValidator(CURRENCY, "Enter three capital letters, such as USD.")]


def today() -> date:
    """Return the current date in UTC."""
    return clock.now().date()


class Priced(models.Model):
    """A call or text with its price, which the provider reports some time after the end."""

    price = models.DecimalField(
        max_digits=14,
        decimal_places=6,
        null=True,
        blank=True,
        help_text="What the provider charged, exactly. Negative means a credit, empty that no price is known.",
    )
    price_unit = models.CharField("currency of the price", max_length=3, blank=True, default="", db_default="")
    price_checked_at = models.DateTimeField(
        null=True, blank=True, help_text="When the provider was last asked for the price."
    )

    class Meta:
        abstract = True

    @property
    def cost(self) -> str:
        """Return the price with its currency; empty if it is not known."""
        return "" if self.price is None else f"{self.price.normalize():f} {self.price_unit}".strip()


class SpendCap(OwnedModel):
    """What an organization may spend on calls and texts in one of its local days.

    The first group of fields is edited by admins. Only `services.spend_caps` writes the second.
    """

    organization = models.OneToOneField(Organization, on_delete=models.PROTECT, related_name="spend_cap")
    amount = models.DecimalField(
        max_digits=12,
        decimal_places=2,
        null=True,
        blank=True,
        validators=[MinValueValidator(Decimal(0))],
        help_text="Maximum cost of a day. At the cap, everything but alert calls stops. Empty means no cap.",
    )
    currency = models.CharField(
        max_length=3,
        default="USD",
        validators=_CURRENCY,
        help_text="The currency in which the phone provider bills. Amounts in others count by your exchange "
        "rates, or not at all.",
    )
    warn_percent = models.PositiveSmallIntegerField(
        "warn at (%)",
        default=80,
        validators=[MinValueValidator(1), MaxValueValidator(100)],
        help_text="Dispatchers and admins are alerted when this share of the cap is used.",
    )

    day = models.DateField(null=True, editable=False, help_text="The local day that the figures are about.")
    spent = models.DecimalField(
        max_digits=18,
        decimal_places=6,
        default=Decimal(0),
        editable=False,
        help_text="Known prices, plus an estimate for calls and texts whose price is not known.",
    )
    settled = models.DecimalField(
        max_digits=18,
        decimal_places=6,
        default=Decimal(0),
        editable=False,
        help_text="As `spent`, without calls in progress.",
    )
    call_average = models.DecimalField(max_digits=14, decimal_places=6, null=True, editable=False)
    text_average = models.DecimalField(max_digits=14, decimal_places=6, null=True, editable=False)
    other_currencies = models.CharField(
        max_length=64,
        blank=True,
        default="",
        editable=False,
        help_text="What was spent today in other currencies, which the cap does not count.",
    )
    counted_at = models.DateTimeField(null=True, editable=False)
    warned_at = models.DateTimeField(null=True, editable=False)
    stopped_at = models.DateTimeField(null=True, editable=False, help_text="Since when calls and texts wait.")
    resumed_at = models.DateTimeField(null=True, editable=False, help_text="When they last continued.")

    class Meta:
        verbose_name = "daily spending cap"
        ordering = ["organization_id"]

    def __str__(self) -> str:
        if self.amount is None:
            return gettext("No cap")
        return gettext("{amount} {currency} a day").format(amount=self.amount, currency=self.currency)


class ExchangeRate(OwnedModel):
    """What one unit of a currency costs in another: a spending cap counts amounts in other currencies with it."""

    from_currency = models.CharField(
        "billed currency", max_length=3, validators=_CURRENCY, help_text="The currency of the prices, such as EUR."
    )
    to_currency = models.CharField("currency of the cap", max_length=3, default="USD", validators=_CURRENCY)
    rate = models.DecimalField(
        max_digits=18,
        decimal_places=8,
        validators=[MinValueValidator(Decimal("0.00000001"))],
        help_text="What one unit of the billed currency is worth in the currency of the cap, such as 1.08.",
    )
    as_of = models.DateField("date of the rate", default=today)

    class Meta:
        ordering = ["from_currency", "to_currency"]
        constraints = [
            models.UniqueConstraint(
                fields=["organization", "from_currency", "to_currency"], name="one_rate_per_pair"
            ),
            models.CheckConstraint(
                condition=~models.Q(from_currency=models.F("to_currency")),
                name="a_rate_has_two_currencies",
                violation_error_message="Choose two different currencies.",
            ),
            models.CheckConstraint(condition=models.Q(rate__gt=0), name="a_rate_is_positive"),
        ]

    def __str__(self) -> str:
        return f"1 {self.from_currency} = {self.rate.normalize():f} {self.to_currency}"
