"""Apply the provider's reports on calls, from webhooks and from responses."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

from django.db import transaction

from dispatch.capacity import account_outages
from dispatch.capacity.models import ProviderAccount
from dispatch.core import clock, fault_injection
from dispatch.core.db import fast_rows
from dispatch.telephony import providers, rules
from dispatch.telephony.errors import WrongCall
from dispatch.telephony.models import Call, CallEvent
from dispatch.telephony.providers.base import StatusReport, WebhookEvent
from dispatch.telephony.services import keys
from dispatch.telephony.services.calls import (
    PROVIDER,
    event_of,
    lock_call,
    notify_handler,
    schedule_hang_up,
    transition,
    update_fields,
)


def receive_webhook(
    call_id: int, event: WebhookEvent, is_signed_by: Callable[[ProviderAccount], bool] = lambda _: True
) -> Call:
    """Store a verified webhook and update its call, once. The caller notifies the handler.

    The call and its account are read once, locked. A request that does not name the account locks nothing.
    `is_signed_by` verifies the request. A repeated webhook changes nothing. The first webhook also establishes
    which call at the provider is ours. Raises WrongCall if it is about another call or account, or not verified.
    """
    arrived_at = clock.now()  # before waiting for the row lock: a key counts as of its arrival
    with transaction.atomic():
        condition = "t.id = %s AND r1.account_sid = %s"
        call = fast_rows.fetch_one(Call, condition, [call_id, event.account_sid], "account", lock=True)
        if call is None or not is_signed_by(call.account):
            raise WrongCall
        is_first = _same_call(call, event)
        provider_event = CallEvent(
            organization_id=call.organization_id,
            call=call,
            key=event.key,
            kind=event.kind,
            payload=event.payload,
            at=arrived_at,
            next_action_at=keys.take_over_at(event, arrived_at),
        )
        if not fast_rows.insert_row(provider_event, or_nothing=True):
            return call  # a repeated webhook
        was_over = call.ended_at is not None
        is_newer = event.sequence is not None and event.sequence > call.last_sequence
        _apply_status(call, event, {"last_sequence": event.sequence} if is_newer else {})
        if event.digits and event.kind == "gather":
            pressed = event_of(call, "key_pressed", PROVIDER, key=event.digits)
            update_fields(call, pressed, keys_pressed=(call.keys_pressed + event.digits)[-64:])
        is_unwanted = is_first and (call.cancel_requested_at is not None or was_over)
        if is_unwanted and event.status not in rules.ENDS:
            schedule_hang_up(call)
    fault_injection.crash_point("telephony.webhook.committed")
    return call


def _same_call(call: Call, event: WebhookEvent) -> bool:
    """Check that the webhook is about this call, and adopt its SID if none is known. Return True if adopted."""
    if not event.sid:
        raise WrongCall
    if call.sid is not None:
        if call.sid != event.sid:
            raise WrongCall
        return False
    if Call.objects.filter(account_id=call.account_id, sid=event.sid).exists():
        raise WrongCall
    update_fields(call, sid=event.sid)
    return True


def apply_report(call_id: int, report: StatusReport) -> Call:
    """Apply the provider's response to a status request, and notify the handler."""
    with transaction.atomic():
        call = lock_call(call_id)
        changed = call.sid == report.sid and _apply_status(call, report)
    if changed:
        notify_handler(call)
    return call


def _apply_status(call: Call, report: StatusReport, also: Mapping[str, Any] = MappingProxyType({})) -> bool:
    """Apply the report's status, and write the fields `also` in any case. Return whether the status changed."""
    fields: dict[str, Any] = dict(also)
    if report.answered_by:
        fields["answered_by"] = report.answered_by
    if report.status in rules.ENDS:
        fields["duration_s"] = report.duration_s
    if report.error_code:
        fields |= {"error_code": report.error_code, "error_message": report.error_message}
    if report.status and transition(call, report.status, actor=PROVIDER, data=_report_data(report), **fields):
        return True
    kept = dict(also)
    if report.answered_by and not call.answered_by:
        kept["answered_by"] = report.answered_by
    if kept:
        update_fields(call, **kept)
    return False


def _report_data(report: StatusReport) -> dict[str, Any]:
    return {"duration_s": report.duration_s, "answered_by": report.answered_by}


def is_bad_number(call: Call) -> bool:
    """Return whether the provider's error code means that this number can never be called.

    A code that is no proof alone counts if the call before it to this phone ended alike.
    """
    if _kind_of_error(call) != "number":
        return False
    return providers.for_account(call.account).is_sure(call.error_code) or _failed_alike(call)


def _failed_alike(call: Call) -> bool:
    if call.requested_at is None:
        return False
    calls = Call.objects.filter(organization_id=call.organization_id, to_phone=call.to_phone)
    earlier = calls.filter(ended_at__isnull=False, requested_at__lt=call.requested_at)
    last = earlier.select_related("account").order_by("-requested_at").first()
    return last is not None and last.status == Call.Status.FAILED and _kind_of_error(last) == "number"


def _kind_of_error(call: Call) -> str:
    if not call.error_code:
        return "other"
    try:
        return providers.for_account(call.account).about(call.error_code)
    except providers.UnknownProvider:
        return "other"


def is_not_permitted(call: Call) -> bool:
    """Return whether the provider refused the call because of our account rather than the number."""
    if call.status not in (Call.Status.REJECTED, Call.Status.FAILED):
        return False
    kind = _kind_of_error(call)
    return kind in ("configuration", "permission") or (call.status == Call.Status.REJECTED and kind == "other")


def has_webhook(call: Call, kind: str = "") -> bool:
    """Return whether a verified webhook about the call (of that kind, if given) has arrived."""
    webhooks = CallEvent.objects.filter(call_id=call.pk)
    return (webhooks.filter(kind=kind) if kind else webhooks).exists()


def record_silence(call: Call) -> bool:
    """Record a failed request of the account: no report arrived within the call's ring time.

    For a call with an unknown outcome. Returns whether the account is in an outage now. Runs in the caller's
    transaction.
    """
    return account_outages.record_failure(
        call.account_id, account_outages.Outage.NO_ANSWER, "no report about a call arrived"
    )
