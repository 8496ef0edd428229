"""Define ProviderAccount, DispatchPool and OutboundNumber.

ProviderAccount is here, not in telephony, because an OutboundNumber belongs to one and its calls per second are a
limit like the others. Telephony defines what an account can do.
"""

from typing import Any, ClassVar

from django.core.exceptions import NON_FIELD_ERRORS, ValidationError
from django.core.validators import MaxValueValidator, MinValueValidator, RegexValidator
from django.db import models
from django.db.models import Q
from phonenumber_field.modelfields import PhoneNumberField

from accounts.scoping import OwnedModel
from dispatch.capacity import providers, rules
from dispatch.core import clock
from dispatch.core.crypto import EncryptedTextField
from dispatch.core.languages import gettext, mark

# A provider carries many calls from one number. Ten is the default of a pool, and as many as an account that may
# place one call per second begins while the first still rings.
DEFAULT_LINES = 10
NUMBER_TAKEN = mark(
    "This number is already in use under another account or organization. A caller number belongs to one "
    "organization. Pause it there first."
)


class ProviderAccount(OwnedModel):
    """An organization's account at a phone provider."""

    class Outage(models.TextChoices):
        NONE = "", "—"
        REFUSED = "refused", "Refused"
        NO_ANSWER = "no_answer", "No answer"

    name = models.CharField(max_length=80)
    provider = models.CharField(max_length=32, default="twilio", choices=providers.choices)
    account_sid = models.CharField("account id", max_length=64)
    auth_token = EncryptedTextField(help_text="Encrypted. Signs webhooks and requests.")
    previous_auth_token = EncryptedTextField(
        blank=True, default="", help_text="Webhooks still accept it during a key rotation."
    )
    api_key_sid = models.CharField(
        "API key",
        max_length=64,
        blank=True,
        default="",
        db_default="",
        help_text="SID of an API key (SK…). Requests are made with it; the auth token only verifies webhooks.",
    )
    api_key_secret = EncryptedTextField(blank=True, default="", db_default="", help_text="Encrypted.")
    region = models.CharField(
        max_length=16, blank=True, default="", db_default="", help_text="Empty means us1. Others: ie1, au1."
    )
    edge = models.CharField(
        max_length=32, blank=True, default="", db_default="", help_text="Such as dublin. Required with a region."
    )
    calls_per_second = models.FloatField(default=1.0, validators=[MinValueValidator(0.01)])
    is_active = models.BooleanField(default=True)
    created_at = models.DateTimeField(default=clock.now, editable=False)

    # Circuit breaker state; only `account_outages` writes it.
    outage = models.CharField(max_length=16, choices=Outage, blank=True, default="", db_default="", editable=False)
    outage_reason = models.CharField(max_length=255, blank=True, default="", db_default="", editable=False)
    outage_since = models.DateTimeField(null=True, editable=False)
    outage_ended_at = models.DateTimeField(null=True, editable=False, help_text="When the last outage ended.")
    failed_requests = models.PositiveSmallIntegerField(
        default=0, db_default=0, editable=False, help_text="Consecutive failures since the last success."
    )
    is_on_trial = models.BooleanField(
        default=False, db_default=False, editable=False, help_text="Requests are allowed during an outage."
    )
    trials = models.PositiveSmallIntegerField(default=0, db_default=0, editable=False, help_text="Failed trials.")
    has_failed_probe = models.BooleanField(default=False, db_default=False, editable=False)
    probe_at = models.DateTimeField(null=True, editable=False, help_text="When the account is probed next.")
    signature_alerted_at = models.DateTimeField(
        null=True, editable=False, help_text="When a webhook with a wrong signature was last reported."
    )

    class Meta:
        constraints = [models.UniqueConstraint(fields=["organization", "name"], name="one_account_per_name")]
        indexes = [models.Index(fields=["probe_at"], condition=Q(probe_at__isnull=False), name="account_to_probe")]

    def __str__(self) -> str:
        return self.name

    def clean(self) -> None:
        """Reject an account id, an API key and a region of an impossible form."""
        problems = rules.account_problems(
            self.provider,
            account_sid=self.account_sid,
            api_key_sid=self.api_key_sid,
            has_secret=bool(self.api_key_secret),
            region=self.region,
            edge=self.edge,
        )
        if problems:
            raise ValidationError(problems)


class DispatchPool(OwnedModel):
    """A named limit for calls or messages. Numbers belong to call pools, endpoints to message pools."""

    class Kind(models.TextChoices):
        CALLS = "calls", "Calls"
        MESSAGES = "messages", "Messages"

    code = models.SlugField(max_length=64)
    name = models.CharField(max_length=80)
    kind = models.CharField(max_length=16, choices=Kind, default=Kind.CALLS)
    concurrency = models.PositiveIntegerField(
        default=10,
        validators=[MinValueValidator(1), MaxValueValidator(10_000)],
        help_text="Maximum number of calls or messages at the same time.",
    )
    rate_per_minute = models.PositiveIntegerField(
        null=True, blank=True, validators=[MinValueValidator(1)], help_text="Empty means no limit."
    )
    is_default = models.BooleanField(default=False, help_text="Used if a policy names no pool.")
    is_paused = models.BooleanField(default=False)
    fallback = models.ForeignKey(
        "self",
        on_delete=models.PROTECT,
        null=True,
        blank=True,
        related_name="+",
        db_index=False,
        limit_choices_to={"kind": "calls"},
        help_text="While the phone provider refuses or does not answer the accounts of all numbers of this pool, "
        "job offers and alert calls are placed from the numbers of that pool.",
    )

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

    def clean(self) -> None:
        """Reject a second default, and a fallback that can't be one: see `_check_fallback`."""
        if self.is_default and self.organization_id:
            defaults = DispatchPool.objects.of(self.organization_id).filter(kind=self.kind, is_default=True)
            if other := defaults.exclude(pk=self.pk).first():
                words = gettext("{pool} ({code}) is already the default. Change that pool first.")
                raise ValidationError({"is_default": words.format(pool=other, code=other.code)})
        self._check_fallback()

    def _check_fallback(self) -> None:
        """Reject a fallback that is the pool itself, carries no calls or belongs to another organization."""
        if self.fallback is None:
            return
        if self.kind != self.Kind.CALLS or self.fallback.kind != self.Kind.CALLS:
            raise ValidationError(
                {"fallback": gettext("Only pools of calls have a fallback, which is a pool of calls, too.")}
            )
        if self.fallback_id == self.pk:
            raise ValidationError({"fallback": gettext("Choose another pool.")})
        if self.organization_id and self.fallback.organization_id != self.organization_id:
            raise ValidationError({"fallback": gettext("Choose a pool of the same organization.")})


class OutboundNumber(OwnedModel):
    """A caller number. It carries at most `max_channels` simultaneous calls (slots 1…max_channels).

    Of these slots, `reserved_for_alerts` are for alerts only, and another `reserved_for_offers` for alerts and
    offers; leads take the rest.

    A caller number belongs to one organization, and not only because of its lines. A call with an unknown outcome
    is searched for in the provider's list by its two numbers, and the list does not contain the webhook URLs of a
    call. Two organizations with the same account and number could therefore each mistake the other's call to the
    same phone for their own. Sharing only the account is harmless, so it is allowed. A paused number makes no
    calls, so a number can be moved to another organization by pausing it first.
    """

    account = models.ForeignKey(ProviderAccount, on_delete=models.PROTECT, related_name="numbers")
    pool = models.ForeignKey(
        DispatchPool, on_delete=models.PROTECT, related_name="numbers", limit_choices_to={"kind": "calls"}
    )
    phone = PhoneNumberField()
    name = models.CharField(max_length=80, blank=True)
    max_channels = models.PositiveIntegerField(
        "lines", default=DEFAULT_LINES, validators=[MinValueValidator(1), MaxValueValidator(1000)]
    )
    reserved_for_alerts = models.PositiveIntegerField(default=0)
    reserved_for_offers = models.PositiveIntegerField(default=0)
    is_paused = models.BooleanField(default=False)
    sends_texts = models.BooleanField(
        default=False, help_text="May send SMS. The provider must have enabled and registered the number for it."
    )
    texts_per_second = models.FloatField(
        default=1.0,
        validators=[MinValueValidator(0.01)],
        help_text="Texts per second that the provider allows for this number.",
    )

    messaging_service_sid = models.CharField(
        "messaging service",
        max_length=34,
        blank=True,
        default="",
        db_default="",
        validators=[RegexValidator(rules.MESSAGING_SERVICE, "It has MG and 32 hexadecimal digits.")],
        help_text="SID (MG…) of the Twilio messaging service that has the number as a sender. Empty means none.",
    )
    # Only telephony's `number_health` writes these.
    rests_until = models.DateTimeField(
        null=True, editable=False, help_text="Avoided until then while another number of the pool is healthy."
    )
    rest_reason = models.CharField(max_length=160, blank=True, default="", db_default="", editable=False)

    REFUSALS: ClassVar[dict[str, str]] = {
        "reserved_lines_exist": mark(
            "More lines are reserved for alerts and offers than the number has. Reserve fewer lines, or raise "
            "their number."
        )
    }

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

    def validate_constraints(self, exclude: Any = None) -> None:
        """Mention no other account or organization if this account has the number. Raises ValidationError."""
        try:
            super().validate_constraints(exclude)
        except ValidationError as error:
            errors = error.error_dict.get(NON_FIELD_ERRORS, [])
            if any(each.code == "unique_together" for each in errors):
                errors[:] = [each for each in errors if each.message != NUMBER_TAKEN]
            raise
