"""Writing a call's row, with its line, before anybody is asked."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from django.db import connection
from django.db.models import QuerySet

from accounts.models import Organization
from dispatch.capacity import lines
from dispatch.capacity.models import DispatchPool, OutboundNumber
from dispatch.core import clock, rows
from dispatch.telephony import rules, sql
from dispatch.telephony.errors import CallNotAllowed, NoLine, PhoneBusy
from dispatch.telephony.models import Call, holder_of
from dispatch.telephony.services.moving import event_of

# How often another line is proposed after Postgres refused one.
PROPOSALS = 5


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
) -> Call:
    """The committed intention to call, holding a line; call `place` with its id after the commit (the placer
    does so a second later if nobody did). Must run in the caller's transaction.

    `to_phone` is E.164; `place_by` the moment after which nobody asks the provider any more; `context` (JSON) is
    repeated in every event of the call; `number`, one of the pool's, is the only one to call from. A call of the
    same (purpose, subject_id, attempt) is returned as it is.

    Raises NoLine (try again in `retry_in_s`), PhoneBusy, CallNotAllowed; none of them spoils the transaction."""
    if not connection.in_atomic_block:
        raise RuntimeError("create_call belongs into the transaction that knows what the call is for.")
    phone = str(to_phone)
    in_the_way = sql.calls_in_the_way(organization.pk, phone, purpose, subject_id, attempt)
    if not any(is_same for _, is_same in in_the_way) and (
        reason := rules.why_not_callable(phone, organization.allowed_countries)
    ):
        raise CallNotAllowed(reason)
    if in_the_way:
        return _same_attempt(in_the_way)
    holder = holder_of(purpose, subject_id, attempt)
    for _ in range(PROPOSALS):
        line = lines.propose(pool, purpose, holder, only=number.pk if number else None)
        if isinstance(line, NoLine):
            raise line
        now = clock.now()
        call = Call(
            organization_id=organization.pk,
            purpose=purpose,
            subject_id=subject_id,
            attempt=attempt,
            account_id=line.account_id,
            number_id=line.number_id,
            pool=pool,
            line_slot=line.line_slot,
            pool_slot=line.pool_slot,
            to_phone=phone,
            from_phone=line.phone,
            ring_timeout_s=ring_timeout_s,
            time_limit_s=time_limit_s,
            place_by=place_by,
            not_before=now,
            created_at=now,
            context=context or {},
        )
        event = event_of(call, "created", number=str(call.number_id), pool=pool.code)
        if rows.insert(call, event, or_nothing=True):
            return call
        # A unique constraint forbade it, and the transaction is none the worse: the attempt or the phone has a
        # call by now, or Redis proposed a line that is in use.
        if in_the_way := sql.calls_in_the_way(organization.pk, phone, purpose, subject_id, attempt):
            lines.give_back(holder)
            return _same_attempt(in_the_way)
        lines.repair(pool.pk)
    lines.give_back(holder)
    raise NoLine.because("lines_busy")


def _same_attempt(in_the_way: list[tuple[int, bool]]) -> Call:
    """The call of this very attempt. Raises PhoneBusy: what is in the way is another call to the phone."""
    for pk, is_same in in_the_way:
        if is_same:
            return rows.get(Call, pk)
    raise PhoneBusy


def calls_of(purpose: str, subject_id: int) -> QuerySet[Call]:
    """Every call for the subject, the newest first."""
    calls: QuerySet[Call] = Call.objects.filter(purpose=purpose, subject_id=subject_id).order_by("-id")
    return calls


def call_of(purpose: str, subject_id: int, attempt: int) -> Call | None:
    """The call of one attempt."""
    return calls_of(purpose, subject_id).filter(attempt=attempt).first()


def open_call_of(purpose: str, subject_id: int) -> Call | None:
    """The subject's call that has not ended."""
    return calls_of(purpose, subject_id).filter(ended_at=None).first()
