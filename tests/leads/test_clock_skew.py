"""A dialer whose clock is behind that of Redis."""

from __future__ import annotations

import pytest

from dispatch.core import clock
from tests.harness.leads import Floor

pytestmark = pytest.mark.django_db(transaction=True)

BEHIND_S = 20


def test_a_lead_that_is_not_due_yet_waits_by_the_dialers_clock(
    floor: Floor, monkeypatch: pytest.MonkeyPatch
) -> None:
    (lead,) = floor.add_many(1, at=floor.due_in(60))
    real = clock.offset_ms
    monkeypatch.setattr(clock, "offset_ms", lambda: real() + BEHIND_S * 1000)
    clock.travel(45)
    floor.promote()
    assert floor.in_redis() == {"rooms": 1, f"room:{floor.pool.pk}": 1}, "it is due by the clock of Redis"
    assert not floor.claim().calls
    floor.promote()
    assert floor.in_redis() == {"schedule": 1}, "it is not taken again and again"
    assert floor.lines_in_use() == 0
    clock.travel(16)
    assert floor.work() == 1
    assert floor.lead(lead).outcome == "answered"
