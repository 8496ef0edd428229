"""There is one leader at a time, and a deposed leader changes nothing."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from django.db import connection, transaction
from django.test.utils import CaptureQueriesContext

from dispatch.core import clock
from dispatch.core.models import EventCursor, Leadership
from dispatch.core.runtime.leader_election import Election, LeadershipLost, fence, renew
from tests.core.threads import Elsewhere
from tests.support.waiting import PATIENCE

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture(autouse=True)
def _long_lease(settings: Any) -> None:
    """Use a long lease, so that none expires on a slow machine."""
    settings.LEADER_LEASE_S = 1000.0


def test_first_candidate_leads_and_second_does_not() -> None:
    first, second = Election("auditor"), Election("auditor")
    assert first.step() == 1
    assert second.step() is None
    assert first.is_leader
    assert not second.is_leader


def test_leaderships_are_independent() -> None:
    assert Election("auditor").step() == 1
    assert Election("placer").step() == 1


def test_a_leader_stays_leader_by_renewing_in_time() -> None:
    leader, other = Election("auditor"), Election("auditor")
    leader.step()
    for _ in range(5):
        clock.travel(700)  # of a lease of 1000
        assert leader.step() == 1
        assert other.step() is None


def test_leader_paused_past_its_lease_learns_it_was_replaced() -> None:
    paused, next_one = Election("auditor"), Election("auditor")
    paused.step()
    clock.travel(1000.1)
    assert not paused.is_leader  # without asking the database
    assert next_one.step() == 2
    assert paused.step() is None
    assert not paused.is_leader
    assert next_one.is_leader


def test_leader_returning_after_its_lease_starts_a_new_term() -> None:
    leader = Election("auditor")
    leader.step()
    clock.travel(1001)
    assert leader.step() == 2  # its writes of the first term are fenced off


def test_resigning_hands_over_at_once() -> None:
    leader, waiting = Election("auditor"), Election("auditor")
    leader.step()
    leader.resign()
    assert not leader.is_leader
    assert waiting.step() == 2


def test_late_resignation_does_not_affect_the_successor() -> None:
    late, follower = Election("auditor"), Election("auditor")
    late.step()
    clock.travel(1001)
    follower.step()
    late.resign()
    assert follower.step() == 2
    assert Leadership.objects.get(name="auditor").holder == follower.holder


def test_one_of_many_concurrent_candidates_leads() -> None:
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
    with pytest.raises(LeadershipLost), transaction.atomic():
        EventCursor.objects.create(name="written by the deposed")
        fence("auditor", epoch)
    assert not EventCursor.objects.exists()


def test_nobody_takes_over_between_the_fence_and_the_commit() -> None:
    leader, follower, other = Election("auditor"), Election("auditor"), Election("placer")
    epoch = leader.step()
    clock.travel(1001)
    with transaction.atomic():
        fence("auditor", epoch)
        Elsewhere(lambda: renew([follower, other])).finish()  # skipped, not waited for
        assert (follower.epoch, other.epoch) == (None, 1)
    assert follower.step() == 2


def test_renewal_skipped_because_of_a_lock_loses_nothing() -> None:
    leader = Election("auditor")
    epoch = leader.step()
    clock.travel(900)  # of a lease of 1000
    with transaction.atomic():
        fence("auditor", epoch)
        Elsewhere(leader.step).finish()
        assert (leader.epoch, leader.is_leader) == (epoch, True)
    clock.travel(101)
    assert not leader.is_leader  # it was not renewed either


def test_many_leaderships_are_renewed_with_one_statement() -> None:
    candidates = [Election(f"loop {n}") for n in range(28)]
    rival = Election("loop 3")
    rival.step()
    for _ in range(2):  # taken, then renewed
        with CaptureQueriesContext(connection) as asked:
            renew(candidates)
        assert len(asked) == 1
    assert [one.epoch for one in candidates] == [None if n == 3 else 1 for n in range(28)]


def test_reluctant_candidate_leaves_the_leadership_to_others(settings: Any) -> None:
    settings.LEADER_RENEW_S = 2.0
    failing, other = Election("auditor"), Election("auditor")
    failing.step()
    failing.stand_back(60)
    failing.resign()
    assert failing.step() is None
    assert other.step() == 2


def test_reluctant_candidate_takes_an_unclaimed_leadership(settings: Any) -> None:
    settings.LEADER_RENEW_S = 2.0
    alone = Election("auditor")
    alone.step()
    alone.stand_back(60)
    alone.resign()
    clock.travel(3)
    assert alone.step() is None
    clock.travel(2)
    assert alone.step() == 2
    assert alone.step() == 2  # and renews it


def test_a_moved_clock_moves_the_lease_too() -> None:
    clock.travel(3600)
    Election("auditor").step()
    with connection.cursor() as cursor:
        cursor.execute("SELECT expires_at - now() > interval '59 minutes' FROM core_leadership")
        assert cursor.fetchone() == (True,)
