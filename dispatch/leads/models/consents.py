"""Define the records of consent: who agreed to be called, to which words, when and how."""

from __future__ import annotations

from datetime import datetime, timedelta

from django.core.exceptions import ValidationError
from django.db import models
from django.db.models import Q
from phonenumber_field.modelfields import PhoneNumberField

from accounts.models import Organization
from accounts.scoping import OwnedModel
from dispatch.core import clock
from dispatch.core.languages import gettext
from dispatch.leads.models.campaigns import FIRST_YEAR, check_purpose

FUTURE = timedelta(minutes=5)  # by which clocks may differ


def check_given_at(given_at: datetime) -> None:
    """Accept when a consent was given (aware). Raises ValidationError."""
    if given_at > clock.now() + FUTURE:
        raise ValidationError(gettext("Must be in the past."))
    if given_at.year < FIRST_YEAR:
        raise ValidationError(gettext("Must be after {year}.").format(year=FIRST_YEAR))


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

    def clean(self) -> None:
        if self.given_at is not None:
            try:
                check_given_at(self.given_at)
            except ValidationError as error:
                raise ValidationError({"given_at": error}) from None

    def __str__(self) -> str:
        return f"{self.phone or gettext('erased')}: {self.purpose}"
