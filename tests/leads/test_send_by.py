"""Nothing is sent after `send_by`, which lies within the calling hours."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from datetime import time as wall
from typing import Any

import pytest

from dispatch.capacity.models import ProviderAccount
from dispatch.core import clock
from dispatch.leads import dialer
from dispatch.telephony.models import Call
from dispatch.telephony.providers.base import CallRequest, Outcome
from tests.benchmarks import noop_provider
from tests.harness.leads import Floor
from tests.support.waiting import wait_until

pytestmark = pytest.mark.django_db(transaction=True)

PHONE = "+16025550101"  # Arizona: UTC-7 all year
TAKES_S = 1.5
_seconds_left = dialer._seconds_left
_measured = threading.local()


class Slow(noop_provider.Noop):
    """A provider whose client blocks for longer than the time in which a call must be requested."""

    is_async = False
    asked: list[tuple[str, datetime, float]] = []
    left: list[float] = []  # as the thread that asks has measured it
    _lock = threading.Lock()

    def place(self, order: CallRequest) -> Outcome:
        with self._lock:
            self.asked.append((order.to, clock.now(), order.leave_within_s))
            self.left.append(_measured.left_s)
        time.sleep(TAKES_S)  # the provider's time
        return super().place(order)


def measure(request: Any) -> float:
    """Return the seconds left, and note them for the thread that has measured them."""
    _measured.left_s = _seconds_left(request)
    return float(_measured.left_s)


def make(account: ProviderAccount) -> Slow:
    return Slow("completed")


@pytest.fixture
def floor(settings: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[Floor]:
    monkeypatch.setattr(dialer, "_seconds_left", measure)
    settings.PROVIDER_MODULES = {**noop_provider.MODULES, "slow": __name__}
    settings.CALL_SEND_WINDOW_S = 1.0
    settings.LEADS_ASK_THREADS = 3  # an account may use two
    Slow.asked.clear()
    Slow.left.clear()
    made = Floor("slow", lines=20)
    yield made
    made.stop()


def test_no_request_begins_after_its_send_by(floor: Floor) -> None:
    ids = floor.add_many(8)
    floor.start()
    wait_until(lambda: floor.outcomes(ids) == {"answered": 8}, interval=0.1)
    send_by: dict[str, list[datetime]] = {str(call.to_phone): [] for call in Call.objects.all()}
    for call in Call.objects.all():
        assert call.send_by is not None
        send_by[str(call.to_phone)].append(call.send_by)
    assert len(Slow.asked) == 8
    for phone, at, leave_within_s in Slow.asked:
        in_time = [moment for moment in send_by[phone] if at <= moment <= at + timedelta(seconds=1)]
        assert in_time, (at, leave_within_s, send_by[phone])
        assert 0 < leave_within_s <= 1
        assert leave_within_s >= (in_time[0] - at).total_seconds()
    assert [leave_within_s for _, _, leave_within_s in Slow.asked] == Slow.left


def local(hour: int, minute: int, second: int, ms: int = 0) -> datetime:
    """Return that wall-clock time in Arizona, on the next day."""
    day = (clock.now() + timedelta(days=1)).astimezone(UTC)
    moment = day.replace(hour=(hour + 7) % 24, minute=minute, second=second, microsecond=ms * 1000)
    return moment + timedelta(days=1) if hour + 7 >= 24 else moment


@pytest.mark.parametrize(
    ("closes", "now", "most_s"),
    [
        (wall(21, 0), (20, 59, 56), 4.0),
        (wall(21, 0), (20, 59, 50), 5.0),
        (wall(22, 0), (20, 59, 56), 5.0),  # a quarter of an hour ends, and the hours go on
    ],
)
def test_a_request_must_leave_before_the_hours_end(
    floor: Floor, settings: Any, closes: wall, now: tuple[int, int, int], most_s: float
) -> None:
    settings.CALL_SEND_WINDOW_S = 5.0
    floor.campaign.window_from, floor.campaign.window_until = wall(9, 0), closes
    floor.campaign.save()
    begin = local(*now)
    clock.travel((begin - clock.now()).total_seconds())
    floor.add(PHONE)
    floor.promote()
    (to_ask,) = floor.claim().calls
    call = Call.objects.get()
    assert call.send_by == to_ask.send_by
    end = begin + timedelta(seconds=most_s)
    if most_s < 5:
        assert to_ask.send_by <= end
    else:
        assert to_ask.send_by >= end
