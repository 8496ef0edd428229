"""An offer that waits for a line of a pool without reserved lines takes the next free one, before any lead."""

from __future__ import annotations

import itertools

import pytest
from django.db import transaction

from dispatch.capacity import line_leases
from dispatch.capacity.line_leases import LineProposal, NoLine
from dispatch.core import clock
from dispatch.core.redis import generation
from dispatch.core.redis.client import client
from dispatch.telephony.models import Call
from tests.harness.leads import Floor

pytestmark = pytest.mark.floor(provider="noop", lines=3)


@pytest.fixture
def busy(floor: Floor) -> Floor:
    """A floor whose three lines are held by leads, while more leads are ready."""
    floor.add_many(9)
    floor.promote()
    assert len(floor.dial().calls) == 3
    return floor


_tries = itertools.count()


def propose(floor: Floor, holder: str, purpose: str = "offer") -> LineProposal | NoLine:
    with transaction.atomic():
        return line_leases.propose_line(floor.pool, purpose, f"{holder}:{next(_tries)}", waiter=holder)


def end_call(floor: Floor) -> None:
    """End one call of a lead, which frees its line."""
    call = Call.objects.filter(ended_at=None, purpose="lead").order_by("id")[0]
    Call.objects.filter(pk=call.pk).update(status="completed", ended_at=clock.now())
    line_leases.release_lines(call.holder)


@pytest.mark.parametrize("purpose", ["offer", "alert", "job_news"])
def test_waiting_offer_gets_the_first_line_that_leads_free(busy: Floor, purpose: str) -> None:
    assert propose(busy, "offer:1", purpose) == NoLine.because("lines_busy")
    end_call(busy)
    claimed = busy.dial()
    assert (claimed.why, len(claimed.calls)) == ("lines_busy", 0)
    assert isinstance(propose(busy, "offer:1", purpose), LineProposal)
    end_call(busy)
    assert len(busy.dial().calls) == 1, "nobody else waits"


def test_each_waiting_offer_gets_a_line_before_leads(busy: Floor) -> None:
    for holder in ("offer:1", "offer:2"):
        assert propose(busy, holder) == NoLine.because("lines_busy")
    for holder in ("offer:1", "offer:2"):
        end_call(busy)
        assert not busy.dial().calls
        assert isinstance(propose(busy, holder), LineProposal)
    end_call(busy)
    assert len(busy.dial().calls) == 1


def test_leads_go_on_when_an_offer_stops_waiting(busy: Floor) -> None:
    assert propose(busy, "offer:1") == NoLine.because("lines_busy")
    end_call(busy)
    assert not busy.dial().calls
    clock.travel(line_leases.WAITING_MS / 1000 + 0.1)
    assert len(busy.dial().calls) == 1


def test_waiting_offer_of_one_pool_stops_no_lead_of_another(busy: Floor) -> None:
    other = Floor("noop", lines=1)
    other.add_many(1)
    assert propose(busy, "offer:1") == NoLine.because("lines_busy")
    other.promote()
    assert len(other.dial().calls) == 1


def test_test_call_that_finds_no_line_stops_no_lead(busy: Floor) -> None:
    assert propose(busy, "number_test:1", "number_test") == NoLine.because("lines_busy")
    end_call(busy)
    assert len(busy.dial().calls) == 1


def test_offer_waits_in_front_again_after_redis_was_flushed(busy: Floor) -> None:
    assert propose(busy, "offer:1") == NoLine.because("lines_busy")
    client().flushdb()
    generation.ensure_generation()
    assert propose(busy, "offer:1") == NoLine.because("lines_busy")
    end_call(busy)
    assert not busy.dial().calls
    assert isinstance(propose(busy, "offer:1"), LineProposal)
