"""Organization, User, Membership, ApiKey."""

from __future__ import annotations

import zoneinfo
from functools import cache
from typing import Any, ClassVar

from django.contrib.auth.base_user import AbstractBaseUser, BaseUserManager
from django.contrib.auth.models import PermissionsMixin
from django.contrib.postgres.fields import ArrayField
from django.core.exceptions import ValidationError
from django.db import models
from django.db.models.functions import Lower
from django.utils.functional import cached_property
from phonenumber_field.modelfields import PhoneNumberField

from accounts.scoping import OwnedModel
from dispatch.core import clock, retention


@cache
def time_zones() -> frozenset[str]:
    """The names of all IANA zones; to find them takes milliseconds, for they are files."""
    return frozenset(zoneinfo.available_timezones())


def validate_time_zone(name: str) -> None:
    """Raises ValidationError unless `name` is an IANA zone."""
    if name not in time_zones():
        raise ValidationError(f"{name!r} is not a time zone name such as America/Phoenix.")


def default_countries() -> list[str]:
    return ["US", "CA"]


class Organization(models.Model):
    """A tenant. `allowed_countries` are the ISO codes of the countries that may be called."""

    class Unit(models.TextChoices):
        MILES = "mi", "miles"
        KILOMETRES = "km", "kilometres"

    name = models.CharField(max_length=120)
    slug = models.SlugField(unique=True)
    time_zone = models.CharField(max_length=64, default="America/New_York", validators=[validate_time_zone])
    default_region = models.CharField(
        max_length=2, default="US", help_text="How a phone number without + is read."
    )
    distance_unit = models.CharField(max_length=2, choices=Unit, default=Unit.MILES)
    allowed_countries = ArrayField(
        models.CharField(max_length=2), default=default_countries, help_text="Countries that may be called."
    )
    is_active = models.BooleanField(default=True)
    created_at = models.DateTimeField(default=clock.now, editable=False)

    class Meta:
        ordering = ["name"]

    def __str__(self) -> str:
        return self.name


class UserManager(BaseUserManager["User"]):
    def create_user(self, email: str, password: str | None = None, **extra: Any) -> User:
        if not email:
            raise ValueError("A user needs an e-mail address.")
        user = self.model(email=email, **extra)
        user.set_password(password)
        user.save(using=self._db)
        return user

    def create_superuser(self, email: str, password: str | None = None, **extra: Any) -> User:
        return self.create_user(email, password, is_superuser=True, **extra)

    def get_by_natural_key(self, email: str | None) -> User:
        return self.get(email=(email or "").strip().lower())


class User(AbstractBaseUser, PermissionsMixin):
    """A person who signs in by e-mail. What they may do in an organization is their Membership there."""

    email = models.EmailField(unique=True)
    name = models.CharField(max_length=120)
    phone = PhoneNumberField(blank=True)
    is_active = models.BooleanField(default=True)
    created_at = models.DateTimeField(default=clock.now, editable=False)
    email_confirmed_at = models.DateTimeField(
        null=True, editable=False, help_text="When they opened a link that was mailed to them."
    )

    objects: ClassVar[UserManager] = UserManager()
    USERNAME_FIELD = "email"
    REQUIRED_FIELDS: ClassVar[list[str]] = ["name"]

    class Meta:
        ordering = ["name"]
        constraints = [models.UniqueConstraint(Lower("email"), name="one_user_per_email")]

    def __str__(self) -> str:
        return self.name or self.email

    def save(self, *args: Any, **kwargs: Any) -> None:
        self.email = self.email.strip().lower()
        super().save(*args, **kwargs)

    @cached_property
    def active_memberships(self) -> list[Membership]:
        """Those that count: active, in active organizations; read once per User object, that is, per request."""
        found = self.memberships.filter(is_active=True, organization__is_active=True)
        return list(found.select_related("organization").order_by("pk"))

    @property
    def is_staff(self) -> bool:
        """Whether they may open the admin: every active member may, and sees there what the role allows."""
        return self.is_superuser or bool(self.active_memberships)

    def get_full_name(self) -> str:
        """What Django and the admin show as this person's name."""
        return str(self)

    def administered_organization_ids(self) -> list[int]:
        """Ids of the organizations in which this user is an active Admin."""
        return self.organization_ids_as(Membership.Role.ADMIN)

    def organization_ids_as(self, *roles: str) -> list[int]:
        """Ids of the organizations in which this user is active with one of these roles (none named: with any)."""
        return [m.organization_id for m in self.active_memberships if not roles or m.role in roles]


class Membership(OwnedModel):
    """A user's role in an organization. It is inactive, and tells nothing of the person but their e-mail, until
    they have joined by themselves (`invitations`)."""

    class Role(models.TextChoices):
        DISPATCHER = "dispatcher", "Dispatcher"
        ADMIN = "admin", "Admin"

    organization = models.ForeignKey(Organization, on_delete=models.CASCADE, related_name="memberships")
    user = models.ForeignKey(User, on_delete=models.CASCADE, related_name="memberships")
    role = models.CharField(max_length=16, choices=Role, default=Role.DISPATCHER)
    is_active = models.BooleanField(default=True)
    joined_at = models.DateTimeField(
        null=True, default=clock.now, editable=False, help_text="Empty: invited, and has not accepted yet."
    )
    on_duty = models.BooleanField(default=False)
    duty_changed_at = models.DateTimeField(null=True, blank=True, editable=False)
    alert_order = models.PositiveSmallIntegerField(
        default=100, help_text="In which order alerts reach people by phone: the lowest first."
    )

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["user", "organization"], name="one_membership_per_organization"),
            models.CheckConstraint(
                condition=models.Q(joined_at__isnull=False) | models.Q(is_active=False, on_duty=False),
                name="only_who_joined_is_active",
                violation_error_message="They have not accepted the invitation yet.",
            ),
        ]

    def __str__(self) -> str:
        return f"{self.person} ({self.get_role_display()})"

    @property
    def person(self) -> str:
        """What the organization may call them: by name, once they have joined."""
        return str(self.user) if self.joined_at else self.user.email


class ApiKey(OwnedModel):
    """A REST client's key: `dk_<prefix>_<secret>`. Only the prefix and the SHA-256 of the whole are kept."""

    class Scope(models.TextChoices):
        SUBMIT = "submissions:write", "Submit forms"
        READ = "read", "Read everything"
        JOBS = "jobs:write", "Act on jobs"
        MESSAGES = "messages:write", "Send messages and act on them"
        LEADS = "leads:write", "Add leads and act on them"
        SCHEDULES = "schedules:write", "Make schedules and act on them"
        MANAGE = "manage", "Manage technicians, policies, pools and numbers"

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


class RetentionRule(OwnedModel):
    """How long an organization keeps something, when that differs from the installation's default."""

    what = models.CharField(max_length=40, help_text="A name that a slice registered in core.retention.")
    days = models.PositiveIntegerField(help_text="0 keeps it forever.")

    class Meta:
        ordering = ["what"]
        constraints = [models.UniqueConstraint(fields=["organization", "what"], name="one_retention_rule_each")]

    def __str__(self) -> str:
        return f"{self.what}: {f'{self.days} days' if self.days else 'forever'}"

    def clean(self) -> None:
        found = retention.kept.get(self.what)
        if found is None:
            raise ValidationError(
                {"what": f"Nothing is kept by that name; there are {', '.join(retention.kept)}."}
            )
        if self.days and self.days < found.shortest_days:
            raise ValidationError({"days": f"At least {found.shortest_days}, for something stands on it."})
