"""Who goes next: the poller's claim, and the one in the transaction that ends a message."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from django.conf import settings

from dispatch.outbox import sql
from dispatch.outbox.pointer import group_hash
from dispatch.outbox.rules.rooms import Circuit, Lane, Pool, Rooms


@dataclass(frozen=True)
class Claim:
    """A message that this transaction made QUEUED; after the commit its pointer is to be published."""

    id: int
    epoch: int
    group_id: int
    group_hash: str
    pool_code: str
    queued_at: datetime
    is_ordered: bool


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


def lock_groups(group_ids: Iterable[int]) -> None:
    """Takes the groups' locks, in the order of their ids. Call it before changing messages that are in order."""
    if ids := sorted(set(group_ids)):
        sql.do(sql.LOCK_GROUPS, {"ids": ids})


def settle(group_ids: Iterable[int], now: datetime) -> None:
    """Puts the groups (locked by an earlier statement) in line, to sleep or under their block, claiming
    nothing."""
    if ids := sorted(set(group_ids)):
        _save(_heads(ids, now), set(), now)


def advance(
    now: datetime,
    *,
    own: Iterable[int] = (),
    own_targets: Iterable[int] = (),
    pools: Sequence[int] | None = None,
) -> tuple[list[Claim], Rooms]:
    """`Line(…).claim()`."""
    with sql.pipelined(one_plan=True):
        return Line(now, own=own, own_targets=own_targets, pools=pools).claim()


class Line:
    """Everybody who waits, as this transaction sees it; inside `sql.pipelined()`, for it asks before it waits.

    `own` are groups that this transaction has locked and ended a message of: they join the back of the line and
    are settled whatever happens. `pools` limits it to the lines of these pools (None: all)."""

    def __init__(
        self,
        now: datetime,
        *,
        own: Iterable[int] = (),
        own_targets: Iterable[int] = (),
        pools: Sequence[int] | None = None,
    ) -> None:
        self._now, self._own = now, sorted(set(own))
        self._lanes = _ask_lanes(now, pools, own_targets)
        self._heads = sql.ask(sql.HEADS, sql.heads_of(self._own, now)) if self._own else None

    def claim(self) -> tuple[list[Claim], Rooms]:
        """Claims what has waited longest, at most a batch, while its pool, rate, circuit and endpoint let it;
        filters before it limits, so that nobody stands behind those who cannot go."""
        now, limit = self._now, settings.OUTBOX_BATCH_SIZE
        rooms = Rooms(map(_lane, self._lanes()), now)
        open_lanes = [lane for lane in rooms.lanes.values() if rooms.free(lane.target_id) > 0]
        groups = _group_line(open_lanes, rooms, limit, now)
        immediates = _immediate_line(open_lanes, rooms, limit, now)
        heads = [_Head(*row) for row in self._heads()] if self._heads else []
        _add_missing_lanes(rooms, heads, now)
        mine = set(self._own)
        if others := [group_id for group_id in groups if group_id not in mine]:
            heads += _heads(others, now)
        chosen, claimed_groups = _choose(heads, immediates, rooms, limit, now)
        claims = _ask_claims(chosen, now)
        _save(heads, claimed_groups, now)
        return claims(), rooms


def _choose(
    heads: list[_Head], immediates: list[tuple[int, datetime, int]], rooms: Rooms, limit: int, now: datetime
) -> tuple[list[tuple[int, int]], set[int]]:
    """(message id, pool id) of those who go, the longest waiting first, and the groups among them."""
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
    for _, _, message_id, target_id, group_id in sorted(waiting, key=lambda entry: entry[:2]):
        if len(chosen) >= limit:
            break
        if rooms.take(target_id):
            chosen.append((message_id, rooms.lanes[target_id].pool.id))
            if group_id is not None:
                groups.add(group_id)
    return chosen, groups


def next_wake(now: datetime) -> datetime | None:
    """When the next message that waits for its time is due."""
    return sql.rows(sql.NEXT_WAKE, {"now": now})[0][0]


def _ask_lanes(
    now: datetime, pools: Sequence[int] | None, targets: Iterable[int]
) -> Callable[[], list[tuple[Any, ...]]]:
    given = {"now": now, "pools": list(pools) if pools is not None else None, "targets": list(targets)}
    return sql.ask(sql.LANES, given)


def _lane(row: tuple[Any, ...]) -> Lane:
    return Lane(
        target_id=row[0], is_held=row[1], has_groups=row[2], has_immediates=row[3], circuit=Circuit(*row[4:9]),
        pool=Pool(*row[9:16]),
    )  # fmt: skip


def _add_missing_lanes(rooms: Rooms, own: Sequence[_Head], now: datetime) -> None:
    """A group whose next message goes to another target than its last one brings that one's lane."""
    missing = {head.target_id for head in own if head.target_id and head.target_id not in rooms.lanes}
    if missing:
        pools = [row[0] for row in sql.rows(sql.POOLS_OF, {"targets": list(missing)})]
        found = map(_lane, _ask_lanes(now, pools, missing)())
        rooms.add(lane for lane in found if lane.target_id in missing)


def _group_line(lanes: list[Lane], rooms: Rooms, limit: int, now: datetime) -> list[int]:
    wanted = _shares([lane for lane in lanes if lane.has_groups], rooms, limit)
    return [row[0] for row in sql.rows(sql.GROUP_LINE, {**wanted, "now": now})] if wanted["targets"] else []


def _immediate_line(lanes: list[Lane], rooms: Rooms, limit: int, now: datetime) -> list[tuple[int, datetime, int]]:
    wanted = _shares([lane for lane in lanes if lane.has_immediates], rooms, limit)
    if not wanted["targets"]:
        return []
    return [(row[0], row[1], row[2]) for row in sql.rows(sql.IMMEDIATE_LINE, {**wanted, "now": now})]


def _shares(lanes: list[Lane], rooms: Rooms, limit: int) -> dict[str, list[int]]:
    """How many of each lane to look at: its room, and when there are many lanes, its share of the batch."""
    share = max(1, -(-limit // max(1, len(lanes))))
    return {
        "targets": [lane.target_id for lane in lanes],
        "rooms": [min(rooms.free(lane.target_id), share) for lane in lanes],
    }


def _heads(group_ids: Sequence[int], now: datetime) -> list[_Head]:
    return [_Head(*row) for row in sql.rows(sql.HEADS, sql.heads_of(group_ids, now))]


def _ask_claims(chosen: list[tuple[int, int]], now: datetime) -> Callable[[], list[Claim]]:
    if not chosen:
        return list
    ids, pools = sql.columns(chosen, 2)
    place = {message_id: number for number, message_id in enumerate(ids)}
    found = sql.ask(sql.CLAIM, {"ids": ids, "pools": pools, "now": now})
    return lambda: [claim_of(row, now) for row in sorted(found(), key=lambda row: place[row[0]])]


def claim_of(row: tuple[Any, ...], queued_at: datetime) -> Claim:
    """A Claim from (id, epoch, mode, group id, pool code, group key)."""
    message_id, epoch, mode, group_id, pool_code, key = row[:6]
    is_ordered = mode != "IMMEDIATE"
    # Messages without order must not wait for each other on the queue either.
    hashed = key if is_ordered else group_hash("immediate", message_id)
    return Claim(message_id, epoch, group_id, hashed, pool_code, queued_at, is_ordered)


def _save(heads: list[_Head], claimed: set[int], now: datetime) -> None:
    changed = []
    for head in heads:
        wake_at = _wake_at(head, claimed, now)
        since = None
        if head.held_by is not None:
            since = head.blocked_since if head.blocked_by == head.held_by else now
        if (wake_at, head.held_by, since) != (head.wake_at, head.blocked_by, head.blocked_since) or wake_at:
            changed.append((head.group_id, wake_at, head.target_id, head.held_by, since))
    if changed:
        ids, wakes, targets, blockers, sinces = sql.columns(sorted(changed, key=lambda row: row[0]), 5)
        sql.do(
            sql.SAVE_GROUPS,
            {"ids": ids, "wakes": wakes, "targets": targets, "blockers": blockers, "sinces": sinces},
        )


def _wake_at(head: _Head, claimed: set[int], now: datetime) -> datetime | None:
    if head.flying or head.message_id is None or head.due_at is None or head.group_id in claimed:
        return None
    if head.due_at > now:
        return head.due_at
    # In line already: it keeps its place.
    return head.wake_at if head.wake_at and head.wake_at <= now else now
