"""Define the records of consent: who agreed to be called, to which words, when and how."""

from __future__ import annotations

from django.db import models
from django.db.models import Q
from phonenumber_field.modelfields import PhoneNumberField

from accounts.models import Organization
from accounts.scoping import OwnedModel
from dispatch.core import clock
from dispatch.leads.models.campaigns import check_purpose


class Consent(OwnedModel):
    """The consent of the owner of a phone to be called by an organization for a purpose.

    A withdrawn consent stays, as a proof of what applied when. Erasing a person's data replaces the phone by
    `phone_hash`, under the installation's key: a person who names the phone still gets the record.
    """

    organization = models.ForeignKey(Organization, on_delete=models.PROTECT, related_name="+", db_index=False)
    phone = PhoneNumberField(blank=True)
    phone_hash = models.CharField(max_length=64, blank=True, default="", editable=False)
    purpose = models.CharField(max_length=40, validators=[check_purpose], default="marketing")
    given_at = models.DateTimeField(help_text="When the person agreed.")
    source = models.CharField(max_length=80, help_text="How, such as web form, paper or call.")
    words = models.TextField(blank=True, help_text="The words that the person agreed to.")
    proof = models.CharField(max_length=2000, blank=True, help_text="A URL or text that proves it.")
    withdrawn_at = models.DateTimeField(null=True, blank=True)
    withdrawn_by = models.CharField(
        max_length=16, blank=True, default="", help_text="How it was withdrawn: key, text, api, person, file."
    )
    created_at = models.DateTimeField(default=clock.now, editable=False)

    class Meta:
        ordering = ["-id"]
        constraints = [
            models.UniqueConstraint(
                fields=["organization", "phone", "purpose"],
                condition=Q(withdrawn_at=None) & ~Q(phone=""),
                name="one_valid_consent",
            )
        ]
        indexes = [
            models.Index(fields=["organization", "phone"], name="consent_of_phone"),
            models.Index(
                fields=["organization", "phone_hash"], condition=~Q(phone_hash=""), name="consent_of_phone_hash"
            ),
        ]

    def __str__(self) -> str:
        return f"{self.phone or 'erased'}: {self.purpose}"
