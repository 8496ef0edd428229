"""Calls by the hundred: written, already claimed for asking, in the transaction of what they are for; asked for by
whoever wrote them; their outcomes written together.

Such a call is born `requesting`: its commit is the claim, so that nobody else ever asks for it. What told of the
transaction that made it, and of one that ended it at once, is its purpose's Event, which names the call; all
further changes have Events of their own."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from datetime import datetime
from typing import Any, NamedTuple

import structlog

from dispatch.capacity import batches as capacity
from dispatch.capacity import lines
from dispatch.core import clock, events
from dispatch.core.events import EventLine
from dispatch.core.statements import integers, rows, texts
from dispatch.telephony import addresses, rules, sql
from dispatch.telephony.models import Call, holder_of
from dispatch.telephony.providers.base import Order, Outcome, RateLimited, Rejected, Submitted
from dispatch.telephony.services import placing
from dispatch.telephony.services.moving import PROVIDER, tell

log = structlog.get_logger(__name__)

NOT_NOW = "the provider could not take it now"


class NewCall(NamedTuple):
    """A call to be made now. Its line is held by `holder_of(purpose, subject_id, attempt)`; `context` as for
    `create_call`."""

    organization_id: int
    subject_id: int
    attempt: int
    to_phone: str
    account_id: int
    number_id: int
    from_phone: str
    line_slot: int
    pool_id: int
    pool_slot: int
    ring_timeout_s: int
    time_limit_s: int
    detect_machine: bool
    context: Mapping[str, Any]
    turn_ms: int = 0  # from now until the provider may be asked


def create_many(purpose: str, calls: Sequence[NewCall], *, now: datetime, send_by: datetime) -> dict[int, int]:
    """Writes them as `requesting`: ids by subject. Missing is whoever met a unique index: an open call to the same
    phone, a line that is in use after all, an attempt that was made before. Must run in the caller's transaction,
    after whose commit the caller asks for them, once, before `send_by`."""
    # In one order for everybody: whoever waits for another's phone is not waited for.
    ordered = sorted(calls, key=lambda call: (call.organization_id, call.to_phone))
    given = {
        "organizations": integers(call.organization_id for call in ordered),
        "subjects": integers(call.subject_id for call in ordered),
        "attempts": integers(call.attempt for call in ordered),
        "phones": texts(call.to_phone for call in ordered),
        "accounts": integers(call.account_id for call in ordered),
        "numbers": integers(call.number_id for call in ordered),
        "from_phones": texts(call.from_phone for call in ordered),
        "line_slots": integers(call.line_slot for call in ordered),
        "pools": integers(call.pool_id for call in ordered),
        "pool_slots": integers(call.pool_slot for call in ordered),
        "rings": integers(call.ring_timeout_s for call in ordered),
        "limits": integers(call.time_limit_s for call in ordered),
        "detects": integers(int(call.detect_machine) for call in ordered),
        "contexts": texts(_texts_of(ordered)),
        "turns": integers(call.turn_ms for call in ordered),
    }
    found = rows(sql.CREATE_MANY, {**given, "purpose": purpose, "now": now, "send_by": send_by})
    return {subject_id: call_id for call_id, subject_id in found}


def _texts_of(calls: Sequence[NewCall]) -> list[str]:
    """Their contexts as JSON; calls of one campaign share theirs."""
    known: dict[int, str] = {}
    return [known.get(id(c.context)) or known.setdefault(id(c.context), json.dumps(c.context)) for c in calls]


def busy_phones(phones: Collection[tuple[int, str]]) -> set[tuple[int, str]]:
    """Those of these (organization, phone) to which a call is open."""
    numbers = {phone for _, phone in phones}
    found = Call.objects.filter(to_phone__in=numbers, ended_at=None).values_list("organization_id", "to_phone")
    return {(organization_id, str(phone)) for organization_id, phone in found} & set(phones)


def order(call: NewCall, call_id: int, provider: str, leave_within_s: float) -> Order:
    """What the provider is asked for."""
    return Order(
        to=call.to_phone,
        from_=call.from_phone,
        voice_url=addresses.webhook_of(provider, call_id, "voice"),
        status_url=addresses.webhook_of(provider, call_id, "status"),
        ring_timeout_s=call.ring_timeout_s,
        time_limit_s=call.time_limit_s,
        leave_within_s=leave_within_s,
        detect_machine=call.detect_machine,
    )


class Answered(NamedTuple):
    """What came of asking for a call."""

    call_id: int
    call: NewCall
    outcome: Outcome


class Ended(NamedTuple):
    """A call that is over already: refused, sent back, or ended by a provider that pretends."""

    call_id: int
    call: NewCall
    status: str
    outcome: Outcome


def settle_many(purpose: str, answers: Sequence[Answered]) -> tuple[list[Ended], list[Answered]]:
    """Writes the outcomes: (calls that ended by it, of which the caller tells; those of which somebody else knows
    better meanwhile, for `settle_one` after the commit). Must run in the caller's transaction.

    A call that the provider sent back (429: certainly not processed) ends as not placed: its subject goes through
    its gates again."""
    now = clock.now()
    news = [_news(answer) for answer in answers]
    found = rows(
        sql.SETTLE_MANY,
        {
            "ids": integers(answer.call_id for answer in answers),
            "statuses": texts(status for status, *_ in news),
            "sids": texts(sid for _, sid, *_ in news),
            "codes": texts(code for *_, code, _ in news),
            "messages": texts(message for *_, message in news),
            "ends": list(rules.ENDS),
            "now": now,
        },
    )
    moved = {call_id for (call_id,) in found}
    ended, told, others = [], [], []
    for answer, (status, _, code, message) in zip(answers, news, strict=True):
        if answer.call_id not in moved:
            others.append(answer)
        elif status in rules.ENDS:
            ended.append(Ended(answer.call_id, answer.call, status, answer.outcome))
        else:
            said = {"code": code, "message": message}
            told.append(
                EventLine(
                    answer.call.organization_id,
                    f"call.{status}",
                    answer.call_id,
                    {
                        **answer.call.context,
                        "purpose": purpose,
                        "subject_id": answer.call.subject_id,
                        "attempt": answer.call.attempt,
                        **{name: value for name, value in said.items() if value},
                    },
                )
            )
    events.append_many(told, actor=PROVIDER)
    lines.release(*(holder_of(purpose, one.call.subject_id, one.call.attempt) for one in ended))
    return ended, others


def settle_one(answer: Answered) -> Call:
    """Writes one outcome as the placer does, and tells the purpose. Outside of any transaction."""
    call = placing.write(answer.call_id, answer.outcome)
    tell(call)
    return call


def _news(answer: Answered) -> tuple[str, str | None, str, str]:
    """(status, SID, error code, error message)."""
    outcome = answer.outcome
    if isinstance(outcome, Submitted):
        return outcome.status, outcome.sid, "", ""
    if isinstance(outcome, Rejected):
        return "rejected", None, outcome.code[:16], outcome.message[:255]
    if isinstance(outcome, RateLimited):
        return "not_placed", None, "", (outcome.reason or NOT_NOW)[:255]
    return "unknown", None, "", outcome.reason[:255]


def heed(answers: Sequence[Answered]) -> None:
    """Leaves accounts alone whose provider asked for it."""
    for account_id, seconds in {
        answer.call.account_id: answer.outcome.retry_after_s
        for answer in answers
        if isinstance(answer.outcome, RateLimited)
    }.items():
        capacity.hold_off(account_id, max(seconds, 1.0))
