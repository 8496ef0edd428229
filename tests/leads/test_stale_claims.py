"""A claim that nobody can end delays the end of no other."""

from __future__ import annotations

import threading

import pytest
from django.db import connections, transaction

from dispatch.core import clock
from dispatch.core.db.lock_waits import RecentlyBlocked
from dispatch.leads.models import Lead
from dispatch.leads.services import completion, reconciliation
from dispatch.telephony.models import Call
from tests.harness.leads import Floor
from tests.support.waiting import PATIENCE

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.floor(lines=20)]


def stale_claims(floor: Floor, count: int) -> list[int]:
    """Leads whose calls have ended without a word to them, the longest waiting first."""
    ids = floor.add_many(count)
    floor.promote()
    floor.claim()
    floor.end_calls_unreported()
    clock.travel(600)
    return list(Lead.objects.filter(pk__in=ids).order_by("claimed_at", "pk").values_list("pk", flat=True))


def test_failing_claim_does_not_stop_others(floor: Floor, monkeypatch: pytest.MonkeyPatch) -> None:
    bad, worse, *others = stale_claims(floor, 6)
    real = completion.call_changed

    def fails(call: Call) -> None:
        if call.subject_id in (bad, worse):
            raise KeyError("no such rule")
        real(call)

    with monkeypatch.context() as patch:
        patch.setattr(completion, "call_changed", fails)
        for _ in range(4):
            reconciliation.end_stale_claims(limit=2)
        assert floor.outcomes(others) == {"answered": 4}
        assert floor.outcomes([bad, worse]) == {"processing": 2}
    RecentlyBlocked.reset_all()
    floor.step("leads_stale")
    assert floor.outcomes([bad, worse]) == {"answered": 2}


def test_claim_with_a_locked_row_is_skipped(floor: Floor) -> None:
    held, *others = stale_claims(floor, 4)
    begun, done = threading.Event(), threading.Event()

    def hold() -> None:
        try:
            with transaction.atomic():
                Lead.objects.select_for_update(no_key=True).get(pk=held)
                begun.set()
                assert done.wait(2 * PATIENCE)
        finally:
            connections.close_all()

    holder = threading.Thread(target=hold, daemon=True)
    holder.start()
    assert begun.wait(PATIENCE)
    finished = threading.Event()

    def step() -> None:
        try:
            floor.step("leads_stale")
            finished.set()
        finally:
            connections.close_all()

    stepping = threading.Thread(target=step, daemon=True)
    stepping.start()
    try:
        assert finished.wait(PATIENCE), "the step waits for the row"
        assert floor.outcomes(others) == {"answered": 3}
    finally:
        done.set()
        holder.join(PATIENCE)
        stepping.join(PATIENCE)
    floor.step("leads_stale")
    assert floor.outcomes() == {"answered": 4}
