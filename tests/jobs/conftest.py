"""A floor to dispatch from, over the running application and the simulator."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from dispatch.core.db.snapshots import read_snapshot
from dispatch.jobs import sql
from dispatch.jobs.models import Job, Offer
from dispatch.technicians.models import Technician
from dispatch.telephony.models import Call
from tests.harness.jobs import Floor
from tests.harness.lost_phones import lose_phone  # noqa: F401
from tests.phones import Simulator


@pytest.fixture
def floor(app_url: str, sim: Simulator, settings) -> Iterator[Floor]:
    """One organization; at the end of every test its promises must hold."""
    settings.SIMULATOR_URL = sim.base_url
    made = Floor(sim)
    yield made
    promises_hold(made)


def promises_hold(floor: Floor) -> None:
    """What is true at any moment, whatever happened; processes may still act on the jobs."""
    # Counted first: the offer of a call is committed before its request.
    calls_made = {phone: floor.sim.creates_to(phone) for phone in _phones()}
    with read_snapshot():
        _rows_agree(floor, calls_made)


def _phones() -> set[str]:
    return {str(phone) for phone in Technician.objects.values_list("phone", flat=True)}


def _rows_agree(floor: Floor, calls_made: dict[str, int]) -> None:
    for technician in Technician.objects.all():
        live = Offer.objects.filter(technician=technician, status="pending").values_list("pk", flat=True)
        assert list(live) == [pk for pk in [technician.live_offer_id] if pk], floor.story()
        assert technician.open_jobs == Job.objects.filter(technician=technician, status="assigned").count()
        assert technician.planned_times == sql.planned_times(technician.pk)
    for offer in Offer.objects.all():
        calls = calls_made.get(str(offer.technician.phone), 0)
        offered = Offer.objects.filter(technician=offer.technician).count()
        informed = Call.objects.filter(purpose="job_news", to_phone=offer.technician.phone).count()
        assert calls <= offered + informed, (
            f"{offer.technician} was called {calls} times for {offered} offers\n{floor.story()}"
        )
    for job in Job.objects.all():
        assert job.offers.filter(status="accepted").count() <= 1
        if job.status == "dispatching":
            assert (job.next_action_at is None) == (job.paused_at is not None)
