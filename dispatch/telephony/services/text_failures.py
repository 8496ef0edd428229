"""Report texts that failed because of our account, number or wording; know phones that can't receive texts."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import structlog
from django.db import connection

from dispatch.core import clock, events
from dispatch.core.models import Event
from dispatch.telephony import providers
from dispatch.telephony.models import Text

log = structlog.get_logger(__name__)

KIND = "account.texts_refused"
# An account's admins are notified of one code at most once per this interval.
ALERT_EVERY = timedelta(days=1)
# Kinds of error codes for which admins can do nothing.
NOT_OURS = frozenset({"number", "opted_out", "temporary"})
# A phone whose latest text failed because of the phone, such as a landline, is not texted again for this time.
UNTEXTABLE_FOR = timedelta(days=30)
_LOCK = "SELECT pg_advisory_xact_lock(hashtextextended(%s, 0))"


def report_failure(text: Text) -> None:
    """Append an event for admins about a failed text, once per account, error code and day.

    Runs in the caller's transaction.
    """
    code = text.error_code.strip()
    if not code.strip("0"):
        return
    try:
        provider = providers.for_account(text.account)
    except Exception:
        log.exception("provider_unusable", account=text.account_id)
        return
    if provider.about(code) in NOT_OURS:
        return
    with connection.cursor() as cursor:
        cursor.execute(_LOCK, [f"{KIND}:{text.account_id}:{code}"])
    lately = Event.objects.filter(subject_type="account", subject_id=text.account_id, kind=KIND, data__code=code)
    if lately.filter(at__gt=clock.now() - ALERT_EVERY).exists():
        return
    events.append(
        text.organization_id,
        KIND,
        text.account_id,
        name=text.account.name,
        code=code,
        message=text.error_message or provider.meaning_of(code),
        number=text.from_phone,
        text_id=text.pk,
    )


def why_texts_fail(organization_id: int, phone: Any) -> str:
    """Return why texts don't reach the phone, from the outcome of the latest text to it; empty if they may."""
    sent = Text.objects.of(organization_id).filter(
        to_phone=str(phone), direction=Text.Direction.OUT, requested_at__gt=clock.now() - UNTEXTABLE_FOR
    )
    last = sent.select_related("account").order_by("-id").first()
    if last is None or last.status not in (Text.Status.UNDELIVERED, Text.Status.FAILED, Text.Status.REJECTED):
        return ""
    code = last.error_code.strip()
    if not code.strip("0"):
        return ""
    try:
        provider = providers.for_account(last.account)
    except Exception:
        log.exception("provider_unusable", account=last.account_id)
        return ""
    return f"the phone can't receive texts (error {code})" if provider.about(code) == "number" else ""
