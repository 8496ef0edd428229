"""Handle webhooks with an invalid signature: count and log them, and notify the organization."""

from __future__ import annotations

from datetime import timedelta

import structlog
from django.db import transaction
from django.db.models import Q

from dispatch.capacity.models import ProviderAccount
from dispatch.core import clock, events
from dispatch.core.models import Event
from dispatch.telephony import metrics
from dispatch.telephony.models import Call
from dispatch.telephony.services.calls import append_call_event

log = structlog.get_logger(__name__)

# An organization is notified at most once in this interval, because anybody can post to a URL.
ALERT_EVERY = timedelta(minutes=15)
NOTE = "a webhook was refused: its signature is wrong"


def report_refusal(account: ProviderAccount, url: str, *, is_signed: bool, call: Call | None = None) -> None:
    """Record a rejected webhook of the account, and notify its organization if the signature was wrong.

    `url`: the URL whose signature was verified. `is_signed`: the request carried a signature and named the
    account. `call`: the call that it is about, if any. An unsigned request does not come from the provider and is
    only logged. A request about a call that has ended is only logged, too.
    """
    reason = "wrong_signature" if is_signed else "no_signature"
    metrics.webhooks_refused.labels(reason).inc()
    log.warning("webhook_refused", reason=reason, url=url, account=account.pk, call=call.pk if call else None)
    if not is_signed or (call is not None and call.ended_at is not None):
        return
    with transaction.atomic():
        if call is not None:
            _record_on_call(call, url)
        now = clock.now()
        due = Q(signature_alerted_at=None) | Q(signature_alerted_at__lte=now - ALERT_EVERY)
        if ProviderAccount.objects.filter(due, pk=account.pk).update(signature_alerted_at=now):
            kind = "account.signature_refused"
            events.append(account.organization_id, kind, account.pk, name=account.name, url=url[:300])


def _record_on_call(call: Call, url: str) -> None:
    """Append the rejected webhook to the call's history, once."""
    if Event.objects.filter(subject_type="call", subject_id=call.pk, kind="call.signature_refused").exists():
        return
    Call.objects.filter(pk=call.pk, error_message="").update(error_message=NOTE)
    append_call_event(call, "signature_refused", url=url[:300])
