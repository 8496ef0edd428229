"""Prometheus metrics of calls and texts."""

from __future__ import annotations

from django.db.models import Count, Min
from prometheus_client import Counter

from dispatch.capacity.models import OutboundNumber, ProviderAccount
from dispatch.core import clock
from dispatch.core.observability.metrics import Samples, gauge
from dispatch.telephony.models import Call, SpendCap, Text

texts_moved = Counter("dispatch_texts_total", "Status changes of outbound texts.", ["purpose", "status"])
spend = Counter("dispatch_spend", "Recorded prices of calls and texts, without credits.", ["kind", "currency"])
texts_received = Counter("dispatch_texts_received_total", "Inbound texts.")

webhooks_refused = Counter(
    "dispatch_webhooks_refused_total",
    "Rejected webhooks of the phone provider by reason.",
    ["reason"],
)
webhooks_refused.labels("wrong_signature")  # its alert sees the first one (`core.observability.metrics`)


@gauge("dispatch_provider_accounts_out", "Provider accounts with an outage.", ("outage",))
def accounts_out() -> Samples:
    """Count the active provider accounts in an outage, by kind of outage."""
    failing = ProviderAccount.objects.filter(is_active=True).exclude(outage="")
    return [((outage,), count) for outage, count in failing.values_list("outage").annotate(count=Count("pk"))]


@gauge("dispatch_spend_caps_reached", "Organizations whose calls and texts wait for their daily spending cap.")
def spend_caps_reached() -> Samples:
    """Count the active organizations that their spending cap has stopped."""
    stopped = SpendCap.objects.filter(amount__isnull=False, stopped_at__isnull=False, organization__is_active=True)
    return [((), stopped.count())]


@gauge("dispatch_numbers_resting", "Caller numbers that are avoided because they are unhealthy.")
def numbers_resting() -> Samples:
    """Count the numbers in use that rest."""
    return [((), OutboundNumber.objects.filter(is_paused=False, rests_until__gt=clock.now()).count())]


@gauge("dispatch_texts_waiting", "Due texts that are not sent yet.", ("purpose",))
def texts_waiting() -> Samples:
    """Count the due texts that are not sent yet, by purpose."""
    due = Text.objects.filter(status=Text.Status.CREATED, not_before__lte=clock.now())
    rows = due.order_by().values_list("purpose").annotate(count=Count("pk"))
    return [((purpose,), count) for purpose, count in rows]


@gauge("dispatch_texts_waiting_oldest_seconds", "Age of the oldest due text that is not sent yet.")
def texts_oldest() -> Samples:
    """Return the age of the oldest due text that is not sent yet."""
    now = clock.now()
    first = Text.objects.filter(status=Text.Status.CREATED, not_before__lte=now).aggregate(at=Min("not_before"))
    return [((), (now - first["at"]).total_seconds() if first["at"] else 0.0)]


@gauge("dispatch_texts_in_doubt", "Texts with an unresolved unknown outcome.")
def texts_in_doubt() -> Samples:
    """Count the texts with an unresolved unknown outcome."""
    return [((), Text.objects.filter(status=Text.Status.UNKNOWN, sid=None).count())]


@gauge("dispatch_calls_open", "Open calls by purpose and status.", ("purpose", "status"))
def calls_open() -> Samples:
    """Count the open calls, by purpose and status."""
    counted = Call.objects.filter(ended_at=None).order_by().values_list("purpose", "status")
    return [((purpose, status), count) for purpose, status, count in counted.annotate(count=Count("pk"))]


@gauge("dispatch_calls_oldest_unknown_seconds", "Age of the oldest call request with an unknown outcome.")
def oldest_unknown() -> Samples:
    """Return the age of the oldest call request with an unknown outcome."""
    unknown = Call.objects.filter(status=Call.Status.UNKNOWN, ended_at=None)
    since = unknown.aggregate(first=Min("requested_at"))["first"]
    return [((), (clock.now() - since).total_seconds() if since else 0.0)]
