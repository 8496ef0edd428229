"""The proof that a user owns the phone to which an organization's alerts go."""

from django.db import models
from phonenumber_field.modelfields import PhoneNumberField

from accounts.models import User
from accounts.scoping import OwnedModel


class PhoneConfirmation(OwnedModel):
    """Store which phone a user has confirmed in an organization, and the code that is being confirmed.

    The code itself is not stored: it is a keyed hash of `nonce` and `codes_sent` (`services.phone_confirmation`).
    """

    user = models.ForeignKey(User, on_delete=models.CASCADE, related_name="+")
    phone = PhoneNumberField()
    confirmed_at = models.DateTimeField(null=True, help_text="When its owner entered the code.")
    accepted_until = models.DateTimeField(
        null=True, help_text="Until then, alerts use the phone unconfirmed: it was in use before codes existed."
    )
    nonce = models.CharField(max_length=32, blank=True)
    codes_sent = models.PositiveIntegerField(default=0)
    expires_at = models.DateTimeField(null=True, help_text="Of the latest code.")
    wrong_codes = models.PositiveSmallIntegerField(default=0, help_text="Entered since the latest code was sent.")

    class Meta:
        ordering = ["pk"]
        constraints = [
            models.UniqueConstraint(fields=["organization", "user"], name="one_phone_confirmation_per_user")
        ]

    def __str__(self) -> str:
        return f"Phone of user {self.user_id}"
