"""Metrics of alerts and deliveries."""

from __future__ import annotations

from datetime import timedelta

from django.db.models import Count, Min, Q, QuerySet
from prometheus_client import Counter

from dispatch.core import clock
from dispatch.core.observability.metrics import Samples, gauge
from notifications.models import Alert, Channel, Delivery, PushMessage, PushSubscription

deliveries = Counter(
    "dispatch_deliveries_total",
    "Emails, texts, calls, chat messages and pushes of notifications, by result.",
    ["channel", "status"],
)
pushes = Counter(
    "dispatch_push_messages_total",
    "Messages to browsers of members and technicians, by result.",
    ["purpose", "status"],
)
# A browser that has failed so often in a row does not work.
FAILING_AFTER = 2
heartbeats = Counter("dispatch_heartbeats_total", "Heartbeats to DISPATCH_HEARTBEAT_URL, by result.", ["outcome"])
# Their alerts see the first increment (`core.observability.metrics`).
heartbeats.labels("withheld")
heartbeats.labels("failed")
for _channel in Channel.values:
    deliveries.labels(_channel, "failed")


def _open_alerts() -> QuerySet[Alert]:
    """Return the open alerts of active organizations; those of others wait."""
    alerts: QuerySet[Alert] = Alert.objects.filter(status=Alert.Status.OPEN, organization__is_active=True)
    return alerts


@gauge("dispatch_alerts_open", "Unacknowledged alerts.")
def alerts_open() -> Samples:
    """Count the alerts that nobody has acknowledged."""
    return [((), _open_alerts().count())]


@gauge("dispatch_alerts_oldest_open_seconds", "Age of the oldest unacknowledged alert.")
def oldest_alert() -> Samples:
    """Return the age of the oldest unacknowledged alert in seconds; 0 if there is none."""
    since = _open_alerts().aggregate(first=Min("created_at"))["first"]
    return [((), (clock.now() - since).total_seconds() if since else 0.0)]


@gauge("dispatch_alerts_overdue", "Open alerts whose next step is more than a minute overdue.")
def alerts_overdue() -> Samples:
    """Count the open alerts that should already have escalated."""
    late = _open_alerts().filter(next_action_at__lt=clock.now() - timedelta(minutes=1))
    return [((), late.count())]


@gauge("dispatch_deliveries_open", "Notifications waiting to be sent, by channel.", ("channel",))
def deliveries_open() -> Samples:
    """Count the unsent deliveries of each channel."""
    waiting = Delivery.objects.filter(status__in=("waiting", "sending")).order_by().values_list("channel")
    counts = dict(waiting.annotate(count=Count("pk")))
    return [((channel,), counts.get(channel, 0)) for channel in Channel.values]


@gauge("dispatch_push_messages_open", "Messages to browsers that wait to be sent.")
def pushes_open() -> Samples:
    """Count the unsent messages to browsers."""
    return [((), PushMessage.objects.filter(status__in=("waiting", "sending")).count())]


@gauge("dispatch_push_failing_organizations", "Organizations in which no browser takes push notifications.")
def push_failing() -> Samples:
    """Count the organizations in which every browser that was tried has failed twice in a row."""
    tried = PushSubscription.objects.filter(tried_at__isnull=False, organization__is_active=True).order_by()
    working = Count("pk", filter=Q(failures__lt=FAILING_AFTER))
    return [((), tried.values("organization").annotate(working=working).filter(working=0).count())]
