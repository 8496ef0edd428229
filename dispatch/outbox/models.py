"""Define Endpoint, Target, MessageGroup, Message, Attempt, PoolGate, DirectRequest and QuarantinedPointer.

Two constraints enforce the guarantees even if the code is wrong: `one_in_flight_per_group` (one
ordered message of a group is in flight) and `one_call_per_slot` (a pool's attempts never exceed its slots).
"""

from __future__ import annotations

from datetime import datetime
from typing import Any, NamedTuple

from django.conf import settings
from django.contrib.postgres.fields import ArrayField
from django.core.validators import MaxValueValidator, MinValueValidator, URLValidator
from django.db import models
from django.db.models import F, Q

from accounts.scoping import OwnedModel
from dispatch.capacity.models import DispatchPool
from dispatch.core import clock
from dispatch.core.crypto import EncryptedJSONField, EncryptedTextField
from dispatch.core.languages import gettext, mark

DEFAULT_GROUP = "default"
DEFAULT_SEQUENCE = 99
MAX_GROUP_LENGTH = 200

check_url = URLValidator(schemes=["http", "https"])


class Mode(models.TextChoices):
    """How a message takes part in the order of its group."""

    BLOCK = "BLOCK_ON_ERROR", mark("Stop the group on an error")
    NEXT = "NEXT_ON_ERROR", mark("Continue after an error")
    IMMEDIATE = "IMMEDIATE", mark("No order")


class Status(models.TextChoices):
    """The status of a message. ERROR can be retried, ignored or resolved; the other ends are final."""

    PENDING = "PENDING", mark("Pending")
    QUEUED = "QUEUED", mark("Queued")
    PROCESSING = "PROCESSING", mark("Processing")
    COMPLETED = "COMPLETED", mark("Completed")
    ERROR = "ERROR", mark("Error")
    CANCELLED = "CANCELLED", mark("Canceled")
    EXPIRED = "EXPIRED", mark("Expired")


ENDED = (Status.COMPLETED, Status.ERROR, Status.CANCELLED, Status.EXPIRED)


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


class Target(OwnedModel):
    """The destination of requests: an endpoint, or an origin for messages sent to a URL without an endpoint.

    An origin is scheme, host and port; each pool has its own target for it. The target holds the receiver's
    health: the circuit breaker's state and since when it has been failing.
    """

    endpoint = models.OneToOneField(
        Endpoint, null=True, blank=True, on_delete=models.PROTECT, related_name="target", editable=False
    )
    origin = models.CharField(max_length=300, blank=True)
    pool = models.ForeignKey(
        DispatchPool, null=True, on_delete=models.PROTECT, related_name="+", help_text="Only for an origin."
    )
    failures = models.PositiveIntegerField(default=0, help_text="Consecutive failures.")
    failing_since = models.DateTimeField(null=True)
    last_error = models.CharField(max_length=200, blank=True)
    openings = models.PositiveIntegerField(default=0, help_text="How many times in a row the circuit has opened.")
    open_until = models.DateTimeField(null=True, help_text="While set, the circuit is open or probing.")
    probe_until = models.DateTimeField(null=True, help_text="A probe is in flight until then.")
    # Failures that count against the target since its last delivery: rules.endpoint_failures.
    failed_attempts = models.PositiveIntegerField(default=0, db_default=0)
    failed_messages = models.PositiveIntegerField(default=0, db_default=0)
    failed_message_id = models.BigIntegerField(null=True, help_text="The message that failed last.")
    first_failed_at = models.DateTimeField(null=True)
    last_failed_at = models.DateTimeField(null=True)
    deferring_since = models.DateTimeField(null=True, help_text="First deferral since the last delivery.")
    last_deferred_at = models.DateTimeField(null=True)
    is_deferral_reported = models.BooleanField(default=False, db_default=False)

    class Meta:
        constraints = [
            models.UniqueConstraint(
                fields=["organization", "origin", "pool"],
                condition=Q(endpoint__isnull=True),
                name="one_target_per_origin_and_pool",
            ),
            models.CheckConstraint(
                condition=Q(endpoint__isnull=False) | Q(pool__isnull=False), name="target_has_a_pool"
            ),
        ]

    def __str__(self) -> str:
        return self.endpoint.name if self.endpoint else self.origin


class MessageGroup(OwnedModel):
    """The messages of one entity to one endpoint. Decide their order only while holding the lock on its row.

    `wake_at` is when the poller must check the group. A past time means that the group waits in its target's
    queue; NULL means nothing to do until a message arrives, ends or is resolved. Only
    `services.scheduling` writes it, derived from the messages.
    """

    organization = models.ForeignKey(
        "accounts.Organization", on_delete=models.PROTECT, related_name="+", db_index=False
    )
    endpoint = models.ForeignKey(Endpoint, null=True, on_delete=models.PROTECT, related_name="+", db_index=False)
    name = models.CharField(max_length=MAX_GROUP_LENGTH, default=DEFAULT_GROUP)
    key = models.CharField(max_length=64, unique=True, editable=False)
    target = models.ForeignKey(Target, null=True, on_delete=models.PROTECT, related_name="+", db_index=False)
    wake_at = models.DateTimeField(null=True)
    blocked_by = models.BigIntegerField(null=True, help_text="The message whose ERROR blocks the group.")
    blocked_since = models.DateTimeField(null=True)
    created_at = models.DateTimeField(default=clock.now, editable=False)

    class Meta:
        verbose_name = "message group"
        indexes = [
            models.Index(
                fields=["target", "wake_at"], condition=Q(wake_at__isnull=False), name="group_waiting_line"
            ),
            models.Index(
                fields=["organization", "blocked_since"],
                condition=Q(blocked_by__isnull=False),
                name="group_blocked",
            ),
            models.Index(fields=["organization", "name"], name="group_of_organization"),
        ]

    def __str__(self) -> str:
        return self.name


class Message(OwnedModel):
    """A message to deliver. `payload` is the JSON text that is sent, byte for byte.

    `in_flight` is true from QUEUED until the attempt has ended or its lease has lapsed, even if the message is
    canceled in between. Each time a message becomes QUEUED, a new `epoch` starts; pointers and results of an
    older epoch change nothing.
    """

    organization = models.ForeignKey(
        "accounts.Organization", on_delete=models.PROTECT, related_name="+", db_index=False
    )
    endpoint = models.ForeignKey(Endpoint, null=True, on_delete=models.PROTECT, related_name="+", db_index=False)
    target = models.ForeignKey(Target, on_delete=models.PROTECT, related_name="+", db_index=False)
    url = models.CharField("URL", max_length=2000, blank=True, help_text="Set if there is no endpoint.")
    type = models.CharField(max_length=80)
    payload = models.TextField()
    group = models.ForeignKey(MessageGroup, on_delete=models.PROTECT, related_name="messages", db_index=False)
    sequence = models.IntegerField(default=DEFAULT_SEQUENCE)
    mode = models.CharField(max_length=16, choices=Mode, default=Mode.BLOCK)
    status = models.CharField(max_length=16, choices=Status, default=Status.PENDING)
    scheduled_for = models.DateTimeField(null=True)
    expires_at = models.DateTimeField(null=True)
    idempotency_key = models.CharField(max_length=255, null=True)
    event_id = models.BigIntegerField(null=True)
    created_at = models.DateTimeField(default=clock.now, editable=False)

    deferred_since = models.DateTimeField(null=True, help_text="When a receiver first deferred it.")
    due_at = models.DateTimeField(help_text="Not sent before: its schedule, its retry or its deferral.")
    epoch = models.PositiveIntegerField(default=0)
    attempts = models.PositiveIntegerField(default=0, help_text="Attempts counted against the retry budget.")
    calls = models.PositiveIntegerField(
        default=0, help_text=("All attempts, including those that don't count against the budget.")
    )
    lapses = models.PositiveIntegerField(default=0, help_text="Leases that ended without a result.")
    in_flight = models.BooleanField(default=False)
    queued_at = models.DateTimeField(null=True)
    started_at = models.DateTimeField(null=True)
    lease_until = models.DateTimeField(null=True)
    pool = models.ForeignKey(DispatchPool, null=True, on_delete=models.PROTECT, related_name="+", db_index=False)
    pool_slot = models.PositiveIntegerField(null=True)
    ended_at = models.DateTimeField(null=True)
    last_error = models.CharField(max_length=300, blank=True)
    waiting_for = models.CharField(max_length=40, blank=True, help_text="Why it was last requeued.")
    resolution = models.CharField(max_length=16, blank=True, help_text="ignored or resolved, set manually.")
    webhook_id = models.CharField(
        "webhook-id", max_length=40, null=True, editable=False, help_text="What receivers know the message by."
    )
    replays = models.IntegerField(default=0, db_default=0, help_text="How many times it was replayed.")
    replayed_at = models.DateTimeField(null=True)
    erased_at = models.DateTimeField(null=True, help_text="When its content was erased. It cannot be sent again.")
    held_until = models.DateTimeField(
        null=True, editable=False, help_text="A router has its pointer until then, so it is not published again."
    )

    class Meta:
        constraints = [
            models.UniqueConstraint(
                fields=["group"],
                condition=Q(in_flight=True) & ~Q(mode="IMMEDIATE"),
                name="one_in_flight_per_group",
            ),
            models.UniqueConstraint(
                fields=["pool", "pool_slot"], condition=Q(pool_slot__isnull=False), name="one_call_per_slot"
            ),
            models.UniqueConstraint(
                fields=["endpoint", "event_id"],
                condition=Q(event_id__isnull=False),
                name="one_message_per_endpoint_and_event",
            ),
            models.UniqueConstraint(
                fields=["organization", "idempotency_key"],
                condition=Q(idempotency_key__isnull=False),
                name="one_message_per_idempotency_key",
            ),
            models.CheckConstraint(
                condition=Q(in_flight=True) | ~Q(status__in=["QUEUED", "PROCESSING"]),
                name="queued_and_processing_are_in_flight",
            ),
            models.CheckConstraint(
                condition=Q(in_flight=False) | Q(status__in=["QUEUED", "PROCESSING", "CANCELLED"]),
                name="in_flight_is_going_or_cancelled",
            ),
            models.CheckConstraint(
                condition=Q(pool_slot__isnull=True) | Q(in_flight=True), name="only_a_call_holds_a_slot"
            ),
        ]
        indexes = [
            models.Index(
                fields=["group", "status", "mode", "sequence", "id"],
                condition=Q(status__in=["PENDING", "ERROR"]) & ~Q(mode="IMMEDIATE"),
                name="message_order",
            ),
            models.Index(
                fields=["target", "due_at", "id"],
                condition=Q(status="PENDING", mode="IMMEDIATE"),
                name="message_immediate_line",
            ),
            # The pool in the condition keeps the planner from using this index to look up the message in flight
            # of a single group.
            models.Index(
                fields=["pool", "status"],
                condition=Q(in_flight=True, pool__isnull=False),
                name="message_in_flight",
            ),
            models.Index(fields=["queued_at"], condition=Q(status="QUEUED"), name="message_stale"),
            models.Index(
                fields=["lease_until"],
                condition=Q(in_flight=True, lease_until__isnull=False),
                name="message_leases",
            ),
            models.Index(
                fields=["expires_at"],
                condition=Q(status="PENDING", expires_at__isnull=False),
                name="message_expiring",
            ),
            models.Index(
                fields=["organization", "ended_at"],
                condition=Q(status__in=["COMPLETED", "CANCELLED", "EXPIRED"]),
                name="message_ended",
            ),
            models.Index(F("organization"), F("id").desc(), name="message_of_organization"),
            models.Index(F("organization"), F("id").desc(), condition=Q(status="ERROR"), name="message_errors"),
            models.Index(fields=["group", "id"], name="message_of_group"),
            models.Index(F("endpoint"), F("id").desc(), name="message_of_endpoint"),
            models.Index(
                F("organization"),
                F("id").desc(),
                condition=Q(status__in=["CANCELLED", "EXPIRED"]),
                name="message_given_up",
            ),
            models.Index(fields=["webhook_id"], condition=Q(webhook_id__isnull=False), name="message_webhook_id"),
            models.Index(fields=["organization"], condition=Q(ended_at=None), name="message_open"),
        ]

    def __str__(self) -> str:
        return f"{self.type} {self.pk}"

    @property
    def public_id(self) -> str:
        """Return the message's webhook-id. Messages of earlier versions have none stored."""
        return self.webhook_id or f"msg_{self.pk}"


class Attempt(OwnedModel):
    """One delivery attempt for a message, or a lapsed lease whose attempt has no known result."""

    class Outcome(models.TextChoices):
        DELIVERED = "delivered", mark("Delivered")
        DEFERRED = "deferred", mark("Deferred by the receiver")
        FAILED = "failed", mark("Failed")
        PERMANENT = "permanent", mark("Permanently refused")
        LAPSED = "lapsed", mark("No result: lease ended")

    message = models.ForeignKey(Message, on_delete=models.CASCADE, related_name="attempts_made")
    number = models.PositiveIntegerField()
    epoch = models.PositiveIntegerField()
    url = models.CharField("URL", max_length=2000, blank=True)
    started_at = models.DateTimeField(null=True)
    ended_at = models.DateTimeField()
    elapsed_s = models.FloatField(default=0.0)
    outcome = models.CharField(max_length=16, choices=Outcome)
    status_code = models.PositiveSmallIntegerField(null=True)
    answer = models.TextField(blank=True, help_text="The beginning of the response body, up to 4 KB.")
    error_class = models.CharField(max_length=40, blank=True)
    error = models.CharField(max_length=300, blank=True)
    is_spent = models.BooleanField(default=True, help_text="Counts against the retry budget.")
    is_late = models.BooleanField(default=False, help_text="From an older epoch: recorded without effect.")

    class Meta:
        ordering = ["id"]

    def __str__(self) -> str:
        return f"{self.message_id} #{self.number}: {self.get_outcome_display()}"


class PoolGate(models.Model):
    """The lock and the rate bucket of a message pool. `full_at` is when its whole burst is available again."""

    pool = models.OneToOneField(DispatchPool, primary_key=True, on_delete=models.CASCADE, related_name="+")
    full_at = models.DateTimeField(default=clock.now)

    def __str__(self) -> str:
        return f"gate of {self.pool_id}"


class DirectRequest(OwnedModel):
    """A request in progress that belongs to no message, such as a scheduled run's. It holds a slot of its pool.

    Its slot is free again when the row is deleted, or at `lease_until` if the process died.
    """

    pool = models.ForeignKey(DispatchPool, on_delete=models.CASCADE, related_name="+", db_index=False)
    slot = models.PositiveIntegerField()
    lease_until = models.DateTimeField()

    class Meta:
        constraints = [models.UniqueConstraint(fields=["pool", "slot"], name="one_direct_request_per_slot")]

    def __str__(self) -> str:
        return f"slot {self.slot} of pool {self.pool_id}"


class QuarantinedPointer(models.Model):
    """An unreadable entry of the queue, stored for inspection. It is acknowledged and never acted upon."""

    at = models.DateTimeField(default=clock.now)
    reason = models.CharField(max_length=200)
    content = models.TextField()

    class Meta:
        ordering = ["-id"]

    def __str__(self) -> str:
        return self.reason
