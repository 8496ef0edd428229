"""Rows of leads that another session has locked do not slow down the others."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import psycopg
import pytest
from django.db import connection

from dispatch.core import clock, fault_injection
from dispatch.leads.services import completion
from dispatch.telephony.services.bulk import RequestResult
from tests.harness.leads import Floor
from tests.support.processes import database_url
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.floor(lines=50)]


@contextmanager
def locked_by_another_session(ids: list[int]) -> Iterator[None]:
    with psycopg.connect(database_url(connection.settings_dict["NAME"])) as other:
        other.execute("SELECT id FROM leads_lead WHERE id = ANY(%s) FOR UPDATE", [ids])
        yield
        other.rollback()


def test_locked_leads_do_not_hold_up_a_batch(floor: Floor) -> None:
    ids = floor.add_many(20)
    stuck, others = ids[:13], ids[13:]
    with locked_by_another_session(stuck):
        with connection.cursor() as cursor:
            cursor.execute("SET lock_timeout = '2s'")
        try:
            assert floor.work() == 7
        finally:
            with connection.cursor() as cursor:
                cursor.execute("SET lock_timeout = 0")
        assert floor.outcomes(others) == {"answered": 7}
        assert floor.outcomes(stuck) == {"backlog": 13}
    clock.travel(2)
    assert floor.work() == 13


def test_a_locked_lead_does_not_hold_up_the_outcomes_of_others(floor: Floor) -> None:
    ids = floor.add_many(6)
    floor.promote()
    answers = floor.ask(floor.claim())
    with locked_by_another_session(ids[:2]):
        late: list[RequestResult] = []
        assert completion.record_outcomes(answers, late) == []
        assert sorted(answer.call.subject_id for answer in late) == ids[:2]
        assert floor.outcomes() == {"answered": 4, "processing": 2}
    floor.settle(late)
    assert floor.outcomes() == {"answered": 6}


def test_running_dialer_completes_a_locked_lead_later(floor: Floor) -> None:
    """The lead is locked at the moment in which its call was claimed."""
    (stuck,) = floor.add_many(1)
    locks: list[Any] = []

    def lock() -> None:
        if not locks:
            locks.append(locked_by_another_session([stuck]))
            locks[0].__enter__()

    with fault_injection.arm_crash_point("leads.ask.before", lock):
        floor.start()
        wait_until(lambda: locks)
    others = floor.add_many(4)
    wait_until(lambda: floor.outcomes(others) == {"answered": 4})
    assert floor.status(stuck) == "processing"
    locks[0].__exit__(None, None, None)
    wait_until(lambda: floor.outcomes([stuck]) == {"answered": 1})
