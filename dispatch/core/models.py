"""The event log, the cursors of its readers, the election table and remembered answers."""

from django.contrib.postgres.indexes import BrinIndex
from django.db import models
from django.db.models import Func
from django.db.models.functions import Cast

from dispatch.core import clock


class TransactionId(Func):
    """The id of the running transaction (64 bits, never wraps)."""

    function = "pg_current_xact_id"
    output_field = models.TextField()  # xid8 has no direct cast to bigint; it goes through text


class Event(models.Model):
    """One line of the append-only log: what happened to what, who did it, when.

    `kind` is `<subject>.<verb>`, as "job.assigned". Subject and actor are plain ids, for this table lies below
    all others. Readers take events in (xid, id) order, below the oldest transaction still running.
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
        ]

    def __str__(self) -> str:
        return f"{self.kind} {self.subject_type} {self.subject_id}"


class EventCursor(models.Model):
    """How far one durable reader has come; moved in the transaction of what the reader wrote."""

    name = models.CharField(max_length=64, primary_key=True)
    xid = models.BigIntegerField(default=0)
    event_id = models.BigIntegerField(default=0)
    moved_at = models.DateTimeField(default=clock.now)

    def __str__(self) -> str:
        return self.name


class Leadership(models.Model):
    """Who leads what until when. The epoch grows with every change of hands and fences a deposed leader."""

    name = models.CharField(max_length=64, primary_key=True)
    holder = models.CharField(max_length=128)
    epoch = models.BigIntegerField(default=1)
    expires_at = models.DateTimeField()

    def __str__(self) -> str:
        return f"{self.name}: {self.holder}"


class RememberedAnswer(models.Model):
    """The first answer to a request that carried an Idempotency-Key, written with what the request made."""

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
