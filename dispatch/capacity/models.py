"""ProviderAccount, DispatchPool, OutboundNumber.

ProviderAccount lives here, not in telephony, because an OutboundNumber belongs to one and its calls per second
are a limit like the others; what an account can do is telephony's."""

from django.core.validators import MaxValueValidator, MinValueValidator
from django.db import models
from django.db.models import Q
from phonenumber_field.modelfields import PhoneNumberField

from accounts.scoping import OwnedModel
from dispatch.capacity import providers
from dispatch.core import clock
from dispatch.core.crypto import EncryptedTextField

NUMBER_TAKEN = (
    "This number is already called from, under another account or organization. A caller number belongs to one: "
    "pause it there first."
)


class ProviderAccount(OwnedModel):
    """An organization's account at a telephone provider."""

    name = models.CharField(max_length=80)
    provider = models.CharField(max_length=32, default="twilio", choices=providers.choices)
    account_sid = models.CharField("account id", max_length=64)
    auth_token = EncryptedTextField(help_text="Stored encrypted; signs webhooks and requests.")
    previous_auth_token = EncryptedTextField(
        blank=True, default="", help_text="Still accepted on webhooks while a key is being rotated."
    )
    calls_per_second = models.FloatField(default=1.0, validators=[MinValueValidator(0.01)])
    is_active = models.BooleanField(default=True)
    created_at = models.DateTimeField(default=clock.now, editable=False)

    class Meta:
        constraints = [models.UniqueConstraint(fields=["organization", "name"], name="one_account_per_name")]

    def __str__(self) -> str:
        return self.name


class DispatchPool(OwnedModel):
    """A named limit of one kind, calls or messages. Numbers belong to call pools, endpoints to message pools."""

    class Kind(models.TextChoices):
        CALLS = "calls", "Calls"
        MESSAGES = "messages", "Messages"

    code = models.SlugField(max_length=64)
    name = models.CharField(max_length=80)
    kind = models.CharField(max_length=16, choices=Kind, default=Kind.CALLS)
    concurrency = models.PositiveIntegerField(
        default=10,
        validators=[MinValueValidator(1), MaxValueValidator(10_000)],
        help_text="At most this many at once.",
    )
    rate_per_minute = models.PositiveIntegerField(
        null=True, blank=True, validators=[MinValueValidator(1)], help_text="Empty: no limit."
    )
    is_default = models.BooleanField(default=False, help_text="Used where a policy names no pool.")
    is_paused = models.BooleanField(default=False)

    class Meta:
        ordering = ["code"]
        constraints = [
            models.UniqueConstraint(fields=["organization", "code"], name="one_pool_per_code"),
            models.UniqueConstraint(
                fields=["organization", "kind"], condition=Q(is_default=True), name="one_default_pool_per_kind"
            ),
            models.CheckConstraint(condition=Q(concurrency__gte=1), name="pool_has_room"),
        ]

    def __str__(self) -> str:
        return self.name


class OutboundNumber(OwnedModel):
    """A caller number. It carries at most `max_channels` calls at once (slots 1…max_channels).

    Of those, `reserved_for_alerts` slots only alerts may take, and a further `reserved_for_offers` only alerts
    and offers; leads take what is left.

    A caller number belongs to one organization, for a reason beyond its lines: a call of unknown outcome is looked
    for in the provider's list by who was called from which number, and the provider does not say whose webhooks a
    listed call has. Two organizations that entered the same account and number could each take the other's call to
    the same phone for its own. Sharing the account alone is harmless, so that is allowed; a paused number makes no
    calls, so it may be handed over by pausing it where it was."""

    account = models.ForeignKey(ProviderAccount, on_delete=models.PROTECT, related_name="numbers")
    pool = models.ForeignKey(
        DispatchPool, on_delete=models.PROTECT, related_name="numbers", limit_choices_to={"kind": "calls"}
    )
    phone = PhoneNumberField()
    name = models.CharField(max_length=80, blank=True)
    max_channels = models.PositiveIntegerField(
        "lines", default=1, validators=[MinValueValidator(1), MaxValueValidator(1000)]
    )
    reserved_for_alerts = models.PositiveIntegerField(default=0)
    reserved_for_offers = models.PositiveIntegerField(default=0)
    is_paused = models.BooleanField(default=False)
    sends_texts = models.BooleanField(
        default=False, help_text="May send SMS: the provider must have enabled and registered it for that."
    )
    texts_per_second = models.FloatField(
        default=1.0, validators=[MinValueValidator(0.01)], help_text="As the provider allows this number."
    )

    class Meta:
        ordering = ["phone"]
        constraints = [
            models.UniqueConstraint(fields=["account", "phone"], name="one_number_per_account"),
            models.UniqueConstraint(
                fields=["phone"],
                condition=Q(is_paused=False),
                name="one_owner_per_caller_number",
                violation_error_message=NUMBER_TAKEN,
            ),
            models.CheckConstraint(
                condition=Q(max_channels__gte=models.F("reserved_for_alerts") + models.F("reserved_for_offers")),
                name="reserved_lines_exist",
            ),
        ]

    def __str__(self) -> str:
        return self.name or self.phone.as_national
