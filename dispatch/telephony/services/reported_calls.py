"""Change the locked calls of a group of reports: apply each report to its call, then write all calls at once."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime

from dispatch.core.db import prepared
from dispatch.core.events import EventRow
from dispatch.telephony import report_sql, rules
from dispatch.telephony.group_handlers import ReportedCall
from dispatch.telephony.models import Call
from dispatch.telephony.providers.base import WebhookEvent

GATHER = "gather"


def apply_event(call: ReportedCall, event: WebhookEvent) -> Iterable[EventRow]:
    """Apply a new report to the call as `call_status` does, and return the events to append."""
    if call.sid is None:
        call.sid = event.sid
    if event.sequence is not None and event.sequence > call.last_sequence:
        call.last_sequence = event.sequence
    pressed = []
    if event.kind == GATHER and event.digits:
        call.keys_pressed = (call.keys_pressed + event.digits)[-64:]
        pressed = [_event_of(call, "key_pressed", key=event.digits)]
    if not event.status or not rules.is_forward(call.status, event.status):
        call.answered_by = call.answered_by or event.answered_by
        return pressed
    call.status = event.status
    call.answered_by = event.answered_by or call.answered_by
    call.is_submitted = call.is_submitted or rules.RANK[event.status] >= rules.RANK["submitted"]
    call.is_answered = call.is_answered or event.status == Call.Status.ANSWERED
    if event.status in rules.ENDS:
        call.has_ended, call.duration_s = True, event.duration_s
    reported = _event_of(call, event.status, duration_s=event.duration_s, answered_by=event.answered_by)
    return [reported, *pressed]


def _event_of(call: ReportedCall, verb: str, **details: object) -> EventRow:
    data = {
        **call.context, "purpose": call.purpose, "subject_id": call.subject_id, "attempt": call.attempt,
        **{name: value for name, value in details.items() if value not in (None, "")},
    }  # fmt: skip
    return EventRow(call.organization_id, f"call.{verb}", call.pk, data)


def update(calls: Sequence[ReportedCall], now: datetime) -> None:
    """Write the calls, with the next statement. Their moments that have come are `now`."""
    if not calls:
        return
    prepared.change_later(
        report_sql.UPDATE_CALLS,
        {
            "ids": prepared.integers(call.pk for call in calls),
            "statuses": prepared.texts(call.status for call in calls),
            "sequences": prepared.integers(call.last_sequence for call in calls),
            "sids": prepared.texts(call.sid for call in calls),
            "answerers": prepared.texts(call.answered_by for call in calls),
            "keys": prepared.texts(call.keys_pressed for call in calls),
            "submitted": prepared.booleans(call.is_submitted for call in calls),
            "answered": prepared.booleans(call.is_answered for call in calls),
            "ended": prepared.booleans(call.has_ended for call in calls),
            "durations": prepared.integers(call.duration_s for call in calls),
            "now": now,
        },
    )
