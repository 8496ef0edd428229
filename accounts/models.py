"""Define Organization, User, Membership, ApiKey, OrganizationLimits and RetentionRule.

`IdentityProvider` is in `sso.models`, `SavedView` and `DefaultView` are in `saved_views.models`, `HandoverNote`
and `HandoverReading` in `handover_notes.models`, and `ReportSubscription` is in `report_subscriptions`.
"""

from __future__ import annotations

import zoneinfo
from collections.abc import Callable, Iterable
from functools import cache
from typing import Any, ClassVar

import phonenumbers
from django.contrib.auth.base_user import AbstractBaseUser, BaseUserManager
from django.contrib.auth.models import PermissionsMixin
from django.contrib.postgres.fields import ArrayField
from django.core.exceptions import ValidationError
from django.db import models, transaction
from django.db.models.functions import Lower
from django.dispatch import Signal
from django.forms import ChoiceField
from django.utils.crypto import salted_hmac
from django.utils.functional import cached_property
from phonenumber_field.modelfields import PhoneNumberField

from accounts.scoping import OwnedModel
from dispatch.core import clock, events, languages, voices
from dispatch.core.audit.chain import INSTALLATION
from dispatch.core.languages import gettext, mark, ngettext
from dispatch.core.privacy import retention


@cache
def time_zones() -> frozenset[str]:
    """Return the names of all IANA zones. Cached: listing them reads files and takes milliseconds."""
    return frozenset(zoneinfo.available_timezones())


def validate_time_zone(name: str) -> None:
    """Raise ValidationError unless `name` is an IANA zone."""
    if name not in time_zones():
        raise ValidationError(
            gettext("{name} is not a valid time zone. Use a name such as America/Phoenix.").format(name=name)
        )


def read_country(code: str) -> str:
    """Return the ISO code of a country, as phone numbers name it: in upper case. Raises ValidationError."""
    if (country := code.strip().upper()) in phonenumbers.SUPPORTED_REGIONS:
        return country
    raise ValidationError(ChoiceField.default_error_messages["invalid_choice"], params={"value": code})


def read_countries(codes: Iterable[str]) -> list[str]:
    """Return the ISO codes of these countries, each once. Raises ValidationError."""
    return list(dict.fromkeys(map(read_country, codes)))


def default_countries() -> list[str]:
    """Return the initial `allowed_countries` of an organization."""
    return ["US", "CA"]


# Sent with `user` when an existing user has a new password.
password_changed = Signal()


class Organization(models.Model):
    """Store a tenant. `allowed_countries` are the ISO codes of the countries that may be called."""

    class Language(models.TextChoices):
        ENGLISH = languages.DEFAULT, "English"
        SPANISH = languages.SPANISH, "Spanish"

    class Unit(models.TextChoices):
        MILES = "mi", "miles"
        KILOMETERS = "km", "kilometers"

    name = models.CharField(max_length=120)
    slug = models.SlugField(unique=True)
    time_zone = models.CharField(max_length=64, default="America/New_York", validators=[validate_time_zone])
    default_region = models.CharField(
        max_length=2, default="US", help_text="Default country for numbers without a country code."
    )
    distance_unit = models.CharField(max_length=2, choices=Unit, default=Unit.MILES)
    language = models.CharField(
        max_length=2,
        choices=Language,
        default=Language.ENGLISH,
        db_default=languages.DEFAULT,
        help_text="Of calls and texts to technicians and customers. A technician or campaign may use another one.",
    )
    voice = models.CharField(
        max_length=64,
        choices=voices.voice_choices,
        default=voices.DEFAULT_VOICE,
        db_default=voices.DEFAULT_VOICE,
        help_text="It must speak the language.",
    )
    allowed_countries = ArrayField(
        models.CharField(max_length=2), default=default_countries, help_text="Countries that may be called."
    )
    is_active = models.BooleanField(default=True)
    requires_second_factor = models.BooleanField(
        default=False,
        db_default=False,
        help_text="Members without a second factor can only set one up and sign out. API keys are not affected.",
    )
    created_at = models.DateTimeField(default=clock.now, editable=False)

    class Meta:
        ordering = ["name"]

    def __str__(self) -> str:
        return self.name

    def clean(self) -> None:
        if problem := voices.voice_problem(self.voice, self.language):
            raise ValidationError({"voice": problem})


def validate_own_voice(organization: Organization, language: str, voice: str) -> None:
    """Raise ValidationError {voice} unless a technician's or campaign's voice speaks the language.

    Without a language, it is the organization's.
    """
    if problem := voices.voice_problem(voice, language or organization.language):
        raise ValidationError({"voice": problem})


class UserManager(BaseUserManager["User"]):
    """Create users, and find them by email regardless of case."""

    def create_user(self, email: str, password: str | None = None, **extra: Any) -> User:
        if not email:
            raise ValueError("A user needs an email address.")
        user = self.model(email=email, **extra)
        user.set_password(password)
        user.save(using=self._db)
        return user

    def create_superuser(self, email: str, password: str | None = None, **extra: Any) -> User:
        """Create a superuser, for `manage.py createsuperuser`. The installation's audit log records it."""
        with transaction.atomic(using=self._db):
            user = self.create_user(email, password, is_superuser=True, **extra)
            events.append(INSTALLATION, "user.superuser_created", user.pk)
        return user

    def get_by_natural_key(self, email: str | None) -> User:
        return self.get(email=(email or "").strip().lower())


class User(AbstractBaseUser, PermissionsMixin):
    """Store a person who signs in by email. The Membership defines what they may do in an organization."""

    email = models.EmailField(unique=True)
    name = models.CharField(max_length=120)
    phone = PhoneNumberField(blank=True)
    is_active = models.BooleanField(default=True)
    created_at = models.DateTimeField(default=clock.now, editable=False)
    language = models.CharField(
        max_length=2,
        choices=Organization.Language,
        blank=True,
        default="",
        db_default="",
        help_text="Of their pages and alerts. Empty: the browser's; for alerts, the organization's.",
    )
    email_confirmed_at = models.DateTimeField(
        null=True, editable=False, help_text="When they first opened a link sent to this address."
    )
    tour_dismissed_at = models.DateTimeField(
        null=True, editable=False, help_text="When they dismissed the tour of the board."
    )
    second_factor_at = models.DateTimeField(
        null=True, editable=False, help_text="When they set up their first second factor. Empty: they have none."
    )
    sessions_ended_at = models.DateTimeField(
        null=True, editable=False, help_text="When all their sessions were ended last."
    )

    # Which memberships this session may use (`sso.sessions`); None outside a session: all.
    session_reach: Callable[[Membership], bool] | None = None

    objects: ClassVar[UserManager] = UserManager()
    USERNAME_FIELD = "email"
    REQUIRED_FIELDS: ClassVar[list[str]] = ["name"]

    REFUSALS: ClassVar[dict[str, str]] = {"one_user_per_email": mark("Another user has this email address.")}

    class Meta:
        ordering = ["name"]
        constraints = [models.UniqueConstraint(Lower("email"), name="one_user_per_email")]

    def __str__(self) -> str:
        return self.name or self.email

    def save(self, *args: Any, **kwargs: Any) -> None:
        self.email = self.email.strip().lower()
        has_new_password = self.pk is not None and getattr(self, "_password", None) is not None
        if not has_new_password:
            super().save(*args, **kwargs)
            return
        with transaction.atomic():
            super().save(*args, **kwargs)
            password_changed.send(User, user=self)

    @cached_property
    def active_memberships(self) -> list[Membership]:
        """Return the active memberships in active organizations that the session may use.

        Cached per User object, that is, per request.
        """
        memberships = self.memberships.filter(is_active=True, organization__is_active=True)
        related = memberships.select_related("organization__identity_provider")
        rows = related.defer("organization__identity_provider__client_secret").order_by("pk")
        return [row for row in rows if self.session_reach is None or self.session_reach(row)]

    @property
    def joined_memberships(self) -> models.QuerySet[Membership]:
        """Return the memberships without open invitations: any organization can invite any address."""
        return self.memberships.filter(joined_at__isnull=False)

    @property
    def is_staff(self) -> bool:
        """Return whether the user may open the admin. Every active member may, and sees what their role allows."""
        return self.is_superuser or bool(self.active_memberships)

    def _get_session_auth_hash(self, secret: str | None = None) -> str:
        """Return the hash that each session stores. A change of it ends all sessions of this user."""
        if self.sessions_ended_at is None:
            return super()._get_session_auth_hash(secret)  # type: ignore[misc]
        value = f"{self.password}|{self.sessions_ended_at.timestamp():.6f}"
        return salted_hmac("accounts.User.session", value, secret=secret, algorithm="sha256").hexdigest()

    def get_full_name(self) -> str:
        """Return the name that Django and the admin show for this person."""
        return str(self)

    def administered_organization_ids(self) -> list[int]:
        """Return the ids of the organizations in which this user is an active admin."""
        return self.organization_ids_as(Membership.Role.ADMIN)

    def organization_ids_as(self, *roles: str) -> list[int]:
        """Return the ids of the organizations in which this user is active with one of `roles` (default: any)."""
        return [m.organization_id for m in self.active_memberships if not roles or m.role in roles]


class Membership(OwnedModel):
    """Store a user's role in an organization.

    Until the user has joined (`invitations`), the membership is inactive and reveals only their email address.
    """

    class Role(models.TextChoices):
        DISPATCHER = "dispatcher", mark("Dispatcher")
        ADMIN = "admin", mark("Admin")

    organization = models.ForeignKey(Organization, on_delete=models.CASCADE, related_name="memberships")
    user = models.ForeignKey(User, on_delete=models.CASCADE, related_name="memberships")
    role = models.CharField(max_length=16, choices=Role, default=Role.DISPATCHER)
    is_active = models.BooleanField(default=True)
    joined_at = models.DateTimeField(
        null=True, default=clock.now, editable=False, help_text="Empty while the invitation has not been accepted."
    )
    invited_name = models.CharField(
        max_length=120, blank=True, default="", db_default="", editable=False,
        help_text="Entered by the inviter; the invitee confirms it when joining.",
    )  # fmt: skip
    invited_phone = PhoneNumberField(
        blank=True,
        default="",
        db_default="",
        editable=False,
        help_text="Entered by the inviter; the invitee confirms it when joining.",
    )
    on_duty = models.BooleanField(default=False)
    duty_changed_at = models.DateTimeField(null=True, blank=True, editable=False)
    alert_order = models.PositiveSmallIntegerField(
        default=100, help_text="Order in which people get phone alerts, lowest first."
    )

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["user", "organization"], name="one_membership_per_organization"),
            models.CheckConstraint(
                condition=models.Q(joined_at__isnull=False) | models.Q(is_active=False, on_duty=False),
                name="only_who_joined_is_active",
                violation_error_message="This person hasn't accepted the invitation yet.",
            ),
        ]

    def __str__(self) -> str:
        return f"{self.person} ({self.get_role_display()})"

    @property
    def person(self) -> str:
        """Return the name the organization may use: the real name after joining, the email address before."""
        return str(self.user) if self.joined_at else self.user.email


class ApiKey(OwnedModel):
    """Store a REST client's key, `dk_<prefix>_<secret>`: only its prefix and the SHA-256 of the whole key."""

    class Scope(models.TextChoices):
        SUBMIT = "submissions:write", mark("Submit forms")
        READ = "read", mark("Read everything")
        JOBS = "jobs:write", mark("Manage jobs")
        MESSAGES = "messages:write", mark("Send and manage messages")
        LEADS = "leads:write", mark("Add and manage leads")
        SCHEDULES = "schedules:write", mark("Create and manage schedules")
        MANAGE = "manage", mark("Manage technicians, policies, pools and numbers")

    name = models.CharField(max_length=80)
    prefix = models.CharField(max_length=12, unique=True, editable=False)
    secret_hash = models.CharField(max_length=64, editable=False)
    scopes = ArrayField(models.CharField(max_length=32, choices=Scope), default=list)
    created_by = models.ForeignKey(User, null=True, on_delete=models.SET_NULL, related_name="+", editable=False)
    created_at = models.DateTimeField(default=clock.now, editable=False)
    expires_at = models.DateTimeField(null=True, blank=True)
    revoked_at = models.DateTimeField(null=True, blank=True, editable=False)
    last_used_at = models.DateTimeField(null=True, blank=True, editable=False)

    class Meta:
        verbose_name = "API key"
        ordering = ["-created_at"]

    def __str__(self) -> str:
        return f"{self.name} (dk_{self.prefix}…)"


class OrganizationLimits(OwnedModel):
    """Store what one organization may hold and request. Superusers edit it; empty fields use the installation's.

    `accounts.limits` enforces the limits.
    """

    organization = models.OneToOneField(Organization, on_delete=models.CASCADE, related_name="limits")
    schedules = models.PositiveIntegerField(null=True, blank=True, help_text="Active schedules.")
    leads = models.PositiveIntegerField(null=True, blank=True, help_text="Leads that are waiting to be called.")
    messages = models.PositiveIntegerField(null=True, blank=True, help_text="Messages that are not delivered yet.")
    api_keys = models.PositiveIntegerField("API keys", null=True, blank=True, help_text="Active keys.")
    sockets = models.PositiveIntegerField(null=True, blank=True, help_text="Open pages with live updates.")
    requests_per_minute = models.PositiveIntegerField(
        null=True, blank=True, help_text="API requests of all keys and people together."
    )

    class Meta:
        verbose_name_plural = "limits of organizations"

    def __str__(self) -> str:
        return gettext("Limits of {organization}").format(organization=self.organization)


class SecurityMail(models.Model):
    """Store an email about a user's sign-in or factors until it is sent (`auth.security_mail`).

    `data` has the browser and address of the change. The text is written when it is sent.
    """

    user = models.ForeignKey(User, on_delete=models.CASCADE, related_name="+")
    kind = models.CharField(max_length=40)
    data = models.JSONField(default=dict)
    created_at = models.DateTimeField(default=clock.now)
    next_attempt_at = models.DateTimeField(default=clock.now, db_index=True)
    attempts = models.PositiveSmallIntegerField(default=0)

    def __str__(self) -> str:
        return f"{self.kind} for user {self.user_id}"


class RetentionRule(OwnedModel):
    """Store how long an organization keeps one kind of data, if that differs from the installation's default."""

    what = models.CharField(max_length=40, help_text="The kind of data.")
    days = models.PositiveIntegerField(help_text="Days. 0 keeps the data forever.")

    class Meta:
        ordering = ["what"]
        constraints = [models.UniqueConstraint(fields=["organization", "what"], name="one_retention_rule_each")]

    def __str__(self) -> str:
        days = ngettext("{days} day", "{days} days", self.days).format(days=self.days)
        return f"{self.what}: {days if self.days else gettext('forever')}"

    def clean(self) -> None:
        kind = retention.kept.get(self.what)
        if kind is None:
            raise ValidationError(
                {
                    "what": gettext("Unknown kind of data. Choose one of: {kinds}.").format(
                        kinds=", ".join(retention.kept)
                    )
                }
            )
        if self.days and self.days < kind.shortest_days:
            raise ValidationError(
                {
                    "days": gettext("Must be at least {days} days, or 0 to keep the data forever.").format(
                        days=kind.shortest_days
                    )
                }
            )
        if self.days and self.days > retention.MAX_DAYS:
            raise ValidationError(
                {
                    "days": gettext("Must be at most {days} days, or 0 to keep the data forever.").format(
                        days=retention.MAX_DAYS
                    )
                }
            )


# Django looks for models in this module.
from accounts.handover_notes.models import HandoverNote, HandoverReading  # noqa: E402, F401
from accounts.report_subscriptions import ReportSubscription  # noqa: E402, F401
from accounts.saved_views.models import DefaultView, SavedView  # noqa: E402, F401
from accounts.sso.models import IdentityProvider  # noqa: E402, F401
