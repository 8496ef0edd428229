"""How a call's row moves: under its lock, forward only, each move an event, each end giving its line back."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import structlog

from dispatch.capacity import lines
from dispatch.core import clock, events, rows
from dispatch.core.events import SYSTEM, Actor, NewEvent
from dispatch.telephony import rules
from dispatch.telephony.models import Call
from dispatch.telephony.purposes import handler_for

log = structlog.get_logger(__name__)

PROVIDER = Actor("provider", None, "Telephone provider")


def locked(call_id: int, *related: str) -> Call:
    """The call, its row locked until the transaction ends, with related rows read along. Raises
    Call.DoesNotExist."""
    return rows.get(Call, call_id, *related, lock=True)


def record(call: Call, verb: str, actor: Actor = SYSTEM, **data: Any) -> None:
    """Appends `call.<verb>` with what the call is for; its row must be locked."""
    event = event_of(call, verb, actor, **data)
    events.append(event.organization_id, event.kind, call.pk, actor=actor, **event.data)


def event_of(call: Call, verb: str, actor: Actor = SYSTEM, **data: Any) -> NewEvent:
    """What `record` appends, for who writes it together with the call."""
    about = {"purpose": call.purpose, "subject_id": call.subject_id, "attempt": call.attempt}
    said = {name: value for name, value in data.items() if value not in (None, "")}
    return NewEvent(call.organization_id, f"call.{verb}", actor, {**call.context, **about, **said})


def advance(
    call: Call, status: str, *, actor: Actor = SYSTEM, data: dict[str, Any] | None = None, **fields: Any
) -> bool:
    """Moves a locked call forward to `status` and writes `fields`; False, and nothing, when it is there or
    further.

    `data` goes into the event."""
    if not rules.is_forward(call.status, status):
        return False
    now = clock.now()
    call.status = status
    if rules.RANK[status] >= rules.RANK["submitted"] and call.sid and call.submitted_at is None:
        fields.setdefault("submitted_at", now)
    if status == Call.Status.ANSWERED:
        fields.setdefault("answered_at", now)
    if status in rules.ENDS:
        fields.setdefault("ended_at", now)
        lines.release(call.holder)
    said = {"code": fields.get("error_code"), "message": fields.get("error_message"), **(data or {})}
    _write(call, ("status",), fields, event_of(call, status, actor, **said))
    return True


def hold_back(call: Call, until: datetime) -> None:
    """Leaves a locked, created call to the placer until then."""
    keep(call, not_before=until)


def keep(call: Call, *names: str, **fields: Any) -> None:
    """Writes these fields of a locked call, and those named."""
    _write(call, names, fields)


def _write(call: Call, names: tuple[str, ...], fields: dict[str, Any], *news: NewEvent) -> None:
    for name, value in fields.items():
        setattr(call, name, value)
    rows.update(call, (*names, *fields), *news)


def tell(call: Call) -> None:
    """Tells the purpose that the call changed, after commit. Its failure is logged, for the purpose's auditor
    heals it; webhooks call the handler themselves, so that the provider repeats what failed."""
    try:
        handler_for(call.purpose).changed(call)
    except KeyError:
        log.error("nobody registered for this purpose", purpose=call.purpose, call=call.pk)
    except Exception:
        log.exception("the purpose could not be told of its call", purpose=call.purpose, call=call.pk)
