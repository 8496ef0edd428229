"""The figures of alerts and of what leaves the house, at /metrics."""

from __future__ import annotations

from datetime import timedelta

from django.db.models import Count, Min
from prometheus_client import Counter

from dispatch.core import clock
from dispatch.core.metrics import Samples, gauge
from notifications.models import Alert, Channel, Delivery

deliveries = Counter(
    "dispatch_deliveries_total",
    "E-mails, texts and calls of notifications, by how they ended.",
    ["channel", "status"],
)


@gauge("dispatch_alerts_open", "Alerts that nobody has acknowledged.")
def alerts_open() -> Samples:
    return [((), Alert.objects.filter(status=Alert.Status.OPEN).count())]


@gauge("dispatch_alerts_oldest_open_seconds", "Age of the oldest alert that nobody has acknowledged.")
def oldest_alert() -> Samples:
    since = Alert.objects.filter(status=Alert.Status.OPEN).aggregate(first=Min("created_at"))["first"]
    return [((), (clock.now() - since).total_seconds() if since else 0.0)]


@gauge("dispatch_alerts_overdue", "Open alerts whose next step passed more than a minute ago.")
def alerts_overdue() -> Samples:
    late = Alert.objects.filter(status=Alert.Status.OPEN, next_action_at__lt=clock.now() - timedelta(minutes=1))
    return [((), late.count())]


@gauge("dispatch_deliveries_open", "Notifications that wait to leave by a channel.", ("channel",))
def deliveries_open() -> Samples:
    waiting = Delivery.objects.filter(status__in=("waiting", "sending")).order_by().values_list("channel")
    found = dict(waiting.annotate(count=Count("pk")))
    return [((channel,), found.get(channel, 0)) for channel in Channel.values]
