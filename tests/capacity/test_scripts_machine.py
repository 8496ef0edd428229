"""Compare the line scripts with a model that is only a dictionary."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test

from dispatch.capacity import redis_scripts
from dispatch.capacity.rules import NumberLimits, free_lines, slot_ranges
from dispatch.core.redis import generation
from dispatch.core.redis.client import client
from tests.conftest import forget_redis

PURPOSES = st.sampled_from(["alert", "offer", "lead"])
HOLDERS = st.sampled_from([f"lead:{i}:1" for i in range(12)])
POOLS = st.sampled_from([1, 2])


class LineScripts(RuleBasedStateMachine):
    """The model. `held`: holder → (number, slot, pool, pool slot)."""

    @initialize()
    def start(self) -> None:
        forget_redis()
        assert generation.rebuild_all()
        self.held: dict[str, tuple[int, int, int, int]] = {}
        self.numbers = {1: NumberLimits(1, 3, 1, 0), 2: NumberLimits(2, 4, 1, 2)}
        self.concurrency = {1: 5, 2: 3}

    @rule(
        number=st.sampled_from([1, 2]), lines=st.integers(1, 6), alerts=st.integers(0, 2), offers=st.integers(0, 2)
    )
    def change_number(self, number: int, lines: int, alerts: int, offers: int) -> None:
        alerts = min(alerts, lines)
        self.numbers[number] = NumberLimits(number, lines, alerts, min(offers, lines - alerts))

    @rule(pool=POOLS, concurrency=st.integers(1, 7))
    def change_pool(self, pool: int, concurrency: int) -> None:
        self.concurrency[pool] = concurrency

    @rule(holder=HOLDERS, purpose=PURPOSES, pool=POOLS)
    def propose(self, holder: str, purpose: str, pool: int) -> None:
        before = self.held.get(holder)
        answer = self._propose(holder, purpose, pool)
        if before is not None and before[2] == pool and self._is_within(before, purpose):
            assert answer == [before[0], before[1], before[3]]
            return
        # A lease elsewhere, or one that the limits no longer allow, is ended even if the new one is rejected: the
        # model looks without it, while the script chose the number with it.
        self.held.pop(holder, None)
        in_pool = {slots[3] for slots in self.held.values() if slots[2] == pool}
        full = len(in_pool) >= self.concurrency[pool]
        possible = list(free_lines(self.numbers.values(), purpose, self._taken()))
        if isinstance(answer, bytes):
            assert answer in (b"pool_full", b"lines_busy")
            if answer == b"pool_full":
                assert full or not set(range(1, self.concurrency[pool] + 1)) - in_pool
            elif before is None:
                assert not possible
            return
        number, slot, pool_slot = answer
        assert (number, slot) in possible
        assert not full
        assert pool_slot == min(set(range(1, self.concurrency[pool] + 1)) - in_pool)
        if before is None:
            assert (number, slot) == possible[0]
        assert any(low <= slot <= high for low, high in slot_ranges(self.numbers[number], purpose))
        self.held[holder] = (number, slot, pool, pool_slot)

    def _is_within(self, held: tuple[int, int, int, int], purpose: str) -> bool:
        number, slot, pool, pool_slot = held
        ranges = slot_ranges(self.numbers[number], purpose)
        return pool_slot <= self.concurrency[pool] and any(low <= slot <= high for low, high in ranges)

    @rule(holder=HOLDERS)
    def release(self, holder: str) -> None:
        assert redis_scripts.run_script(redis_scripts.RELEASE, [holder]) == int(
            self.held.pop(holder, None) is not None
        )

    @rule(holders=st.lists(HOLDERS, max_size=6))
    def release_several(self, holders: list[str]) -> None:
        ended = [self.held.pop(holder, None) for holder in holders]
        assert redis_scripts.run_script(redis_scripts.RELEASE, holders) == sum(one is not None for one in ended)

    @rule(
        holder=HOLDERS,
        number=st.sampled_from([1, 2]),
        slot=st.integers(1, 6),
        pool=POOLS,
        pool_slot=st.integers(1, 7),
    )
    def adopt(self, holder: str, number: int, slot: int, pool: int, pool_slot: int) -> None:
        lease = (number, slot, pool, pool_slot)
        changed = redis_scripts.run_script(redis_scripts.ADOPT, [0, holder, *lease])
        assert changed == int(self.held.get(holder) != lease)
        self.held = {
            other: slots
            for other, slots in self.held.items()
            if slots[:2] != lease[:2] and slots[2:] != lease[2:] and other != holder
        }
        self.held[holder] = lease

    @rule(holder=HOLDERS)
    def forget_what_changed_meanwhile(self, holder: str) -> None:
        assert redis_scripts.run_script(redis_scripts.END_STALE, [holder, "1:1:1:1:0"]) == 0

    @rule()
    def without_the_generation_it_answers_nothing(self) -> None:
        kept = generation.current_generation()
        client().delete(generation.key_name())
        assert redis_scripts.run_script(redis_scripts.RELEASE, ["lead:0:1"]) == generation.NOT_READY
        assert self._propose("lead:0:1", "alert", 1) == generation.NOT_READY
        client().set(generation.key_name(), kept or "")

    @invariant()
    def redis_holds_what_the_model_holds(self) -> None:
        if not hasattr(self, "held"):
            return
        stored: Any = client().hgetall(f"{redis_scripts.base_key()}:leases")
        assert {h.decode(): tuple(map(int, v.decode().split(":")[:4])) for h, v in stored.items()} == self.held
        for number in (1, 2):
            self._slots_match(f"line:{number}", {s[1]: h for h, s in self.held.items() if s[0] == number})
        for pool in (1, 2):
            self._slots_match(f"pool:{pool}", {s[3]: h for h, s in self.held.items() if s[2] == pool})

    def _slots_match(self, name: str, expected: dict[int, str]) -> None:
        stored: Any = client().hgetall(f"{redis_scripts.base_key()}:{name}")
        assert {int(slot): holder.decode() for slot, holder in stored.items()} == expected
        bits = client().bitcount(f"{redis_scripts.base_key()}:{name}:bits")
        assert bits == len(expected)
        assert all(client().getbit(f"{redis_scripts.base_key()}:{name}:bits", slot) for slot in expected)

    def _taken(self) -> dict[int, set[int]]:
        return {n: {s[1] for s in self.held.values() if s[0] == n} for n in self.numbers}

    def _propose(self, holder: str, purpose: str, pool: int) -> Any:
        args: list[Any] = [0, holder, pool, self.concurrency[pool], holder, 5000]
        for number in self.numbers.values():
            ranges = slot_ranges(number, purpose)
            args += [number.id, number.lines, len(ranges), *(edge for both in ranges for edge in both)]
        return redis_scripts.run_script(redis_scripts.PROPOSE, args)


EXAMPLES, SOAK_EXAMPLES = 30, 600


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("at_random", [False, pytest.param(True, marks=pytest.mark.soak)])
def test_line_scripts_behave_like_a_dictionary(at_random: bool) -> None:
    run_state_machine_as_test(
        LineScripts,
        settings=hypothesis_settings(
            max_examples=SOAK_EXAMPLES if at_random else EXAMPLES,
            stateful_step_count=30,
            derandomize=not at_random,
        ),
    )
