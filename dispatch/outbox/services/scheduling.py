"""Select and claim the next deliverable messages: in the poller, and in the transaction that ends a message."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import structlog
from django.conf import settings
from django.db import transaction

from dispatch.core import clock
from dispatch.core.db.prepared import arrays, booleans, fetch_in_order, index_order, integers, texts, timestamps
from dispatch.outbox import sql
from dispatch.outbox.pointer import group_hash
from dispatch.outbox.rules.admission import AdmissionState, Circuit, Pool, TargetState
from dispatch.outbox.services.target_rotation import TargetRotation

# The waiting targets of an organization that a poll reads, and that the end of an attempt reads for the next ones.
polled, refilled = TargetRotation(1000), TargetRotation(200)
# Of how many waiting targets of each organization the age of the oldest message is read.
MAX_TARGETS_OF_AGE = 5000


@dataclass(frozen=True)
class Claim:
    """A message that this transaction made QUEUED. Publish its pointer after the commit."""

    id: int
    epoch: int
    group_id: int
    group_hash: str
    pool_code: str
    queued_at: datetime
    is_ordered: bool


# A row of `sql.CLAIM_AND_START` whose message was started.
StartedRow = tuple[Any, ...]


@dataclass
class FreedPlaces:
    """What attempts that end in this transaction leave to the next: slots by pool, shares by organization.

    Nobody else can take these slots before the transaction ends, so the gates of their pools need no lock.
    """

    slots: Mapping[int, list[int]]
    shares: Counter[int]

    def take(self, target: TargetState) -> int | None:
        """Take a slot and a share for a message of this target, or return None if there is none.

        Rates and open circuits need more than a slot: `attempts.start_attempts` starts such messages.
        """
        pool, organization_id = target.pool, target.organization_id
        slots = self.slots.get(pool.id)
        if target.circuit.open_until is not None or pool.rate_per_minute or not self.shares[organization_id]:
            return None
        if not slots or slots[-1] > pool.concurrency:
            return None
        self.shares[organization_id] -= 1
        return slots.pop()


@dataclass(frozen=True)
class _Head:
    group_id: int
    wake_at: datetime | None
    blocked_by: int | None
    blocked_since: datetime | None
    flying: int | None
    message_id: int | None
    due_at: datetime | None
    target_id: int | None
    held_by: int | None
    held_since: datetime | None


def lock_groups(group_ids: Iterable[int]) -> None:
    """Lock the groups, ordered by id. Call it before changing ordered messages."""
    if ids := sorted(set(group_ids)):
        sql.execute(sql.LOCK_GROUPS, {"ids": integers(ids)})


def try_lock_groups(group_ids: Iterable[int]) -> set[int]:
    """Lock the groups that no other transaction has locked, without waiting; return their ids."""
    ids = sorted(set(group_ids))
    return {row[0] for row in sql.fetch_all(sql.TRY_LOCK_GROUPS, {"ids": integers(ids)})} if ids else set()


def reschedule_groups(group_ids: Iterable[int], now: datetime) -> None:
    """Queue, defer or block the groups without claiming. An earlier statement must have locked them."""
    if ids := sorted(set(group_ids)):
        _save(_heads(ids, now), set(), now)


def claim_next(
    now: datetime,
    *,
    own: Iterable[int] = (),
    own_targets: Iterable[int] = (),
    pools: Sequence[int] | None = None,
    organizations: Iterable[int] = (),
    limit: int | None = None,
) -> tuple[list[Claim], AdmissionState]:
    """Claim the next messages: `WaitingQueue(…).claim()`."""
    with sql.pipeline(one_plan=True):
        waiting = WaitingQueue(now, own=own, own_targets=own_targets, pools=pools, organizations=organizations)
        return waiting.claim(limit)


class WaitingQueue:
    """The waiting groups and messages, as this transaction sees them.

    Use it inside `sql.pipeline()`: queries are sent before their results are awaited. `own` are groups that this
    transaction has locked and of which it ended a message: they join the back of the queue and are rescheduled in
    any case. `pools` limits the claim to the targets of these pools, which belong to `organizations` (None: all).
    """

    def __init__(
        self,
        now: datetime,
        *,
        own: Iterable[int] = (),
        own_targets: Iterable[int] = (),
        pools: Sequence[int] | None = None,
        organizations: Iterable[int] = (),
    ) -> None:
        self._now, self._own = now, sorted(set(own))
        self._organizations = None if pools is None else set(organizations)
        self._rotation = polled if pools is None else refilled
        turns = self._rotation.parameters(self._organizations)
        self._targets = _request_targets(now, pools, own_targets, turns)
        self._heads = sql.fetch_later(sql.HEADS, sql.heads_of(self._own, now)) if self._own else None

    def claim(self, limit: int | None = None) -> tuple[list[Claim], AdmissionState]:
        """Claim at most `limit` messages (default: a batch), longest waiting first.

        Pools, rates, circuits and endpoints must allow each. Filter before LIMIT, so that blocked messages do not
        starve ready ones.
        """
        claims, _, admission = self._take(limit or settings.OUTBOX_BATCH_SIZE)
        return claims, admission

    def claim_and_start(self, places: FreedPlaces) -> tuple[list[Claim], list[StartedRow]]:
        """Claim a batch of messages as `claim` does, and start those that get one of the places.

        These become PROCESSING. Return the claims of the others, and the rows of those started.
        """
        claims, started, _ = self._take(settings.OUTBOX_BATCH_SIZE, places)
        return claims, started

    def _take(
        self, limit: int, places: FreedPlaces | None = None
    ) -> tuple[list[Claim], list[StartedRow], AdmissionState]:
        now = self._now
        rows = self._targets()
        self._rotation.advance(self._organizations, [(row[17], row[0]) for row in rows if row[18]])
        admission = AdmissionState(map(_target_state, rows), now)
        open_targets = [target for target in admission.targets.values() if admission.free(target.target_id) > 0]
        groups = _waiting_groups(open_targets, admission, limit, now)
        immediates = _waiting_immediates(open_targets, admission, limit, now)
        heads = [_Head(*row) for row in self._heads()] if self._heads else []
        _add_missing_targets(admission, heads, now)
        own = set(self._own)
        if others := [group_id for group_id in groups if group_id not in own]:
            heads += _heads(others, now)
        chosen, claimed_groups = _choose(heads, immediates, admission, limit, now)
        targets = [admission.targets[target_id] for _, target_id in chosen]
        pools = [(message_id, target.pool.id) for (message_id, _), target in zip(chosen, targets, strict=True)]
        if places is None:
            answer = _request_claims(pools, now)
        else:
            slots = map(places.take, targets)
            answer = _request_starts([(*pair, slot) for pair, slot in zip(pools, slots, strict=True)], now)
        _save(heads, claimed_groups, now)
        claims, started = answer()
        left = claimed_groups - {claim.group_id for claim in claims} - {row[4] for row in started}
        if left:
            sql.execute(sql.KEEP_WAITING, {"ids": sorted(left), "now": now})
        return claims, started, admission


def _choose(
    heads: list[_Head],
    immediates: list[tuple[int, datetime, int]],
    admission: AdmissionState,
    limit: int,
    now: datetime,
) -> tuple[list[tuple[int, int]], set[int]]:
    """Choose the messages to claim, as (message id, target id); also return their groups.

    The longest waiting of each organization comes first, then the second of each, and so on: a batch that cannot
    hold all is divided equally among organizations.
    """
    waiting: list[tuple[datetime, int, int, int, int | None]] = [
        (head.wake_at or now, position, head.message_id, head.target_id, head.group_id)
        for position, head in enumerate(heads)
        if head.message_id and head.target_id and head.due_at and head.due_at <= now
    ]
    first = len(waiting)
    waiting += [
        (due, first + n, message_id, target_id, None) for n, (message_id, due, target_id) in enumerate(immediates)
    ]
    chosen: list[tuple[int, int]] = []
    groups: set[int] = set()
    turns: Counter[int] = Counter()
    in_turn = []
    for entry in sorted(waiting, key=lambda entry: entry[:2]):
        target = admission.targets.get(entry[3])
        organization_id = target.organization_id if target else 0
        in_turn.append((turns[organization_id], entry))
        turns[organization_id] += 1
    for _, (_, _, message_id, target_id, group_id) in sorted(in_turn, key=lambda pair: (pair[0], pair[1][:2])):
        if len(chosen) >= limit:
            break
        if admission.take(target_id):
            chosen.append((message_id, target_id))
            if group_id is not None:
                groups.add(group_id)
    return chosen, groups


def next_wake(now: datetime) -> datetime | None:
    """Return when the next scheduled message is due, among the targets that a poll reads now."""
    return _fetch_time(sql.NEXT_WAKE, {"now": now, **polled.parameters(None)})


def oldest_due(now: datetime, organization_id: int | None = None) -> datetime | None:
    """Return when the most overdue group or unordered message that nothing holds on purpose was due, or None.

    With `organization_id`, only messages of that organization count; otherwise those to its first
    MAX_TARGETS_OF_AGE waiting targets of each.
    """
    if organization_id is None:
        return _fetch_time(sql.OLDEST_DUE, {"now": now, **TargetRotation(MAX_TARGETS_OF_AGE).parameters(None)})
    return _fetch_time(sql.OLDEST_DUE_OF, {"now": now, "organization": organization_id})


def _fetch_time(statement: str, given: Mapping[str, Any]) -> datetime | None:
    """Return the time in the only row of a statement that skips through indexes."""
    row: tuple[datetime | None] = fetch_in_order(statement, {"targets": [], **given})[0]
    return row[0]


def _request_targets(
    now: datetime, pools: Sequence[int] | None, targets: Iterable[int], turns: Mapping[str, Any]
) -> Callable[[], list[tuple[Any, ...]]]:
    given = {"now": now, "pools": list(pools) if pools is not None else None, "targets": list(targets), **turns}
    with index_order():
        return sql.fetch_later(sql.TARGET_STATES, given)


def _target_state(row: tuple[Any, ...]) -> TargetState:
    return TargetState(
        target_id=row[0], is_held=row[1], has_groups=row[2], has_immediates=row[3], circuit=Circuit(*row[4:9]),
        pool=Pool(*row[9:17]), organization_id=row[17],
    )  # fmt: skip


def _add_missing_targets(admission: AdmissionState, own: Sequence[_Head], now: datetime) -> None:
    """Add the targets of next messages that are missing, since the group's previous message had another target."""
    missing = {head.target_id for head in own if head.target_id and head.target_id not in admission.targets}
    if missing:
        pools = [row[0] for row in sql.fetch_all(sql.POOLS_OF, {"targets": list(missing)})]
        states = map(_target_state, _request_targets(now, pools, missing, refilled.parameters([]))())
        admission.add(state for state in states if state.target_id in missing)


def _waiting_groups(targets: list[TargetState], admission: AdmissionState, limit: int, now: datetime) -> list[int]:
    wanted = _shares([target for target in targets if target.has_groups], admission, limit)
    return (
        [row[0] for row in sql.fetch_all(sql.WAITING_GROUPS, {**wanted, "now": now})] if wanted["targets"] else []
    )


def _waiting_immediates(
    targets: list[TargetState], admission: AdmissionState, limit: int, now: datetime
) -> list[tuple[int, datetime, int]]:
    wanted = _shares([target for target in targets if target.has_immediates], admission, limit)
    if not wanted["targets"]:
        return []
    return [(row[0], row[1], row[2]) for row in sql.fetch_all(sql.WAITING_IMMEDIATES, {**wanted, "now": now})]


def _shares(targets: list[TargetState], admission: AdmissionState, limit: int) -> dict[str, list[int]]:
    """Return how many of each target to read: its headroom, at most its share of its organization's share."""
    per_organization = Counter(target.organization_id for target in targets)
    share = limit / max(1, len(per_organization))
    return {
        "organizations": [target.organization_id for target in targets],
        "targets": [target.target_id for target in targets],
        "headrooms": [
            min(
                admission.free(target.target_id),
                max(1, math.ceil(share / per_organization[target.organization_id])),
            )
            for target in targets
        ],
    }


def _heads(group_ids: Sequence[int], now: datetime) -> list[_Head]:
    return [_Head(*row) for row in sql.fetch_all(sql.HEADS, sql.heads_of(group_ids, now))]


def _request_claims(
    chosen: list[tuple[int, int]], now: datetime
) -> Callable[[], tuple[list[Claim], list[StartedRow]]]:
    if not chosen:
        return lambda: ([], [])
    place = {message_id: number for number, (message_id, _) in enumerate(chosen)}
    fetch_rows = sql.fetch_later(sql.CLAIM, {**arrays(chosen, ids=integers, pools=integers), "now": now})
    return lambda: ([claim_of(row, now) for row in sorted(fetch_rows(), key=lambda row: place[row[0]])], [])


def _request_starts(
    chosen: list[tuple[int, int, int | None]], now: datetime
) -> Callable[[], tuple[list[Claim], list[StartedRow]]]:
    """Claim the messages, (id, pool id, slot), and start those that have a slot."""
    if not chosen:
        return lambda: ([], [])
    place = {message_id: number for number, (message_id, _, _) in enumerate(chosen)}
    given = arrays(chosen, ids=integers, pools=integers, slots=integers)
    fetch_rows = sql.fetch_later(sql.CLAIM_AND_START, {**given, "now": now, "lease": settings.OUTBOX_LEASE_S})

    def answer() -> tuple[list[Claim], list[StartedRow]]:
        claims, started = [], []
        for row in sorted(fetch_rows(), key=lambda row: place[row[0]]):
            if row[-1] is not None:
                started.append(row)
            else:  # id, epoch, mode, group id, pool code, group key
                claims.append(claim_of((row[0], row[1], row[5], row[4], row[-3], row[-2]), now))
        return claims, started

    return answer


def claim_of(row: tuple[Any, ...], queued_at: datetime) -> Claim:
    """Build a Claim from (id, epoch, mode, group id, pool code, group key)."""
    message_id, epoch, mode, group_id, pool_code, key = row[:6]
    is_ordered = mode != "IMMEDIATE"
    # Unordered messages must not wait for each other on the queue either.
    hashed = key if is_ordered else group_hash("immediate", message_id)
    return Claim(message_id, epoch, group_id, hashed, pool_code, queued_at, is_ordered)


def _save(heads: list[_Head], claimed: set[int], now: datetime) -> None:
    changed = []
    for head in heads:
        wake_at = _wake_at(head, claimed, now)
        since = None
        if head.held_by is not None:
            since = head.blocked_since if head.blocked_by == head.held_by else head.held_since or now
        if (wake_at, head.held_by, since) != (head.wake_at, head.blocked_by, head.blocked_since) or wake_at:
            changed.append((head.group_id, wake_at, head.target_id, head.held_by, since))
    if changed:
        changed.sort(key=lambda row: row[0])
        given = arrays(
            changed, ids=integers, wakes=timestamps, targets=integers, blockers=integers, sinces=timestamps
        )
        sql.execute(sql.SAVE_GROUPS, given)


def _wake_at(head: _Head, claimed: set[int], now: datetime) -> datetime | None:
    if head.flying or head.message_id is None or head.due_at is None or head.group_id in claimed:
        return None
    if head.due_at > now:
        return head.due_at
    # Already queued: it keeps its position.
    return head.wake_at if head.wake_at and head.wake_at <= now else now


log = structlog.get_logger(__name__)


@dataclass(frozen=True)
class RequeuedMessage:
    """One QUEUED message of one epoch to requeue. `due_at` None: at once, in turn."""

    id: int
    epoch: int
    group_id: int
    mode: str
    status: str = "PENDING"
    due_at: datetime | None = None
    waiting_for: str = ""
    verb: str = "deferred"


def requeue(returns: Sequence[RequeuedMessage]) -> list[Claim]:
    """Requeue the messages that are still QUEUED in the given epoch; return the claims to publish.

    These replace expired messages. Messages of a locked group stay QUEUED: their pointers are published again
    later.
    """
    if not returns:
        return []
    now = clock.now()
    claims: list[Claim] = []
    with transaction.atomic(savepoint=False):
        ordered = {item.group_id for item in returns if item.mode != "IMMEDIATE"}
        held = ordered - try_lock_groups(ordered)
        if held:
            returns = [item for item in returns if item.mode == "IMMEDIATE" or item.group_id not in held]
            ordered -= held
            log.warning("groups_locked", groups=len(held))
        end_messages([_ending(item, now) for item in returns], ["QUEUED"], now)
        if any(item.status == "EXPIRED" for item in returns):
            claims, _ = claim_next(now, own=ordered, pools=[])
        else:
            reschedule_groups(ordered, now)
    return claims


@dataclass(frozen=True)
class Ending:
    """The end of one message's flight: a row for `sql.END`."""

    id: int
    epoch: int
    status: str
    due_at: datetime
    spent: int = 0
    lapsed: int = 0
    error: str = ""
    waiting_for: str = ""
    verb: str = ""
    is_deferral: bool = False


def end_messages_later(
    endings: Sequence[Ending], from_statuses: list[str], now: datetime
) -> Callable[[], dict[int, str]]:
    """Send the request of `end_messages`; the returned function waits for the result."""
    values = [
        (e.id, e.epoch, e.status, e.due_at, e.spent, e.lapsed, e.error[:300], e.waiting_for[:40], e.verb,
         e.is_deferral)
        for e in sorted(endings, key=lambda e: (e.id, e.epoch))  # locked by id, as by user actions
    ]  # fmt: skip
    given = arrays(
        values, ids=integers, epochs=integers, statuses=texts, dues=timestamps, spents=integers, lapses=integers,
        errors=texts, waits=texts, verbs=texts, deferrals=booleans,
    )  # fmt: skip
    answer = sql.fetch_later(sql.END, {**given, "from": from_statuses, "error": "ERROR", "now": now})
    return lambda: dict(answer())


def end_messages(endings: Sequence[Ending], from_statuses: list[str], now: datetime) -> dict[int, str]:
    """End the flight of messages by compare-and-set; return message id → new status for those that changed.

    The caller has locked the groups of the ordered ones and reschedules them afterwards.
    """
    return end_messages_later(endings, from_statuses, now)()


def _ending(item: RequeuedMessage, now: datetime) -> Ending:
    verb = "expired" if item.status == "EXPIRED" else item.verb
    return Ending(item.id, item.epoch, item.status, item.due_at or now, waiting_for=item.waiting_for, verb=verb)
