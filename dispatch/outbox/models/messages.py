"""Define Message with its Target, MessageGroup and Attempt, PoolGate, DirectRequest and QuarantinedPointer.

Two constraints enforce the guarantees even if the code is wrong: `one_in_flight_per_group` (one
ordered message of a group is in flight) and `one_call_per_slot` (a pool's attempts never exceed its slots).
"""

from __future__ import annotations

from django.db import models
from django.db.models import F, Q

from accounts.scoping import OwnedModel, OwnedModelWithoutIndex
from dispatch.capacity.models import DispatchPool
from dispatch.core import clock
from dispatch.core.languages import mark
from dispatch.outbox.models.endpoints import Endpoint, Mode

DEFAULT_GROUP = "default"
DEFAULT_SEQUENCE = 99
MAX_GROUP_LENGTH = 200


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


class MessageGroup(OwnedModelWithoutIndex):
    """The messages of one entity to one endpoint. Decide their order only while holding the lock on its row.

    `wake_at` is when the poller must check the group. A past time means that the group waits in its target's
    queue; NULL means nothing to do until a message arrives, ends or is resolved. Only
    `services.scheduling` writes it, derived from the messages.
    """

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
                fields=["organization", "target", "wake_at"],
                condition=Q(wake_at__isnull=False),
                name="group_waiting_targets",
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


class Message(OwnedModelWithoutIndex):
    """A message to deliver. `payload` is the JSON text that is sent, byte for byte.

    `in_flight` is true from QUEUED until the attempt has ended or its lease has lapsed, even if the message is
    canceled in between. Each time a message becomes QUEUED, a new `epoch` starts; pointers and results of an
    older epoch change nothing.
    """

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
    due_at = models.DateTimeField(
        help_text="Earliest time of the next attempt, by its schedule, a retry or a deferral."
    )
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
                fields=["organization", "target", "due_at", "id"],
                condition=Q(status="PENDING", mode="IMMEDIATE"),
                name="message_immediate_targets",
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


class QuarantinedPointer(models.Model):
    """An unreadable entry of the queue, stored for inspection. It is acknowledged and never acted upon."""

    at = models.DateTimeField(default=clock.now)
    reason = models.CharField(max_length=200)
    content = models.TextField()

    class Meta:
        ordering = ["-id"]

    def __str__(self) -> str:
        return self.reason


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
