"""Escalation rules without a database: whom each step reaches, and that an alert never reaches nobody."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from notifications.escalation_rules import (
    ADMINS,
    DISPATCHERS,
    EMAIL,
    ON_DUTY,
    SMS,
    VOICE,
    Plan,
    Staff,
    Step,
    next_move,
)

BOTH = (SMS, VOICE)
PLAN = Plan(60, 900, (Step(ON_DUTY, 120, 45), Step(DISPATCHERS, 60), Step(ADMINS, 100)))


def staff(on_duty=(1, 2), dispatchers=(1, 2, 3), admins=(8,), superusers=(9,), deaf=(), phoneless=()) -> Staff:
    everybody = {*dispatchers, *admins, *superusers}
    can = {one: {EMAIL} if one in phoneless else {EMAIL, *BOTH} for one in everybody}
    ways = {one: set() if one in deaf else can[one] & set(BOTH) for one in everybody}
    return Staff(on_duty, dispatchers, admins, superusers, ways, can)


def move(cycle: int, step: int, who: Staff, reached: Any = (), before: bool = False) -> tuple:
    found = next_move(PLAN, cycle, step, who, reached, anybody_in_cycle=before)
    return [user for user, _ in found.users], found.cycle, found.step, found.wait_s


def test_on_duty_one_after_another_then_all_then_admins_and_again():
    assert move(0, 0, staff()) == ([1], 0, 0, 45)
    assert move(0, 0, staff(), {1}, True) == ([2], 0, 1, 60)
    assert move(0, 1, staff(), (), True) == ([1, 2, 3], 0, 2, 100)
    assert move(0, 2, staff(), (), True) == ([8], 1, 0, 900)


def test_the_order_is_the_one_given():
    assert move(0, 0, staff(on_duty=(2, 1)))[0] == [2]


def test_empty_on_duty_step_is_skipped_without_waiting():
    assert move(0, 0, staff(on_duty=())) == ([1, 2, 3], 0, 2, 100)
    assert move(0, 0, staff(on_duty=(), dispatchers=())) == ([8], 1, 0, 900)
    assert move(0, 0, staff(on_duty=(), dispatchers=(), admins=())) == ([9], 1, 0, 900)


def test_user_who_went_off_duty_is_skipped():
    assert move(0, 0, staff(on_duty=()), {1}, True) == ([], 0, 1, 60)
    assert move(0, 0, staff(on_duty=(3,)), {1}, True) == ([3], 0, 1, 60)


def test_muted_user_is_not_called_while_others_remain():
    assert move(0, 0, staff(deaf=(1,))) == ([2], 0, 1, 60)
    assert move(0, 0, staff(deaf=(1, 2, 3))) == ([8], 1, 0, 900)


def test_reachable_users_are_called_if_all_are_muted():
    found = next_move(PLAN, 0, 0, staff(deaf=(1, 2, 3, 8, 9)), (), anybody_in_cycle=False)
    assert (found.users, found.is_last_resort) == (((1, BOTH), (2, BOTH)), True)
    nobody_on_duty = staff(on_duty=(), deaf=(1, 2, 3, 8, 9), phoneless=(1, 2, 3))
    assert next_move(PLAN, 0, 0, nobody_on_duty, (), anybody_in_cycle=False).users == ((8, BOTH),)


def test_without_any_phone_everybody_gets_an_email():
    found = next_move(PLAN, 0, 0, staff(phoneless=(1, 2, 3, 8, 9)), (), anybody_in_cycle=False)
    assert found.users == tuple((one, (EMAIL,)) for one in (1, 2, 3, 8, 9))


def test_a_step_uses_its_own_channels_only():
    plan = Plan(60, 900, (Step(DISPATCHERS, 0, sms=True, voice=False),))
    assert next_move(plan, 0, 0, staff(), (), anybody_in_cycle=False).users[0] == (1, (SMS,))


def test_a_plan_is_frozen_and_read_again():
    assert Plan.from_json(PLAN.to_json()) == PLAN


_people = st.lists(st.integers(1, 6), unique=True).map(tuple)


@given(
    _people, _people, _people, _people, st.sets(st.integers(1, 6)), st.sets(st.integers(1, 6)),
    st.lists(
        st.builds(
            Step, st.sampled_from([ON_DUTY, DISPATCHERS, ADMINS]), st.integers(0, 9), st.sampled_from([0, 5])
        ),
        max_size=4,
    ),
)  # fmt: skip
def test_every_cycle_reaches_somebody_and_comes_to_its_end(
    duty, others, admins, superusers, deaf, phoneless, steps
):
    who = staff(duty, tuple(dict.fromkeys((*duty, *others))), admins, superusers, deaf, phoneless)
    plan = Plan(60, 900, tuple(steps))
    cycle, step, reached, told = 0, 0, set(), set()
    for _ in range(100):
        found = next_move(plan, cycle, step, who, reached, anybody_in_cycle=bool(told))
        new = {user for user, ways in found.users if ways}
        assert not new & reached or found.at != step, "nobody twice in a step"
        told |= new
        if found.cycle > cycle:
            break
        reached = reached | new if found.step == step else set()
        step = found.step
    else:
        pytest.fail("the cycle does not end")
    assert bool(told) == bool({*duty, *others, *admins, *superusers})
