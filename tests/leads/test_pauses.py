"""Each switch takes effect with the next batch, and loses no lead when it is lifted.

The benchmark `leads_pauses` measures how soon.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from dispatch.capacity import services as capacity
from dispatch.capacity.models import ProviderAccount
from dispatch.core.events import SYSTEM
from dispatch.core.models import Event
from dispatch.leads import loops
from dispatch.leads.services import switches
from dispatch.telephony.models import Call
from dispatch.telephony.providers.base import CallRequest, Outcome, Submitted
from tests.benchmarks import noop_provider
from tests.harness.leads import Floor
from tests.support.waiting import PATIENCE, wait_until

pytestmark = pytest.mark.django_db(transaction=True)

# The change of a switch, and the kind of the Event that records it.
SWITCHES: dict[str, tuple[Callable[[Floor, bool], object], str]] = {
    "everything": (
        lambda floor, on: switches.set_engine(is_stopped=on, actor=SYSTEM),
        "lead_engine.switched",
    ),
    "the promoter": (
        lambda floor, on: switches.set_engine(promoter_paused=on, actor=SYSTEM),
        "lead_engine.switched",
    ),
    "the organization": (
        lambda floor, on: switches.set_dispatch(floor.organization.pk, is_paused=on, actor=SYSTEM),
        "lead_dispatch.switched",
    ),
    "the campaign": (
        lambda floor, on: switches.pause_campaign(floor.campaign.pk, on, actor=SYSTEM),
        "campaign.paused",
    ),
    "the pool": (lambda floor, on: capacity.set_paused(floor.pool, on, actor=SYSTEM), "pool.paused"),
    "the number": (lambda floor, on: capacity.set_paused(floor.number, on, actor=SYSTEM), "number.paused"),
}


class Slow(noop_provider.Noop):
    """A provider whose client blocks until it may respond."""

    is_async = False
    may_answer = threading.Event()
    asked = 0

    def place(self, order: CallRequest) -> Outcome:
        type(self).asked += 1
        assert self.may_answer.wait(PATIENCE)
        return super().place(order)


class SlowAsync(Slow):
    """The same with an asynchronous client, which makes two requests at a time for an account."""

    is_async = True
    max_requests = 2

    async def place_async(self, order: CallRequest) -> Outcome:
        type(self).asked += 1
        while not self.may_answer.is_set():
            await asyncio.sleep(0.01)
        return Submitted(f"SLOW-{order.to}", "completed")


def make(account: ProviderAccount) -> Slow:
    """Build the provider; called by name, as in any provider's module."""
    return SlowAsync("completed") if account.provider == "slow-async" else Slow("completed")


@pytest.fixture
def floor(settings: Any) -> Iterator[Floor]:
    settings.PROVIDER_MODULES = {**noop_provider.MODULES, "slow": __name__, "slow-async": __name__}
    Slow.may_answer.clear()
    Slow.asked = SlowAsync.asked = 0
    made = Floor(lines=100)
    yield made
    Slow.may_answer.set()
    made.stop()


@pytest.mark.parametrize("what", SWITCHES)
def test_paused_leads_are_called_after_the_pause_is_lifted(floor: Floor, what: str) -> None:
    switch, told = SWITCHES[what]
    ids = floor.add_many(6)
    if what != "the promoter":
        floor.promote()
        floor.dial(2)
        assert Call.objects.count() == 2

    switch(floor, True)
    wait_until(lambda: loops._is_paused() == (what == "the promoter"))  # it looks again twice a second
    ids += floor.add_many(2)
    before = Call.objects.count()
    for _ in range(3):
        floor.promote()
        floor.dial()
    assert Call.objects.count() == before
    assert floor.lines_in_use() == 0
    assert Event.objects.filter(kind=told).count() == 1

    switch(floor, False)
    wait_until(lambda: not loops._is_paused())
    floor.step(switches.LIFTED)
    floor.work()
    assert floor.outcomes(ids) == {"answered": 8}
    assert Call.objects.count() == 8


def test_slow_provider_gets_few_earlier_claims_after_a_pause(floor: Floor, settings: Any) -> None:
    settings.LEADS_ASK_THREADS, settings.CALL_SEND_WINDOW_S = 3, PATIENCE  # an account may use two
    floor.account.provider = "slow"
    floor.account.save()
    floor.add_many(60)
    floor.start()
    wait_until(lambda: Slow.asked == 2)
    switches.pause_campaign(floor.campaign.pk, True, actor=SYSTEM)
    Slow.may_answer.set()
    wait_until(lambda: "processing" not in floor.outcomes(), message=lambda: str(floor.outcomes()))
    # what is being requested, what waits for the threads, and what the other puller claimed besides
    assert Slow.asked <= 3 * settings.LEADS_ASK_THREADS
    assert Call.objects.count() == Slow.asked


def test_slow_asynchronous_provider_gets_few_earlier_claims_after_a_pause(floor: Floor, settings: Any) -> None:
    settings.LEADS_ASK_THREADS, settings.CALL_SEND_WINDOW_S = 3, PATIENCE
    floor.account.provider = "slow-async"
    floor.account.save()
    floor.add_many(60)
    floor.start()
    wait_until(lambda: SlowAsync.asked >= 4)
    switches.pause_campaign(floor.campaign.pk, True, actor=SYSTEM)
    SlowAsync.may_answer.set()
    wait_until(lambda: "processing" not in floor.outcomes(), message=lambda: str(floor.outcomes()))
    # the first claims, of a client that is not known yet; as many again as run at once; and a batch of each puller
    assert Call.objects.count() == SlowAsync.asked <= 3 + 4 * 2
