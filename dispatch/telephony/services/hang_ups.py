"""Ask the provider to end calls. `call_requests.hang_up` and others only record that a call must end."""

from __future__ import annotations

from datetime import datetime, timedelta

import structlog
from django.db import transaction

from dispatch.core import clock, fault_injection
from dispatch.core.db import prepared
from dispatch.core.db.lock_waits import RecentlyBlocked
from dispatch.telephony import providers, request_threads, rules, sql
from dispatch.telephony.models import Call
from dispatch.telephony.providers.base import CallGone, ProviderError, TooManyRequests
from dispatch.telephony.request_threads import HANG_UPS, start_due
from dispatch.telephony.services.call_status import apply_report
from dispatch.telephony.services.calls import lock_call, mark_lost, update_fields

log = structlog.get_logger(__name__)

BATCH = 200
AGAIN = timedelta(seconds=15)
EVENT = "hang_up_not_requested"
_failed_calls = RecentlyBlocked(5.0, longest_s=600.0)


def hang_up_due() -> bool:
    """Ask the provider to end the calls that are due for it. Return whether more are due."""
    but = request_threads.busy_ids(HANG_UPS, EVENT) | _failed_calls.keys()
    due = sql.due_hang_ups(clock.now(), BATCH, but, HANG_UPS.full_keys())
    has_waiting = start_due(HANG_UPS, due, _claim, _ask, event=EVENT, skipped=_failed_calls)
    return has_waiting or len(due) == BATCH


def _claim(call_id: int) -> Call | None:
    """Postpone the next request, for the case that this one fails or its process dies."""
    with transaction.atomic():
        prepared.defer_fsync()
        call = lock_call(call_id, "account")
        now = clock.now()
        if call.sid is None or call.hang_up_at is None or call.hang_up_at > now:
            return None
        update_fields(call, hang_up_at=now + AGAIN, checked_at=now)
        return call


def _ask(call: Call) -> None:
    """Ask the provider, and write the response: it sends no webhook when a queued call is ended."""
    assert call.sid is not None
    fault_injection.crash_point("telephony.hang_up.asking")
    try:
        report = providers.for_account(call.account).hang_up(call.sid)
    except CallGone:
        mark_lost(call.pk, "the provider does not know it")
    except TooManyRequests as error:
        log.info("hang_up_deferred", call=call.pk, error=str(error))
        again = clock.now() + min(timedelta(seconds=error.retry_after_s), AGAIN)
        Call.objects.filter(pk=call.pk, hang_up_at__isnull=False).update(hang_up_at=again)
        return
    except (ProviderError, providers.UnknownProvider) as error:
        log.warning("hang_up_failed", call=call.pk, error=str(error))
        if not _is_given_up(call, clock.now()):
            return
        mark_lost(call.pk, "the provider gave no answer")
    else:
        fault_injection.crash_point("telephony.hang_up.sent")
        apply_report(call.pk, report)
    # A call that had ended for us is not asked about again; the others repeat it until their end.
    Call.objects.filter(pk=call.pk, ended_at__isnull=False, hang_up_at__isnull=False).update(hang_up_at=None)


def _is_given_up(call: Call, now: datetime) -> bool:
    return now > (call.requested_at or call.created_at) + rules.GIVE_UP_AFTER
