"""What telephony tells Prometheus of calls and texts."""

from __future__ import annotations

from django.db.models import Count, Min
from prometheus_client import Counter

from dispatch.core import clock
from dispatch.core.metrics import Samples, gauge
from dispatch.telephony.models import Call, Text

texts_moved = Counter(
    "dispatch_texts_total", "Texts of ours by what became of them, each step counted.", ["purpose", "status"]
)
texts_received = Counter("dispatch_texts_received_total", "Texts that people sent to our numbers.")


@gauge("dispatch_texts_waiting", "Texts that are due and not yet sent.", ("purpose",))
def texts_waiting() -> Samples:
    due = Text.objects.filter(status=Text.Status.CREATED, not_before__lte=clock.now())
    rows = due.order_by().values_list("purpose").annotate(count=Count("pk"))
    return [((purpose,), count) for purpose, count in rows]


@gauge("dispatch_texts_waiting_oldest_seconds", "Age of the oldest text that is due and not yet sent.")
def texts_oldest() -> Samples:
    now = clock.now()
    first = Text.objects.filter(status=Text.Status.CREATED, not_before__lte=now).aggregate(at=Min("not_before"))
    return [((), (now - first["at"]).total_seconds() if first["at"] else 0.0)]


@gauge("dispatch_texts_in_doubt", "Texts whose request had an unknown outcome, and that are not settled.")
def texts_in_doubt() -> Samples:
    return [((), Text.objects.filter(status=Text.Status.UNKNOWN, sid=None).count())]


@gauge("dispatch_calls_open", "Calls that have not ended, by purpose and status.", ("purpose", "status"))
def calls_open() -> Samples:
    counted = Call.objects.filter(ended_at=None).order_by().values_list("purpose", "status")
    return [((purpose, status), count) for purpose, status, count in counted.annotate(count=Count("pk"))]


@gauge("dispatch_calls_oldest_unknown_seconds", "Age of the oldest request for a call whose outcome nobody knows.")
def oldest_unknown() -> Samples:
    unknown = Call.objects.filter(status=Call.Status.UNKNOWN, ended_at=None)
    since = unknown.aggregate(first=Min("requested_at"))["first"]
    return [((), (clock.now() - since).total_seconds() if since else 0.0)]
