"""One leader at a time; a deposed one changes nothing any more."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from django.db import connection, transaction

from dispatch.core import clock
from dispatch.core.election import Deposed, Election, fence
from dispatch.core.models import EventCursor, Leadership
from tests.core.threads import Elsewhere
from tests.waiting import PATIENCE

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture(autouse=True)
def _long_lease(settings: Any) -> None:
    """No lease ends because the machine stood still for a while."""
    settings.LEADER_LEASE_S = 1000.0


def test_the_first_who_asks_leads_and_the_second_does_not() -> None:
    first, second = Election("auditor"), Election("auditor")
    assert first.step() == 1
    assert second.step() is None
    assert first.is_leader
    assert not second.is_leader


def test_different_leaderships_do_not_meet() -> None:
    assert Election("auditor").step() == 1
    assert Election("placer").step() == 1


def test_a_leader_stays_leader_by_renewing_in_time() -> None:
    leader, other = Election("auditor"), Election("auditor")
    leader.step()
    for _ in range(5):
        clock.travel(700)  # of a lease of 1000
        assert leader.step() == 1
        assert other.step() is None


def test_a_leader_that_pauses_past_its_lease_is_followed_and_knows_it() -> None:
    paused, next_one = Election("auditor"), Election("auditor")
    paused.step()
    clock.travel(1000.1)
    assert not paused.is_leader  # without asking the database
    assert next_one.step() == 2
    assert paused.step() is None
    assert not paused.is_leader
    assert next_one.is_leader


def test_who_comes_back_to_a_lapsed_lease_leads_a_new_term() -> None:
    leader = Election("auditor")
    leader.step()
    clock.travel(1001)
    assert leader.step() == 2  # what it wrote in its first term is fenced off


def test_resigning_hands_over_at_once() -> None:
    leader, waiting = Election("auditor"), Election("auditor")
    leader.step()
    leader.resign()
    assert not leader.is_leader
    assert waiting.step() == 2


def test_resigning_after_being_followed_does_not_touch_the_follower() -> None:
    late, follower = Election("auditor"), Election("auditor")
    late.step()
    clock.travel(1001)
    follower.step()
    late.resign()
    assert follower.step() == 2
    assert Leadership.objects.get(name="auditor").holder == follower.holder


def test_of_many_who_ask_at_once_on_their_own_connections_one_leads() -> None:
    together = threading.Barrier(8)
    epochs: list[int | None] = []

    def stand() -> None:
        candidate = Election("auditor")
        together.wait(PATIENCE)
        epochs.append(candidate.step())

    threads = [Elsewhere(stand) for _ in range(8)]
    for thread in threads:
        thread.finish()
    assert sorted(epochs, key=str) == [1] + [None] * 7


def test_a_deposed_leader_cannot_commit() -> None:
    paused, follower = Election("auditor"), Election("auditor")
    epoch = paused.step()
    clock.travel(1001)
    follower.step()
    with pytest.raises(Deposed), transaction.atomic():
        EventCursor.objects.create(name="written by the deposed")
        fence("auditor", epoch)
    assert not EventCursor.objects.exists()


def test_nobody_takes_over_between_the_fence_and_the_commit() -> None:
    leader, follower = Election("auditor"), Election("auditor")
    epoch = leader.step()
    clock.travel(1001)
    order: list[str] = []

    def follow() -> None:
        follower.step()
        order.append("followed")

    with transaction.atomic():
        fence("auditor", epoch)
        thread = Elsewhere(follow)
        thread.wait_for_lock()
        order.append("committed")
    thread.finish()
    assert order == ["committed", "followed"]
    assert follower.epoch == 2


def test_a_moved_clock_moves_the_lease_too() -> None:
    clock.travel(3600)
    Election("auditor").step()
    with connection.cursor() as cursor:
        cursor.execute("SELECT expires_at - now() > interval '59 minutes' FROM core_leadership")
        assert cursor.fetchone() == (True,)
