"""The schedule in Redis, as Python calls: what is due when, what is ready, who holds what.

What is told here is told after the commit of the rows that say the same; a Redis that is gone is logged and
counted, and the reconciler tells it later."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime
from typing import Any, NamedTuple

import structlog
from django.conf import settings

from dispatch.capacity import fast
from dispatch.capacity.batches import PoolLimits
from dispatch.core import clock, generation
from dispatch.core.queues import wake_channel
from dispatch.core.redis import REDIS_ERRORS, Script, client, key
from dispatch.core.sparing import Spared
from dispatch.leads import measures, scripts

log = structlog.get_logger(__name__)

PROMOTER = "leads_promoter"
PURPOSE = "lead"
CHUNK = 1000
_left_alone = Spared(1.0)


class NotReady(Exception):
    """Redis has lost its generation and is being rebuilt."""


# What is raised while the schedule cannot be asked.
UNAVAILABLE: tuple[type[Exception], ...] = (*REDIS_ERRORS, NotReady)


class Entry(NamedTuple):
    """A lead in the schedule: `attempt` is the one that is due, at `due_ms` (Unix)."""

    pool_id: int
    lead_id: int
    attempt: int
    due_ms: int

    @property
    def member(self) -> str:
        return f"{self.pool_id}:{self.lead_id}:{self.attempt}"


class Pair(NamedTuple):
    """A ready lead with the line that was taken for it."""

    member: str
    lead_id: int
    attempt: int
    due_ms: int
    number_id: int
    line_slot: int
    pool_slot: int


class Fate(NamedTuple):
    """What became of a pair: called, gone, again, later (see `scripts.SETTLE`)."""

    member: str
    what: str
    moment_ms: int = 0
    goes_on_as: str = ""


def ms(moment: datetime) -> int:
    """Unix milliseconds, rounded up: nothing starts early."""
    return math.ceil(moment.timestamp() * 1000)


def base_key() -> str:
    return key("leads")


def bell() -> str:
    """The channel on which dialers hear that there is something to do."""
    return key("leads", "bell")


def run(script: Script, args: Sequence[Any]) -> Any:
    """The script's answer. Raises NotReady, or one of REDIS_ERRORS."""
    answer = script(keys=[generation.key_name(), fast.base_key(), base_key()], args=list(args))
    if answer == generation.NOT_READY:
        raise NotReady
    return answer


# --- Telling what the rows say


def put(entries: Sequence[Entry]) -> bool:
    """Schedules them, or moves them. False when Redis is gone: they are found later. After the commit."""
    try:
        tell(entries)
    except Gone:
        return False
    measures.scheduled.inc(len(entries))
    return True


def remove(members: Sequence[str]) -> None:
    """Takes them out of the schedule and their rooms; one that stays is refused when it is taken."""
    try:
        _spared(scripts.UNSCHEDULE, members)
    except Gone:
        return


def ring(pool_ids: Iterable[int]) -> None:
    """Tells the dialers that there are free lines in these pools."""
    if _left_alone:
        return
    try:
        for pool_id in pool_ids:
            client().publish(bell(), f"line:{pool_id}")
    except REDIS_ERRORS as error:
        log.debug("the dialers were not told", error=str(error))


class Gone(Exception):
    """Redis is away, or empty and not yet rebuilt."""


def tell(entries: Sequence[Entry]) -> int:
    """Schedules or moves the entries; how many are new. Raises Gone."""
    added = 0
    for some in _chunks(entries):
        args: list[Any] = [wake_channel(), PROMOTER]
        for entry in some:
            args += (entry.due_ms, entry.member)
        added += _spared(scripts.SCHEDULE, args)
    return added


def tell_missing(page: str) -> int:
    """Schedules what is nowhere of a page as `sql.PAGE_OF_DUE` gives it; how many those are. Raises Gone."""
    return _spared(scripts.SCHEDULE_MISSING, [wake_channel(), PROMOTER, page])


def _spared(script: Script, args: Sequence[Any]) -> int:
    if _left_alone:
        measures.unscheduled.inc()
        raise Gone
    try:
        try:
            return int(run(script, args))
        except NotReady:
            if generation.ensure():
                return int(run(script, args))
            raise
    except UNAVAILABLE as error:
        if not isinstance(error, NotReady):
            _left_alone.failed()
        measures.unscheduled.inc()
        log.warning("not in the schedule yet, the reconciler will see to it", error=str(error))
        raise Gone from error


# --- What promoter and dialers do. All raise NotReady and REDIS_ERRORS.


def promote(most: int) -> tuple[int, float | None]:
    """Makes up to `most` leads ready that are due, or will be in LEADS_AHEAD_S; (how many, seconds until it is the
    next one's turn)."""
    ahead_ms = int(settings.LEADS_AHEAD_S * 1000)
    count, next_us = run(scripts.PROMOTE, [clock.offset_ms(), most, bell(), ahead_ms])
    return int(count), (None if next_us < 0 else next_us / 1e6)


def rooms() -> list[int]:
    """The pools whose rooms may hold something."""
    found: Any = client().smembers(f"{base_key()}:rooms")
    return sorted(map(int, found))


def pair(worker: str, most: int, limits: PoolLimits) -> tuple[list[Pair], str, float]:
    """Takes ready leads of the pool, each with a line: (pairs, why there are no more, seconds after which it is
    worth asking again)."""
    answer = run(scripts.PAIR, [clock.offset_ms(), worker, most, *limits.arguments(PURPOSE)])
    pairs = []
    for i in range(2, len(answer), 5):
        member = answer[i].decode()
        _, lead_id, attempt = member.split(":")
        number_id, line_slot, pool_slot = map(int, answer[i + 2 : i + 5])
        due_ms = int(float(answer[i + 1]))
        pairs.append(Pair(member, int(lead_id), int(attempt), due_ms, number_id, line_slot, pool_slot))
    return pairs, answer[0].decode(), int(answer[1]) / 1000


def settle(worker: str, fates: Iterable[Fate]) -> None:
    """Says what became of pairs."""
    args: list[Any] = [wake_channel(), PROMOTER, worker]
    for fate in fates:
        args += fate
    if len(args) > 3:
        run(scripts.SETTLE, args)


def beat(worker: str) -> None:
    """This dialer is alive."""
    run(scripts.BEAT, [clock.offset_ms(), worker])


def leave(worker: str) -> None:
    """This dialer ends."""
    run(scripts.LEAVE, [worker])


def bury(dead_after_s: float) -> tuple[int, int]:
    """Puts back what dead dialers held: (dialers, leads)."""
    dead, back = run(scripts.BURY, [clock.offset_ms(), int(dead_after_s * 1000), bell()])
    return int(dead), int(back)


def swept_in() -> str | None:
    """The generation of Redis in which the whole backlog was last compared with the schedule."""
    value: Any = client().get(f"{base_key()}:swept")
    return value.decode() if value else None


def set_swept(current: str) -> None:
    """All of the backlog was compared in that generation."""
    client().set(f"{base_key()}:swept", current)


def forget_all() -> None:
    """Deletes our keys, before they are written anew."""
    names = list(client().scan_iter(match=f"{base_key()}:*", count=1000))
    for start in range(0, len(names), CHUNK):
        client().unlink(*names[start : start + CHUNK])


def write_anew(entries: Sequence[Entry]) -> None:
    """Puts entries into a schedule that has no generation yet: only for who rebuilds. Raises REDIS_ERRORS."""
    for some in _chunks(entries):
        client().zadd(f"{base_key()}:schedule", {entry.member: entry.due_ms for entry in some})


def _chunks(entries: Sequence[Entry]) -> Iterator[Sequence[Entry]]:
    return (entries[start : start + CHUNK] for start in range(0, len(entries), CHUNK))
