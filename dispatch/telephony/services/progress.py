"""What the provider tells about a call, asked or unasked, moves it forward."""

from __future__ import annotations

from typing import Any

from django.db import transaction

from dispatch.core import faults, rows
from dispatch.telephony import providers, rules
from dispatch.telephony.errors import NotTheirs
from dispatch.telephony.models import Call, CallEvent
from dispatch.telephony.providers.base import Hook, Report
from dispatch.telephony.services.moving import PROVIDER, advance, keep, locked, record, tell


def receive(call_id: int, hook: Hook) -> Call:
    """Stores a verified webhook and moves its call, once; a repeated one changes nothing. The caller tells the
    purpose.

    The first one also settles which call at the provider is ours. Raises NotTheirs when it names another call or
    account, Call.DoesNotExist."""
    from dispatch.telephony.services.hanging_up import end_after_commit

    with transaction.atomic():
        call = locked(call_id, "account")
        first = _same_call(call, hook)
        told = CallEvent(
            organization_id=call.organization_id, call=call, key=hook.key, kind=hook.kind, payload=hook.payload
        )
        if not rows.insert(told, or_nothing=True):
            return call  # it was told before
        was_over = call.ended_at is not None
        if hook.sequence is not None and hook.sequence > call.last_sequence:
            keep(call, last_sequence=hook.sequence)
        _move(call, hook)
        if hook.digits and hook.kind == "gather":
            keep(call, keys_pressed=(call.keys_pressed + hook.digits)[-64:])
            record(call, "key_pressed", PROVIDER, key=hook.digits)
        unwanted = first and (call.cancel_requested_at is not None or was_over)
        if unwanted and hook.status not in rules.ENDS:
            end_after_commit(call)
    faults.point("telephony.webhook.committed")
    return call


def _same_call(call: Call, hook: Hook) -> bool:
    """Checks that the webhook is about this call, adopting its SID if none is known; True when it was adopted."""
    if not hook.sid or hook.account_sid != call.account.account_sid:
        raise NotTheirs
    if call.sid is not None:
        if call.sid != hook.sid:
            raise NotTheirs
        return False
    if Call.objects.filter(account_id=call.account_id, sid=hook.sid).exists():
        raise NotTheirs
    keep(call, sid=hook.sid)
    return True


def apply_report(call_id: int, report: Report) -> Call:
    """Moves the call by what the provider answered when it was asked, and tells the purpose."""
    with transaction.atomic():
        call = locked(call_id)
        changed = call.sid == report.sid and _move(call, report)
    if changed:
        tell(call)
    return call


def _move(call: Call, report: Report) -> bool:
    fields: dict[str, Any] = {}
    if report.answered_by:
        fields["answered_by"] = report.answered_by
    if report.status in rules.ENDS:
        fields["duration_s"] = report.duration_s
    if report.error_code:
        fields |= {"error_code": report.error_code, "error_message": report.error_message}
    if report.status and advance(call, report.status, actor=PROVIDER, data=_said(report), **fields):
        return True
    if report.answered_by and not call.answered_by:
        keep(call, answered_by=report.answered_by)
    return False


def _said(report: Report) -> dict[str, Any]:
    return {"duration_s": report.duration_s, "answered_by": report.answered_by}


def blames_the_number(call: Call) -> bool:
    """Whether the call's error, in its provider's words, says that this number can never be called."""
    if not call.error_code:
        return False
    try:
        return providers.for_account(call.account).about(call.error_code) == "number"
    except providers.UnknownProvider:
        return False
