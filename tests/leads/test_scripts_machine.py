"""The scripts over schedule, ready queues and lines, compared with a model of dictionaries, in random steps."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test

from dispatch.capacity import redis_scripts
from dispatch.capacity.bulk import PoolLimits
from dispatch.capacity.rules import NumberLimits
from dispatch.capacity.sql import UsableNumber
from dispatch.core import clock
from dispatch.core.redis import generation
from dispatch.core.redis.client import client
from dispatch.leads import redis_queue
from dispatch.leads.redis_queue import ClaimOutcome, ScheduleEntry
from tests.conftest import forget_redis

PAST, FUTURE = 1_000, 9_000_000_000_000
POOLS, WORKERS = st.sampled_from([1, 2]), st.sampled_from(["ann", "bob"])
ENTRIES = st.builds(
    ScheduleEntry, POOLS, st.integers(1, 6), st.integers(1, 2), st.sampled_from([PAST, PAST + 1, PAST + 2, FUTURE])
)
# number → (pool, lines, reserved for alerts, for offers)
NUMBERS = {1: (1, 3, 1, 0), 2: (1, 2, 0, 0), 3: (2, 2, 0, 1)}
CONCURRENCY = {1: 4, 2: 5}
# The same after lines and limits were lowered and number 2 paused.
LOWERED_NUMBERS = {1: (1, 2, 1, 0), 3: (2, 1, 0, 0)}
LOWERED_CONCURRENCY = {1: 2, 2: 3}


class LeadScripts(RuleBasedStateMachine):
    @initialize()
    def begin(self) -> None:
        forget_redis()
        generation.ensure_generation()
        self.scheduled: dict[str, int] = {}
        self.rooms: dict[int, dict[str, int]] = {1: {}, 2: {}}
        self.held: dict[str, dict[str, int]] = {}  # by batch
        self.leases: dict[str, tuple[int, int, int, int]] = {}  # holder → number, line slot, pool, pool slot

    # --- Steps

    @rule(entries=st.lists(ENTRIES, min_size=1, max_size=4))
    def put(self, entries: list[ScheduleEntry]) -> None:
        entries = list({entry.member: entry for entry in entries}.values())
        added = redis_queue.sync_entries(entries)
        assert added == sum(entry.member not in self.scheduled for entry in entries)
        self.scheduled |= {entry.member: entry.due_ms for entry in entries}

    @rule(entries=st.lists(ENTRIES, min_size=1, max_size=4))
    def put_what_is_missing(self, entries: list[ScheduleEntry]) -> None:
        entries = list({entry.member: entry for entry in entries}.values())
        missing = [entry for entry in entries if not self._is_anywhere(entry.member)]
        page = " ".join(f"{entry.due_ms} {entry.member}" for entry in entries)
        assert redis_queue.sync_missing(page) == len(missing)
        self.scheduled |= {entry.member: entry.due_ms for entry in missing}

    @rule(entry=ENTRIES)
    def take_out(self, entry: ScheduleEntry) -> None:
        redis_queue.dequeue([entry.member])
        self.scheduled.pop(entry.member, None)
        self.rooms[entry.pool_id].pop(entry.member, None)

    @rule(most=st.integers(1, 5))
    def promote(self, most: int) -> None:
        due = sorted((due, member) for member, due in self.scheduled.items() if due < FUTURE)[:most]
        count, next_s = redis_queue.promote_due(most)
        assert count == len(due)
        for moment, member in due:
            del self.scheduled[member]
            self.rooms[_pool(member)][member] = moment
        assert (next_s is None) == (not self.scheduled)
        if self.scheduled and min(self.scheduled.values()) < FUTURE:
            assert next_s == 0

    @rule(worker=WORKERS, pool=POOLS, most=st.integers(1, 6), again=st.booleans())
    def pair(self, worker: str, pool: int, most: int, again: bool = False) -> None:
        batch = f"{worker}:{pool}"
        if again and batch in self.held:  # its answer was lost
            self._put_back(batch)
        elif batch in self.held:
            batch = redis_queue.new_batch(worker)
        waiting = sorted((due, member) for member, due in self.rooms[pool].items())
        pairs, why, _ = redis_queue.reserve(batch, most, _limits(pool))
        assert [(pair.due_ms, pair.member) for pair in pairs] == waiting[: len(pairs)]
        for pair in pairs:
            lease = (pair.number_id, pair.line_slot, pool, pair.pool_slot)
            had = self.leases.get(_holder(pair.member))
            if had is not None and had[2] == pool:
                assert lease == had
            else:
                assert lease in self._free_for_leads(pool)
                self.leases[_holder(pair.member)] = lease
            assert pair.batch == batch
            self.held.setdefault(batch, {})[pair.member] = self.rooms[pool].pop(pair.member)
        if len(pairs) < min(most, len(waiting)):
            next_holder = _holder(waiting[len(pairs)][1])
            assert why in ("lines_busy", "pool_full")
            assert next_holder not in self.leases or self.leases[next_holder][2] != pool
            assert not self._free_for_leads(pool)

    @rule(worker=WORKERS, pool=POOLS, most=st.integers(1, 6))
    def pair_within_lower_limits(self, worker: str, pool: int, most: int) -> None:
        batch = redis_queue.new_batch(worker)
        taken = {member for member in self.rooms[pool] if _holder(member) in self.leases}
        limits = _limits(pool, LOWERED_NUMBERS, LOWERED_CONCURRENCY)
        pairs, _, _ = redis_queue.reserve(batch, most, limits)
        for pair in pairs:
            assert limits.allows("lead", pair.number_id, pair.line_slot, pair.pool_slot)
            self.held.setdefault(batch, {})[pair.member] = self.rooms[pool].pop(pair.member)
            self.leases[_holder(pair.member)] = (pair.number_id, pair.line_slot, pool, pair.pool_slot)
        for member in taken & self.rooms[pool].keys():  # one that found no other line has lost its own
            if client().hget(f"{redis_scripts.base_key()}:leases", _holder(member)) is None:
                lost = self.leases.pop(_holder(member))
                assert not limits.allows("lead", lost[0], lost[1], lost[3])

    @rule(what=st.sampled_from(["called", "gone", "again", "later"]), data=st.data())
    def settle(self, what: str, data: st.DataObject) -> None:
        if not self.held:
            return
        batch = data.draw(st.sampled_from(sorted(self.held)))
        member = data.draw(st.sampled_from(sorted(self.held[batch])))
        redis_queue.complete_reservations([ClaimOutcome(batch, member, what, PAST, member)])
        del self.held[batch][member]
        if not self.held[batch]:
            del self.held[batch]
        if what != "called":
            self.leases.pop(_holder(member), None)
        if what == "again":
            self.rooms[_pool(member)][member] = PAST
        elif what == "later":
            self.scheduled[member] = PAST

    @rule(entry=ENTRIES)
    def a_call_ends(self, entry: ScheduleEntry) -> None:
        from dispatch.capacity import redis_scripts as lines

        redis_scripts.run_script(lines.RELEASE, [_holder(entry.member)])
        self.leases.pop(_holder(entry.member), None)

    @rule(worker=WORKERS, entry=ENTRIES, what=st.sampled_from(["called", "gone", "again", "later", "asked"]))
    def settle_what_is_not_held(self, worker: str, entry: ScheduleEntry, what: str) -> None:
        redis_queue.complete_reservations(
            [ClaimOutcome(f"{worker}:lapsed", entry.member, what, PAST, entry.member)]
        )

    @rule()
    def no_lease_has_ended(self) -> None:
        assert redis_queue.reap(3600) == (0, 0)

    @rule()
    def all_leases_have_ended(self) -> None:
        held = sum(map(len, self.held.values()))
        with clock.restored():
            clock.travel(60)
            assert redis_queue.reap(3600) == (0, held)
        for batch in list(self.held):
            self._put_back(batch)

    @rule(worker=WORKERS)
    def leave(self, worker: str) -> None:
        mine = [batch for batch in self.held if batch.startswith(f"{worker}:")]
        redis_queue.deregister(worker)
        for batch in mine:
            self._put_back(batch)

    def _put_back(self, batch: str) -> None:
        for member, due in self.held.pop(batch).items():
            self.rooms[_pool(member)][member] = due

    @rule(worker=WORKERS)
    def without_the_generation_nothing_moves(self, worker: str) -> None:
        kept = generation.current_generation()
        client().delete(generation.key_name())
        for attempt in (
            lambda: redis_queue.promote_due(5),
            lambda: redis_queue.reserve(f"{worker}:1", 5, _limits(1)),
            lambda: redis_queue.heartbeat(worker),
            lambda: redis_queue.reap(3600),
        ):
            with pytest.raises(redis_queue.NotReady, match="not rebuilt"):
                attempt()
        client().set(generation.key_name(), kept or "")

    # --- Invariants

    @invariant()
    def redis_holds_what_the_model_holds(self) -> None:
        if not hasattr(self, "scheduled"):
            return
        base = redis_queue.base_key()
        assert _sorted_set(f"{base}:schedule") == self.scheduled
        for pool, room in self.rooms.items():
            assert _sorted_set(f"{base}:room:{pool}") == room
            if room:
                assert pool in redis_queue.ready_pools() or str(pool) in _sorted_set(f"{base}:blocked")
        for batch, held in self.held.items():
            assert _sorted_set(f"{base}:held:{batch}") == held
        assert set(_sorted_set(f"{base}:batches")) == set(self.held)
        assert sum(1 for _ in client().scan_iter(f"{base}:held:*", count=1000)) == len(self.held)

    @invariant()
    def lines_are_never_held_twice_and_never_above_a_limit(self) -> None:
        if not hasattr(self, "scheduled"):
            return
        stored: Any = client().hgetall(f"{redis_scripts.base_key()}:leases")
        assert {h.decode(): tuple(map(int, v.decode().split(":")[:4])) for h, v in stored.items()} == self.leases
        lines = [lease[:2] for lease in self.leases.values()]
        in_pools = [lease[2:] for lease in self.leases.values()]
        assert len(lines) == len(set(lines))
        assert len(in_pools) == len(set(in_pools))
        for number, (_, total, alerts, offers) in NUMBERS.items():
            assert all(slot <= total - alerts - offers for n, slot in lines if n == number)
        for pool, most in CONCURRENCY.items():
            assert sum(p == pool for p, _ in in_pools) <= most

    def _is_anywhere(self, member: str) -> bool:
        return (
            member in self.scheduled
            or member in self.rooms[_pool(member)]
            or any(member in held for held in self.held.values())
        )

    def _free_for_leads(self, pool: int) -> list[tuple[int, int, int, int]]:
        taken = {lease[:2] for lease in self.leases.values()}
        pool_slots = {lease[3] for lease in self.leases.values() if lease[2] == pool}
        free_slots = set(range(1, CONCURRENCY[pool] + 1)) - pool_slots
        if not free_slots:
            return []
        return [
            (number, slot, pool, min(free_slots))
            for number, (of, total, alerts, offers) in NUMBERS.items()
            if of == pool
            for slot in range(1, total - alerts - offers + 1)
            if (number, slot) not in taken
        ]


def _pool(member: str) -> int:
    return int(member.split(":")[0])


def _holder(member: str) -> str:
    return "lead:" + member.split(":", 1)[1]


def _sorted_set(name: str) -> dict[str, int]:
    found: Any = client().zrange(name, 0, -1, withscores=True)
    return {member.decode(): int(score) for member, score in found}


def _limits(
    pool: int,
    numbers: dict[int, tuple[int, int, int, int]] = NUMBERS,
    concurrency: dict[int, int] = CONCURRENCY,
) -> PoolLimits:
    usable = {
        number: UsableNumber(
            NumberLimits(number, total, alerts, offers), 1, "+16025550100", concurrency[of], None, 1e6, 1
        )
        for number, (of, total, alerts, offers) in numbers.items()
        if of == pool
    }
    return PoolLimits(pool, 1, usable, concurrency[pool], 0)


EXAMPLES, SOAK_EXAMPLES = 25, 600


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("at_random", [False, pytest.param(True, marks=pytest.mark.soak)])
def test_scripts_behave_like_dictionaries(at_random: bool) -> None:
    run_state_machine_as_test(
        LeadScripts,
        settings=hypothesis_settings(
            max_examples=SOAK_EXAMPLES if at_random else EXAMPLES,
            stateful_step_count=40,
            derandomize=not at_random,
        ),
    )


@pytest.mark.django_db(transaction=True)
def test_a_lead_moved_to_a_pool_without_a_free_line_keeps_the_one_it_has() -> None:
    steps = LeadScripts()
    steps.begin()
    steps.put([ScheduleEntry(1, 1, 1, PAST), ScheduleEntry(2, 2, 1, PAST)])
    steps.promote(2)
    steps.pair("ann", 1, 1)
    steps.pair("ann", 2, 1)  # the only line of the second pool that is not reserved
    steps.put([ScheduleEntry(2, 1, 1, PAST)])
    steps.promote(1)
    steps.pair("bob", 2, 1)
    steps.lines_are_never_held_twice_and_never_above_a_limit()
    assert steps.leases["lead:1:1"][2] == 1
