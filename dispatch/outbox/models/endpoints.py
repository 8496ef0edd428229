"""Define Endpoint, PortalLink, EventType and EventTypeVersion: who receives which messages."""

from __future__ import annotations

from datetime import datetime
from typing import Any, ClassVar, NamedTuple

from django.conf import settings
from django.contrib.postgres.fields import ArrayField
from django.core.validators import MaxValueValidator, MinValueValidator, URLValidator
from django.db import models
from django.db.models import Q

from accounts.scoping import OwnedModel
from dispatch.capacity.models import DispatchPool
from dispatch.core import clock
from dispatch.core.crypto import EncryptedJSONField, EncryptedTextField
from dispatch.core.languages import gettext, mark

check_url = URLValidator(schemes=["http", "https"])


class Mode(models.TextChoices):
    """How a message takes part in the order of its group."""

    BLOCK = "BLOCK_ON_ERROR", mark("Stop the group on an error")
    NEXT = "NEXT_ON_ERROR", mark("Continue after an error")
    IMMEDIATE = "IMMEDIATE", mark("No order")


def default_retry_schedule() -> list[int]:
    """Return OUTBOX_RETRY_SCHEDULE_S, the delays before each retry in seconds."""
    return list(settings.OUTBOX_RETRY_SCHEDULE_S)


def default_permanent_codes() -> list[int]:
    """Return OUTBOX_PERMANENT_CODES, the status codes that are not retried."""
    return list(settings.OUTBOX_PERMANENT_CODES)


class SigningSecret(NamedTuple):
    """A secret that signs, until when (None: no end) and since when (None: unknown)."""

    secret: str
    until: datetime | None = None
    since: datetime | None = None


class Endpoint(OwnedModel):
    """An HTTP endpoint that receives messages.

    While it is paused or disabled, its messages are kept, and they are delivered afterwards.
    """

    # Encrypted fields. Queries over several endpoints defer these, so that an endpoint whose fields cannot be
    # decrypted does not affect the others.
    CREDENTIALS = ("secret", "previous_secret", "former_secrets", "headers", "oauth_client_secret", "client_key")

    class ClientAuth(models.TextChoices):
        """How the client id and secret reach the token server."""

        BASIC = "basic", "In the Authorization header"
        BODY = "body", "In the request body"

    name = models.CharField(max_length=80)
    url = models.CharField("URL", max_length=2000, validators=[check_url])
    event_types = ArrayField(
        models.CharField(max_length=80),
        default=list,
        blank=True,
        help_text=(
            'Examples: "job.assigned", "job.*" or "*". Leave empty for messages addressed to it by name only.'
        ),
    )
    condition = models.CharField(
        max_length=500,
        blank=True,
        default="",
        db_default="",
        help_text=(
            "A JMESPath expression over the message, such as data.priority == 'emergency'. Only events for which "
            "it holds are sent. Leave empty for all events of these types."
        ),
    )
    receiver = models.CharField(
        max_length=80,
        blank=True,
        default="",
        db_default="",
        help_text="Whose endpoint it is. One portal link can open all endpoints of a receiver.",
    )
    secret = EncryptedTextField(help_text="Signs every request (whsec_…). Stored encrypted.")
    secret_since = models.DateTimeField(null=True, editable=False)
    previous_secret = EncryptedTextField(blank=True, default="", help_text="Also signs until it expires.")
    previous_secret_since = models.DateTimeField(null=True, editable=False)
    previous_secret_until = models.DateTimeField(null=True, blank=True)
    former_secrets = EncryptedJSONField(
        null=True,
        blank=True,
        editable=False,
        help_text="Secrets from before the previous one, which also sign: [secret, until, since].",
    )
    headers = EncryptedJSONField(
        default=dict,
        blank=True,
        help_text=('Sent with every request, such as {"Authorization": "…"}. Stored encrypted.'),
    )
    oauth_token_url = models.CharField(
        "token URL",
        max_length=2000,
        blank=True,
        default="",
        db_default="",
        help_text="Requests carry an access token from this server (OAuth 2.0 client credentials).",
    )
    oauth_client_id = models.CharField("client ID", max_length=200, blank=True, default="", db_default="")
    oauth_client_secret = EncryptedTextField("client secret", blank=True, default="", db_default="")
    oauth_scope = models.CharField(
        "scope", max_length=500, blank=True, default="", db_default="", help_text="Separate scopes with spaces."
    )
    oauth_audience = models.CharField("audience", max_length=500, blank=True, default="", db_default="")
    oauth_client_auth = models.CharField(
        "client authentication",
        max_length=8,
        choices=ClientAuth,
        default=ClientAuth.BASIC,
        db_default=ClientAuth.BASIC,
        help_text="How the token server gets the client ID and secret.",
    )
    client_certificate = models.TextField(
        blank=True,
        default="",
        db_default="",
        help_text="For mutual TLS, in PEM: the certificate first, then those of intermediate authorities.",
    )
    client_key = EncryptedTextField(blank=True, default="", db_default="")
    client_certificate_until = models.DateTimeField("certificate expires", null=True, blank=True, editable=False)
    certificate_warned_days = models.SmallIntegerField(
        null=True, editable=False, help_text="The last warning about the certificate: days before it expires."
    )
    mode = models.CharField(max_length=16, choices=Mode, default=Mode.BLOCK)
    pool = models.ForeignKey(
        DispatchPool, on_delete=models.PROTECT, related_name="+", limit_choices_to={"kind": "messages"}
    )
    timeout_s = models.FloatField("timeout (s)", default=15.0, validators=[MinValueValidator(0.1)])
    retry_schedule_s = ArrayField(
        models.PositiveIntegerField(),
        default=default_retry_schedule,
        blank=True,
        help_text="Seconds before each retry. The number of entries is the number of retries.",
    )
    retry_jitter = models.FloatField(
        default=0.2,
        validators=[MinValueValidator(0), MaxValueValidator(1)],
        help_text="Delays each retry by up to this share of its delay, at random.",
    )
    permanent_codes = ArrayField(
        models.PositiveSmallIntegerField(),
        default=default_permanent_codes,
        blank=True,
        help_text="Status codes that are an error at once, without a retry.",
    )
    expire_after_s = models.PositiveIntegerField(
        null=True,
        blank=True,
        help_text=("Undelivered messages expire after this many seconds. Leave empty for never."),
    )
    is_paused = models.BooleanField(default=False)
    paused_reason = models.CharField(max_length=200, blank=True)
    disabled_at = models.DateTimeField(null=True, blank=True, editable=False)
    disabled_reason = models.CharField(max_length=200, blank=True, editable=False)
    created_at = models.DateTimeField(default=clock.now, editable=False)

    class Meta:
        ordering = ["name"]
        constraints = [models.UniqueConstraint(fields=["organization", "name"], name="one_endpoint_per_name")]

    def __str__(self) -> str:
        return self.name

    def former_secrets_at(self, now: datetime) -> list[SigningSecret]:
        """Return the replaced secrets that still sign, newest first."""
        former: Any = self.former_secrets or []
        secrets = []
        if self.previous_secret:
            previous = str(self.previous_secret)
            secrets.append(SigningSecret(previous, self.previous_secret_until, self.previous_secret_since))
        # Entries of earlier versions have no third element.
        secrets += [
            SigningSecret(secret, *(datetime.fromisoformat(at) if at else None for at in times))
            for secret, *times in former
        ]
        return [secret for secret in secrets if secret.until is None or secret.until > now]

    def signing_secrets(self, now: datetime) -> list[str]:
        """Return all secrets that sign, the current one first."""
        return [str(self.secret), *(former.secret for former in self.former_secrets_at(now))]


class PortalLink(OwnedModel):
    """A link that lets a receiver see and manage its deliveries: of one endpoint, or of all with its label.

    The link is exchanged once for a session. Only digests of the link's code and of the session's key are stored.
    """

    uid = models.CharField(max_length=32, unique=True, editable=False)
    endpoint = models.ForeignKey(Endpoint, null=True, blank=True, on_delete=models.CASCADE, related_name="+")
    receiver = models.CharField(
        max_length=80, blank=True, help_text="Opens all endpoints with this receiver, also later ones."
    )
    label = models.CharField(max_length=80, blank=True, help_text="Who gets the link; shown in the history.")
    event_types = ArrayField(
        models.CharField(max_length=80),
        default=list,
        blank=True,
        help_text="What the receiver may subscribe to, such as order.*.",
    )
    is_read_only = models.BooleanField(default=False, help_text="The receiver sees deliveries, changes nothing.")
    code_digest = models.CharField(max_length=64, editable=False)
    expires_at = models.DateTimeField(editable=False, help_text="The link must be opened before this time.")
    session_s = models.PositiveIntegerField("session (s)", editable=False)
    session_digest = models.CharField(max_length=64, blank=True, editable=False)
    opened_at = models.DateTimeField(null=True, editable=False)
    session_until = models.DateTimeField(null=True, editable=False)
    revoked_at = models.DateTimeField(null=True, editable=False)
    created_by = models.CharField(max_length=120, blank=True, editable=False)
    created_at = models.DateTimeField(default=clock.now, editable=False)

    REFUSALS: ClassVar[dict[str, str]] = {
        "portal_link_has_one_scope": mark("Choose an endpoint, or enter a receiver.")
    }

    class Meta:
        ordering = ["-id"]
        constraints = [
            models.CheckConstraint(
                condition=Q(endpoint__isnull=False, receiver="") | Q(endpoint__isnull=True) & ~Q(receiver=""),
                name="portal_link_has_one_scope",
            )
        ]

    def __str__(self) -> str:
        return self.label or gettext("portal link {id}").format(id=self.pk)


class EventType(OwnedModel):
    """A type of messages that an organization publishes: an entry of its event catalog.

    Dispatch's own types are in `dispatch.outbox.catalog`. `version` is the number of the current
    EventTypeVersion; 0 means that it has no schema.
    """

    name = models.CharField(
        max_length=80, help_text='A subject and a verb, such as "order.changed". It cannot be changed.'
    )
    description = models.CharField(max_length=500, blank=True, default="")
    is_enforced = models.BooleanField(
        "refuse other payloads",
        default=False,
        help_text="Messages of this type whose payload does not match the schema are refused.",
    )
    version = models.PositiveIntegerField(default=0, editable=False)
    archived_at = models.DateTimeField(null=True, blank=True, editable=False)
    created_at = models.DateTimeField(default=clock.now, editable=False)

    class Meta:
        ordering = ["name"]
        constraints = [models.UniqueConstraint(fields=["organization", "name"], name="one_event_type_per_name")]

    def __str__(self) -> str:
        return self.name


class EventTypeVersion(OwnedModel):
    """One version of an event type: its JSON Schema and an example. It is never changed."""

    event_type = models.ForeignKey(EventType, on_delete=models.CASCADE, related_name="versions")
    number = models.PositiveIntegerField()
    schema = models.JSONField(null=True)
    example = models.JSONField(null=True)
    created_at = models.DateTimeField(default=clock.now, editable=False)

    class Meta:
        ordering = ["-number"]
        constraints = [models.UniqueConstraint(fields=["event_type", "number"], name="one_version_per_event_type")]

    def __str__(self) -> str:
        return f"{self.event_type_id} version {self.number}"
