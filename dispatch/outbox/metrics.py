"""Define the outbox's metrics at /metrics."""

from __future__ import annotations

from datetime import timedelta

from django.conf import settings
from django.db.models import Exists, Min, OuterRef, Q
from prometheus_client import Counter, Histogram

from dispatch.core import clock
from dispatch.core.observability.metrics import Samples, gauge
from dispatch.outbox.models import Endpoint, Message, MessageGroup, Mode, QuarantinedPointer, Status, Target
from dispatch.outbox.rules import endpoint_failures

published = Counter(
    "dispatch_outbox_published_total",
    "Messages published, published again, failed, or handed over without the queue.",
    ["outcome"],
)
calls = Counter("dispatch_outbox_calls_total", "Delivery attempts by outcome.", ["outcome"])
call_seconds = Histogram("dispatch_outbox_call_seconds", "Response time of targets.")
delivery_seconds = Histogram(
    "dispatch_outbox_delivery_seconds",
    "Time from QUEUED until the attempt starts.",
    buckets=(0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300, 900),
)
refused = Counter("dispatch_outbox_refused_total", "Pointers that led to no attempt, by reason.", ["reason"])
late = Counter("dispatch_outbox_late_total", "Results that arrived after their epoch had ended.")
poll_claims = Histogram(
    "dispatch_outbox_poll_claims", "Messages claimed per poll.", buckets=(0, 1, 5, 20, 50, 100, 200, 500)
)

# Their alerts see the first increment (`core.observability.metrics`).
published.labels("failed")
calls.labels("failed")
calls.labels("permanent")

COUNT_LIMIT = 100_000


@gauge("dispatch_outbox_open_messages", "Messages that have not ended, and ERRORs, by status.", ("status",))
def open_messages() -> Samples:
    """Count the messages that have not ended, and those in ERROR, by status, each up to COUNT_LIMIT."""
    from dispatch.outbox import sql

    counts = sql.fetch_all(sql.OPEN_BY_STATUS, {"limit": COUNT_LIMIT})
    return [((status,), count) for status, count in counts if count]


@gauge(
    "dispatch_outbox_oldest_due_seconds",
    (
        "Wait of the most overdue group or unordered message, excluding those held on purpose: paused or "
        "disabled endpoints, paused pools, open circuits."
    ),
)
def oldest_due() -> Samples:
    """Return how long the most overdue deliverable group or unordered message has waited, in seconds."""
    from dispatch.outbox.services import scheduling

    now = clock.now()
    first = scheduling.oldest_due(now)
    return [((), (now - first).total_seconds() if first else 0.0)]


@gauge("dispatch_outbox_blocked_groups", "Groups blocked by an ERROR.")
def blocked_groups() -> Samples:
    """Count the groups that an ERROR blocks."""
    return [((), MessageGroup.objects.filter(blocked_by__isnull=False).count())]


@gauge("dispatch_outbox_open_circuits", "Targets with an open circuit that have something to deliver.")
def open_circuits() -> Samples:
    """Count the targets whose circuit is open and that have something to deliver.

    A circuit stays open until a probe succeeds, however long ago the last message was. A target that is paused or
    disabled is not probed.
    """
    its = {"organization": OuterRef("organization"), "target": OuterRef("pk")}
    in_flight = Message.objects.filter(in_flight=True, pool__isnull=False)
    unordered = Message.objects.filter(status=Status.PENDING, mode=Mode.IMMEDIATE, **its)
    is_waited_for = (
        Exists(MessageGroup.objects.filter(wake_at__isnull=False, **its))
        | Exists(unordered)
        | Q(pk__in=in_flight.values("target"))
        | Q(probe_until__gt=clock.now())
    )
    is_held = Q(endpoint__is_paused=True) | Q(endpoint__disabled_at__isnull=False)
    return [((), Target.objects.filter(is_waited_for, open_until__isnull=False).exclude(is_held).count())]


@gauge(
    "dispatch_outbox_deferring_seconds",
    "Time without a delivery of the target that has deferred messages for longest.",
)
def deferring() -> Samples:
    """Return for how long the target that has deferred for longest has delivered nothing, in seconds."""
    now = clock.now()
    recent = now - timedelta(seconds=settings.OUTBOX_LONGEST_DEFERRAL_S) - endpoint_failures.MAX_GAP
    first = Target.objects.filter(last_deferred_at__gt=recent).aggregate(at=Min("deferring_since"))["at"]
    return [((), (now - first).total_seconds() if first else 0.0)]


@gauge("dispatch_outbox_disabled_endpoints", "Disabled endpoints.")
def disabled_endpoints() -> Samples:
    """Count the disabled endpoints."""
    return [((), Endpoint.objects.filter(disabled_at__isnull=False).count())]


@gauge("dispatch_outbox_quarantined_pointers", "Pointers that could not be read.")
def quarantined() -> Samples:
    """Count the quarantined pointers."""
    return [((), QuarantinedPointer.objects.count())]
