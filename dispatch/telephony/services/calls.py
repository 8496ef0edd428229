"""Create calls with their line before the provider is asked, and move them between states."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import Any

import structlog
from django.db import connection, transaction
from django.db.models import QuerySet

from accounts.models import Organization
from dispatch.capacity import line_leases
from dispatch.capacity.models import DispatchPool, OutboundNumber
from dispatch.core import clock, events
from dispatch.core.db import fast_rows, prepared
from dispatch.core.db.instances import new_instance
from dispatch.core.events import SYSTEM, Actor, NewEvent
from dispatch.core.phone_numbers import read_stored_phone
from dispatch.core.runtime.queues import notify_loop
from dispatch.telephony import price_sql, rules, sql
from dispatch.telephony.errors import CallNotAllowed, NoLine, PhoneBusy
from dispatch.telephony.handlers import handler_for
from dispatch.telephony.models import Call, holder_of
from dispatch.telephony.services import spend_caps

# How many proposed lines are tried, because PostgreSQL may reject a proposal.
PROPOSALS = 5
NORMAL = 3
HANG_UP_LOOP = "calls_hang_up"


def create_call(
    *,
    organization: Organization,
    purpose: str,
    subject_id: int,
    attempt: int,
    to_phone: Any,
    pool: DispatchPool,
    ring_timeout_s: int,
    time_limit_s: int,
    place_by: datetime,
    context: dict[str, Any] | None = None,
    number: OutboundNumber | None = None,
    priority: int = NORMAL,
    waiter: str = "",
) -> Call:
    """Create a call that holds a line. Must run in the caller's transaction.

    `to_phone` is E.164. `place_by`: the deadline for the request. `context` (JSON) is included in every event of
    the call. `number`: the only number of the pool to call from. `priority`: 1 is placed first. An existing call
    of the same (purpose, subject_id, attempt) is returned unchanged. `waiter`: the name under which it waits for
    a line, if each try has a different subject.

    Raises NoLine (retry in `retry_in_s`), PhoneBusy and CallNotAllowed. The transaction stays usable.
    """
    if not connection.in_atomic_block:
        raise RuntimeError("create_call must run in the transaction that creates the call's subject.")
    phone = str(to_phone)
    with prepared.pipeline():
        find_conflicts = sql.conflicting_calls(organization.pk, phone, purpose, subject_id, attempt)
        find_cap = spend_caps.find_state(organization.pk, price_sql.CALLS, purpose)
        numbers: line_leases.FindNumbers | None = line_leases.find_numbers(pool, number.pk if number else None)
    conflicts = find_conflicts()
    if not any(is_same for _, is_same in conflicts) and (
        reason := rules.why_not_callable(phone, organization.allowed_countries)
    ):
        raise CallNotAllowed(reason)
    if conflicts:
        return _same_attempt(conflicts)
    if hold := find_cap().hold:
        raise NoLine.because(spend_caps.REASON, str(hold))
    holder = holder_of(purpose, subject_id, attempt)
    for _ in range(PROPOSALS):
        line = line_leases.propose_line(
            pool, purpose, holder, only=number.pk if number else None, waiter=waiter, numbers=numbers
        )
        numbers = None  # read again for the next proposal
        if isinstance(line, NoLine):
            raise line
        now = clock.now()
        call = new_instance(
            Call,
            organization_id=organization.pk,
            purpose=purpose,
            subject_id=subject_id,
            attempt=attempt,
            account_id=line.account_id,
            number_id=line.number_id,
            pool=line.pool,
            line_slot=line.line_slot,
            pool_slot=line.pool_slot,
            to_phone=read_stored_phone(phone),
            from_phone=read_stored_phone(line.phone),
            ring_timeout_s=ring_timeout_s,
            time_limit_s=time_limit_s,
            place_by=place_by,
            priority=priority,
            not_before=now,
            created_at=now,
            context=context or {},
        )
        event = event_of(call, "created", number=str(call.number_id), pool=line.pool.code)
        if fast_rows.insert_row(call, event, or_nothing=True):
            return call
        # A unique constraint prevented the insert (the transaction stays usable): the attempt or the phone already
        # has a call, or Redis proposed a line that is in use.
        if conflicts := sql.conflicting_calls(organization.pk, phone, purpose, subject_id, attempt)():
            line_leases.return_lines(holder)
            return _same_attempt(conflicts)
        line_leases.repair_pool(line.pool.pk)
    line_leases.return_lines(holder)
    raise NoLine.because("lines_busy")


def _same_attempt(conflicts: list[tuple[int, bool]]) -> Call:
    """Return the call of this attempt. Raises PhoneBusy if the conflict is another call to the phone."""
    for pk, is_same in conflicts:
        if is_same:
            return fast_rows.fetch_by_pk(Call, pk)
    raise PhoneBusy


def calls_of(purpose: str, subject_id: int) -> QuerySet[Call]:
    """Select the calls of the subject, newest first."""
    calls: QuerySet[Call] = Call.objects.filter(purpose=purpose, subject_id=subject_id).order_by("-id")
    return calls


def call_of(purpose: str, subject_id: int, attempt: int) -> Call | None:
    """Return the call of one attempt, or None."""
    return calls_of(purpose, subject_id).filter(attempt=attempt).first()


def open_call_of(purpose: str, subject_id: int) -> Call | None:
    """Return the subject's open call, or None."""
    return calls_of(purpose, subject_id).filter(ended_at=None).first()


log = structlog.get_logger(__name__)

PROVIDER = Actor("provider", None, "Phone provider")


def lock_call(call_id: int, *related: str) -> Call:
    """Return the call locked until the end of the transaction, with `related` rows. Raises Call.DoesNotExist."""
    return find_locked_call(call_id, *related)()


def find_locked_call(call_id: int, *related: str) -> Callable[[], Call]:
    """Return a function for what `lock_call` returns. A pipeline does not wait for it."""
    return fast_rows.find_by_pk(Call, call_id, *related, lock=True)


def append_call_event(call: Call, verb: str, actor: Actor = SYSTEM, **data: Any) -> None:
    """Append `call.<verb>` with the call's subject. The row must be locked."""
    event = event_of(call, verb, actor, **data)
    events.append(event.organization_id, event.kind, call.pk, actor=actor, **event.data)


def event_of(call: Call, verb: str, actor: Actor = SYSTEM, **data: Any) -> NewEvent:
    """Return the Event that `append_call_event` would append, to be written together with the call."""
    subject = {"purpose": call.purpose, "subject_id": call.subject_id, "attempt": call.attempt}
    details = {name: value for name, value in data.items() if value not in (None, "")}
    return NewEvent(call.organization_id, f"call.{verb}", actor, {**call.context, **subject, **details})


def transition(
    call: Call, status: str, *, actor: Actor = SYSTEM, data: dict[str, Any] | None = None, **fields: Any
) -> bool:
    """Move a locked call forward to `status`, and write `fields`.

    Returns False, and changes nothing, if the call already has that status or a later one. `data` goes into the
    event.
    """
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
        if call.hang_up_at is not None:
            fields.setdefault("hang_up_at", None)
        line_leases.release_lines(call.holder)
    details = {"code": fields.get("error_code"), "message": fields.get("error_message"), **(data or {})}
    _write_fields(call, ("status",), fields, event_of(call, status, actor, **details))
    return True


def schedule_hang_up(call: Call) -> None:
    """Have the provider end a locked call that has a SID. The loop asks it after the commit, until the call ended.

    For a call that ended for us, but turned out to exist, the loop asks until the provider has answered.
    """
    update_fields(call, hang_up_at=clock.now())
    notify_loop(HANG_UP_LOOP)


def mark_lost(call_id: int, why: str) -> None:
    """End a call whose end will never be reported."""
    with transaction.atomic():
        call = lock_call(call_id)
        changed = transition(call, Call.Status.LOST, error_message=why)
    if changed:
        notify_handler(call)


def defer_call(call: Call, until: datetime) -> None:
    """Defer a locked, created call: the placer ignores it until then."""
    update_fields(call, not_before=until)


def update_fields(call: Call, *new_events: NewEvent, **fields: Any) -> None:
    """Write `fields` of a locked call, and the events about it."""
    _write_fields(call, (), fields, *new_events)


def _write_fields(call: Call, names: tuple[str, ...], fields: dict[str, Any], *new_events: NewEvent) -> None:
    for name, value in fields.items():
        setattr(call, name, value)
    fast_rows.update_row(call, (*names, *fields), *new_events)


def notify_handler(call: Call) -> None:
    """Notify the purpose's handler, after the commit, that the call has changed.

    A failure is only logged: the purpose's auditor recovers. Webhooks invoke the handler directly instead, so that
    the provider retries failures.
    """
    try:
        handler_for(call.purpose).on_status_change(call)
    except KeyError:
        log.error("call_handler_missing", purpose=call.purpose, call=call.pk)
    except Exception:
        log.exception("call_handler_failed", purpose=call.purpose, call=call.pk)
