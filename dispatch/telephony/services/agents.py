"""Follow connections to voice agents: their time limit, and their end."""

from __future__ import annotations

from datetime import timedelta
from typing import cast

from django.db import transaction

from dispatch.core import clock
from dispatch.telephony import providers
from dispatch.telephony.handlers import AgentEnd, AgentHandler, CallHandler, Document, handler_for
from dispatch.telephony.models import Call, CallEvent
from dispatch.telephony.providers.base import STEP, WebhookEvent
from dispatch.telephony.services.calls import lock_call, update_fields

AGENT, STREAM = "agent", "stream"
# The error code of a call whose voice agent failed.
FAILED = "no_agent"
FAILED_MESSAGE = "The voice agent could not be reached, or failed."


def name_of(call: Call, step: int) -> str:
    """Return the name of the connection that began with this document of the call."""
    return f"{call.pk}-{step}"


def limit(call_id: int, limit_s: int) -> None:
    """Have the call hung up after this many seconds, unless the agent ends before."""
    with transaction.atomic():
        call = lock_call(call_id)
        if call.ended_at is None and call.cancel_requested_at is None:
            update_fields(call, hang_up_at=clock.now() + timedelta(seconds=limit_s))


def apply_end(handler: CallHandler, call: Call, event: WebhookEvent, step: int) -> Document:
    """Record the end of a connection, and return what follows. Repeated, it changes nothing."""
    has_failed = not (_has_started(call, step) if event.is_stream else event.is_connected)
    _record_end(call, has_failed)
    return cast(AgentHandler, handler).on_agent_ended(call, AgentEnd(step, has_failed, event.handoff))


def apply_stored_end(event: CallEvent) -> None:
    """Apply the end of a connection whose webhook did not apply it."""
    try:
        provider = providers.for_account(event.call.account)
    except providers.UnknownProvider:
        return
    step = int(event.payload.get(STEP, 0))
    apply_end(handler_for(event.call.purpose), event.call, provider.parse(AGENT, step, event.payload), step)


def _has_started(call: Call, step: int) -> bool:
    """Return whether the provider reported the start of the stream, and no error of it.

    The end of a stream does not say whether the WebSocket was ever open.
    """
    reports = CallEvent.objects.filter(call_id=call.pk, kind=STREAM, payload__StreamName=name_of(call, step))
    events = set(reports.values_list("payload__StreamEvent", flat=True))
    return "stream-started" in events and "stream-error" not in events


def _record_end(call: Call, has_failed: bool) -> None:
    """Remove the time limit, and record a failure in the call."""
    with transaction.atomic():
        locked = lock_call(call.pk)
        fields: dict[str, object] = {}
        if locked.hang_up_at is not None and locked.ended_at is None and locked.cancel_requested_at is None:
            fields["hang_up_at"] = None
        if has_failed and not locked.error_code:
            fields |= {"error_code": FAILED, "error_message": FAILED_MESSAGE}
        if fields:
            update_fields(locked, **fields)
