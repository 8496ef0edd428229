"""Define the event log with its hash chain and cursors, elections, stored answers and the replay list."""

from django.contrib.postgres.indexes import BrinIndex
from django.db import models
from django.db.models import F, Func, Q
from django.db.models.fields.json import KeyTransform
from django.db.models.functions import Cast

from dispatch.core import clock


class TransactionId(Func):
    """The id of the running transaction (64 bits, never wraps)."""

    function = "pg_current_xact_id"
    output_field = models.TextField()  # xid8 has no direct cast to bigint; cast through text


class Event(models.Model):
    """One entry of the append-only log: what happened to which subject, who did it, and when.

    `kind` is `<subject>.<verb>`, such as "job.assigned". Subject and actor are plain ids, because core knows no
    other tables. Readers take events in (xid, id) order, below the oldest transaction that is still running.
    """

    id = models.BigAutoField(primary_key=True)
    xid = models.BigIntegerField(
        editable=False,
        db_default=Cast(Cast(TransactionId(), models.TextField()), models.BigIntegerField()),
    )
    organization_id = models.BigIntegerField()
    kind = models.CharField(max_length=64)
    subject_type = models.CharField(max_length=32)
    subject_id = models.BigIntegerField()
    actor_type = models.CharField(max_length=32, default="system")
    actor_id = models.BigIntegerField(null=True)
    actor_label = models.CharField(max_length=120, default="Dispatch")
    data = models.JSONField(default=dict)
    at = models.DateTimeField(default=clock.now)

    class Meta:
        indexes = [
            models.Index(fields=["xid", "id"], name="event_read_order"),
            models.Index(fields=["subject_type", "subject_id", "id"], name="event_of_subject"),
            models.Index(fields=["organization_id", "id"], name="event_of_organization"),
            BrinIndex(fields=["at"], name="event_at"),
            # A job can have very many notes, and each may be deleted.
            models.Index(
                F("subject_id"),
                KeyTransform("note_id", "data"),
                condition=Q(kind__in=["job.note_written", "job.note_deleted"]),
                name="event_of_note",
            ),
        ]

    def __str__(self) -> str:
        return f"{self.kind} {self.subject_type} {self.subject_id}"


class EventCursor(models.Model):
    """The position of one durable reader. It moves in the transaction of the reader's writes."""

    name = models.CharField(max_length=64, primary_key=True)
    xid = models.BigIntegerField(default=0)
    event_id = models.BigIntegerField(default=0)
    moved_at = models.DateTimeField(default=clock.now)

    def __str__(self) -> str:
        return self.name


class AuditSeal(models.Model):
    """Seal one event of the audit log in the hash chain of its organization (`core.audit`).

    `digest` is the SHA-256 of `salt` and the event's contents. `previous` is the hash of the seal at the position
    before, empty at position 1. `salt` is empty after the event's personal data was erased.
    """

    organization_id = models.BigIntegerField()
    position = models.BigIntegerField()
    event_id = models.BigIntegerField(unique=True)
    at = models.DateTimeField(help_text="The event's time.")
    salt = models.CharField(max_length=32, blank=True)
    digest = models.CharField(max_length=64)
    previous = models.CharField(max_length=64, blank=True)

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["organization_id", "position"], name="one_audit_seal_per_position")
        ]

    def __str__(self) -> str:
        return f"{self.organization_id}: {self.position}"


class AuditAnchor(models.Model):
    """Hold the end of an organization's hash chain, under a keyed hash, so that a truncated chain is detected.

    Seals up to `start` were deleted with their expired events. No event before `pruned_before` needs to exist.
    `restarts` is the number of `AuditRestart` rows.
    """

    organization_id = models.BigIntegerField(primary_key=True)
    position = models.BigIntegerField(default=0)
    head = models.CharField(max_length=64, blank=True, default="", help_text="The hash of the last seal.")
    start = models.BigIntegerField(default=0)
    pruned_before = models.DateTimeField(null=True)
    restarts = models.IntegerField(default=0, db_default=0)
    keyed_hash = models.CharField(max_length=64)

    def __str__(self) -> str:
        return f"{self.organization_id}: {self.position}"


class AuditRedaction(models.Model):
    """Hold the digest of a sealed event's contents after a person was erased, under a keyed hash."""

    organization_id = models.BigIntegerField(db_index=True)
    event_id = models.BigIntegerField(unique=True)
    digest = models.CharField(max_length=64)
    keyed_hash = models.CharField(max_length=64)

    def __str__(self) -> str:
        return f"{self.organization_id}: {self.event_id}"


class AuditRestart(models.Model):
    """Record, under a keyed hash, that an operator restarted a broken hash chain at `position`, and why.

    `found` is the result of the last verification. `former_seals` and `former_digest` are the number and the
    digest of the deleted seals.
    """

    organization_id = models.BigIntegerField()
    number = models.IntegerField()
    position = models.BigIntegerField()
    at = models.DateTimeField()
    operator = models.CharField(max_length=120)
    reason = models.TextField()
    found = models.TextField()
    former_seals = models.BigIntegerField()
    former_digest = models.CharField(max_length=64)
    keyed_hash = models.CharField(max_length=64)

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["organization_id", "number"], name="one_audit_restart_per_number")
        ]

    def __str__(self) -> str:
        return f"{self.organization_id}: {self.number}"


class ReplayEntry(models.Model):
    """Record an erasure, an opt-out, a withdrawn consent or a do-not-call entry, to repeat it after a restore.

    Written with the act itself, and copied to a place outside the database (`core.privacy.replay`). `keyed_hash`
    identifies a phone number or an email address without revealing it; `subject_id` is a technician's, a
    user's or a consent's.
    """

    uid = models.UUIDField(unique=True)
    organization_id = models.BigIntegerField(null=True)
    kind = models.CharField(max_length=32)
    keyed_hash = models.CharField(max_length=64, blank=True, default="")
    key_id = models.CharField(max_length=8, blank=True, default="", help_text="Which key made the hash.")
    subject_id = models.BigIntegerField(null=True)
    at = models.DateTimeField(default=clock.now)
    is_pending = models.BooleanField(
        default=False, help_text="Replayed for no row yet: it applies when the number appears."
    )

    class Meta:
        indexes = [
            models.Index(fields=["keyed_hash"], condition=models.Q(is_pending=True), name="replay_entry_pending")
        ]

    def __str__(self) -> str:
        return f"{self.kind} {self.uid}"


class FailedEvent(models.Model):
    """Store an event that a durable reader failed to handle, or that waits for an earlier one with the same key.

    `quarantined_at`: when it had failed so often that a person was notified. `attempts` 0: it only waits.
    """

    reader = models.CharField(max_length=64)
    event_id = models.BigIntegerField()
    xid = models.BigIntegerField()
    organization_id = models.BigIntegerField(db_index=True)
    kind = models.CharField(max_length=64)
    key = models.CharField(max_length=255, blank=True, default="")
    attempts = models.IntegerField(default=0)
    error = models.TextField(blank=True, default="")
    created_at = models.DateTimeField(default=clock.now)
    next_attempt_at = models.DateTimeField(default=clock.now)
    quarantined_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        constraints = [models.UniqueConstraint(fields=["reader", "event_id"], name="one_failure_per_event")]
        indexes = [
            models.Index(fields=["reader", "next_attempt_at"], name="failed_event_due"),
            models.Index(fields=["reader", "key", "xid", "event_id"], name="failed_event_order"),
        ]

    def __str__(self) -> str:
        return f"{self.reader}: {self.kind} {self.event_id}"


class Leadership(models.Model):
    """The holder of a leadership, and until when.

    The epoch increases with every new holder and fences the previous one. `given_up_at` and `given_up_because`:
    when and why a leader last released it because its steps failed or took too long.
    """

    name = models.CharField(max_length=64, primary_key=True)
    holder = models.CharField(max_length=128)
    epoch = models.BigIntegerField(default=1)
    expires_at = models.DateTimeField()
    given_up_at = models.DateTimeField(null=True, blank=True)
    given_up_because = models.TextField(blank=True, default="", db_default="")

    def __str__(self) -> str:
        return f"{self.name}: {self.holder}"


class Reachability(models.Model):
    """Whether a process reaches a server outside of the application, written only while some process does not.

    `loops`: the names of the loops that it runs, separated by spaces. `failing_since`: since when it does not
    reach the server; None if it does.
    """

    process = models.CharField(max_length=128)
    host = models.CharField(max_length=128)
    server = models.CharField(max_length=255)
    loops = models.TextField(blank=True, default="", db_default="")
    failing_since = models.DateTimeField(null=True, blank=True)
    reported_at = models.DateTimeField()

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["process", "server"], name="one_report_per_process_and_server"),
        ]

    def __str__(self) -> str:
        return f"{self.process}: {self.server}"


class WriteProbe(models.Model):
    """A row that a process changes to find out whether PostgreSQL accepts writes (`core.db.write_probe`)."""

    slot = models.PositiveSmallIntegerField(primary_key=True)
    written_at = models.DateTimeField()

    def __str__(self) -> str:
        return f"slot {self.slot}"


class RememberedAnswer(models.Model):
    """The first response to a request with an Idempotency-Key, stored together with the request's changes."""

    organization_id = models.BigIntegerField()
    endpoint = models.CharField(max_length=64)
    key = models.CharField(max_length=255)
    body_hash = models.CharField(max_length=64)
    status_code = models.PositiveSmallIntegerField()
    body = models.TextField(help_text="JSON, its members in the order in which they were answered.")
    created_at = models.DateTimeField(default=clock.now, db_index=True)

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["organization_id", "endpoint", "key"], name="one_answer_per_key")
        ]

    def __str__(self) -> str:
        return f"{self.endpoint} {self.key}"
