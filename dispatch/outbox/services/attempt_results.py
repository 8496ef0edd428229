"""Finish attempts in one transaction: record results, update the targets' health, claim the next messages."""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial

from django.conf import settings
from django.db import transaction

from dispatch.core import clock, fault_injection
from dispatch.core.db.prepared import arrays, booleans, floats, integers, texts, timestamps
from dispatch.outbox import metrics, sql
from dispatch.outbox.rules import responses as rules
from dispatch.outbox.rules.responses import Verdict
from dispatch.outbox.services import target_health
from dispatch.outbox.services.attempts import DeliveryAttempt, build_started, ticks
from dispatch.outbox.services.scheduling import (
    Claim,
    Ending,
    FreedPlaces,
    StartedRow,
    WaitingQueue,
    claim_next,
    end_messages,
    end_messages_later,
    reschedule_groups,
    try_lock_groups,
)


@dataclass(frozen=True)
class AttemptResult:
    """The result of one attempt. `answer` is the beginning of the response body.

    `is_last_try`: if it is late and its message is locked, it is recorded without its response.
    """

    call: DeliveryAttempt
    verdict: Verdict
    started_at: datetime
    ended_at: datetime
    elapsed_s: float
    status_code: int | None = None
    answer: str = ""
    is_last_try: bool = False


@dataclass(frozen=True)
class Finished:
    """Claims to publish and attempts to make after the commit, and the results that were not recorded.

    Those belong to locked groups, or are late and their messages are locked. They can be given again.
    """

    claims: Sequence[Claim] = ()
    begun: Sequence[DeliveryAttempt] = ()
    left: Sequence[AttemptResult] = ()


def finish_attempts(results: Sequence[AttemptResult], *, claim: bool = True, start: bool = False) -> Finished:
    """Record the results of the groups that no other transaction has locked, and claim their next messages.

    A result of an older epoch is recorded as late and changes nothing else, unless its message is locked. A
    message canceled in the meantime stays CANCELLED. `claim=False` leaves the next messages to the poller. With
    `start`, the next attempts are started in the same transaction, if nothing has to be waited for: at most one of
    its organization in the slot of each that ends.
    """
    asked, groups = ticks(), {result.call.group_id for result in results if result.call.is_ordered}
    with transaction.atomic(savepoint=False):
        held = groups - try_lock_groups(groups)
        left = [result for result in results if result.call.is_ordered and result.call.group_id in held]
        ready = [result for result in results if result not in left] if left else results
        if not ready:
            return Finished(left=left)
        claims, started, locked = _record_and_claim(ready, claim=claim, start=start)
        begun = build_started(started, asked)
        if begun:
            fault_injection.crash_point("outbox.begin.before_commit")
        fault_injection.crash_point("outbox.finish.before_commit")
        transaction.on_commit(partial(fault_injection.crash_point, "outbox.finish.committed"))
    return Finished(claims, begun, [*left, *locked])


def _record_and_claim(
    results: Sequence[AttemptResult], *, claim: bool, start: bool
) -> tuple[list[Claim], list[StartedRow], list[AttemptResult]]:
    """Do what `finish_attempts` does. An earlier statement of this transaction has locked the groups.

    Also return the late results whose messages are locked: they are not recorded.
    """
    now = clock.now()
    groups = {result.call.group_id for result in results if result.call.is_ordered}
    # One batch may hold an older and a newer epoch of the same message: each is a separate row, and only one
    # of them matches.
    distinct = {(result.call.id, result.call.epoch): result for result in results}
    endings = [_ending(result, now) for result in distinct.values()]
    own_targets = {result.call.target_id for result in results}
    pools = sorted({result.call.pool_id for result in results})
    organizations = {result.call.organization_id for result in results}
    if claim and not target_health.is_concerned(results):  # nearly all results take this path: three round trips
        with sql.pipeline(one_plan=True):
            ended = end_messages_later(endings, ["PROCESSING", "CANCELLED"], now)
            waiting = WaitingQueue(
                now, own=groups, own_targets=own_targets, pools=pools, organizations=organizations
            )
            in_time = _in_time(distinct, ended())
            on_time = [result for result in results if id(result) in in_time]
            locked = _record(results, in_time)
            target_health.clear_failures(on_time, now)
            if start:
                return *waiting.claim_and_start(_places(on_time)), locked
            return waiting.claim()[0], [], locked
    in_time = _in_time(distinct, end_messages(endings, ["PROCESSING", "CANCELLED"], now))
    locked = _record(results, in_time)
    on_time = [result for result in results if id(result) in in_time]
    target_health.update_circuits(on_time, now)
    target_health.clear_failures(on_time, now)
    if claim:
        claims, _ = claim_next(now, own=groups, own_targets=own_targets, pools=pools, organizations=organizations)
        return claims, [], locked
    reschedule_groups(groups, now)
    return [], [], locked


def _places(ended: Sequence[AttemptResult]) -> FreedPlaces:
    """Return the slots and the shares of these attempts."""
    slots: dict[int, list[int]] = defaultdict(list)
    for result in ended:
        slots[result.call.pool_id].append(result.call.slot)
    for numbers in slots.values():
        numbers.sort(reverse=True)
    return FreedPlaces(slots, Counter(result.call.organization_id for result in ended))


def _in_time(distinct: Mapping[tuple[int, int], AttemptResult], ended: Mapping[int, str]) -> set[int]:
    """Return the id() of the results that ended their message's flight.

    Of two epochs of one message, only the newer one can.
    """
    newest: dict[int, int] = {}
    for message_id, epoch in distinct:
        newest[message_id] = max(epoch, newest.get(message_id, 0))
    return {
        id(result)
        for (message_id, epoch), result in distinct.items()
        if message_id in ended and epoch == newest[message_id]
    }


def _ending(result: AttemptResult, now: datetime) -> Ending:
    call, verdict = result.call, result.verdict
    spent = call.attempts + 1
    if verdict.outcome == rules.DELIVERED:
        return Ending(call.id, call.epoch, "COMPLETED", now, 1, verb="completed")
    if verdict.outcome == rules.DEFERRED:
        due_at = now + timedelta(seconds=verdict.delay_s)
        return Ending(
            call.id,
            call.epoch,
            "PENDING",
            due_at,
            waiting_for=verdict.error_class,
            verb="deferred",
            is_deferral=verdict.is_of_target or verdict.error_class == rules.TOKEN_PENDING,
        )
    delay = None
    if verdict.outcome == rules.FAILED:
        schedule = call.endpoint.retry_schedule_s if call.endpoint else settings.OUTBOX_RETRY_SCHEDULE_S
        jitter = call.endpoint.retry_jitter if call.endpoint else 0.2
        delay = rules.retry_delay_s(schedule, spent, jitter, random.random())
    if delay is None:
        return Ending(call.id, call.epoch, "ERROR", now, 1, error=verdict.error, verb="failed")
    due_at = now + timedelta(seconds=max(delay, verdict.delay_s))
    return Ending(
        call.id, call.epoch, "PENDING", due_at, 1, error=verdict.error, waiting_for="retry", verb="retrying"
    )


def _record(results: Sequence[AttemptResult], in_time: set[int]) -> list[AttemptResult]:
    """Record the results, except late ones whose messages are locked; return these.

    An erasure may be what has locked them, so their responses must not be stored yet.
    """
    late = {r.call.id for r in results if id(r) not in in_time}
    locked: list[AttemptResult] = []
    hidden: set[int] = set()
    if late:
        storable = _lock_late(late)
        hidden = {message_id for message_id in late if not storable.get(message_id)}
        recordable = storable.keys() | _lock_late_keys(
            {r.call.id for r in results if r.is_last_try and r.call.id in late - storable.keys()}
        )
        locked = [r for r in results if id(r) not in in_time and r.call.id not in recordable]
        results = [r for r in results if r not in locked]
        if not results:
            return locked
    values = [
        (
            r.call.organization_id, r.call.id, r.call.number, r.call.epoch, r.call.url, r.started_at, r.ended_at,
            r.elapsed_s, r.verdict.outcome, r.status_code, "" if r.call.id in hidden else r.answer,
            r.verdict.error_class, "" if r.call.id in hidden else r.verdict.error[:300],
            r.verdict.spends and id(r) in in_time, id(r) not in in_time,
        )
        for r in results
    ]  # fmt: skip
    given = arrays(
        values, organizations=integers, ids=integers, numbers=integers, epochs=integers, urls=texts,
        starts=timestamps, ends=timestamps, elapsed=floats, outcomes=texts, codes=integers, answers=texts,
        classes=texts, errors=texts, spents=booleans, lates=booleans,
    )  # fmt: skip
    added = sql.fetch_later(sql.ADD_ATTEMPTS, given)
    if len(in_time) < len(results):
        metrics.late.inc(added()[0][0])
    return locked


def _lock_late(message_ids: Iterable[int]) -> dict[int, bool]:
    """Lock these messages, except those that others have locked; return whether their responses may be stored.

    Responses of erased messages may not.
    """
    return dict(sql.fetch_all(sql.LOCK_LATE, {"ids": integers(sorted(message_ids))}))


def _lock_late_keys(message_ids: Collection[int]) -> set[int]:
    """Prevent the deletion of these messages, and return them except those that others delete or lock entirely.

    Recording an attempt of the others would wait for these transactions.
    """
    if not message_ids:
        return set()
    return {row[0] for row in sql.fetch_all(sql.LOCK_LATE_KEYS, {"ids": integers(sorted(message_ids))})}
