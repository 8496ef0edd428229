"""Check that the event log of real leads is accepted, and that two calls on one line are refused."""

from __future__ import annotations

import pytest

from dispatch.core import clock
from dispatch.core.events import history
from dispatch.core.models import Event
from dispatch.telephony.models import Call
from dispatch.telephony.providers.base import RateLimited
from dispatch.telephony.services.bulk import RequestResult
from tests.harness.leads import Floor
from tests.support.histories import history_is_legal, undone

pytestmark = pytest.mark.floor(lines=1)


def test_histories_of_leads_are_accepted_and_broken_ones_refused(floor: Floor) -> None:
    floor.add_many(3)
    floor.work()
    assert set(floor.outcomes()) == {"answered"}
    assert history_is_legal().subjects == 3

    first, second, _ = Call.objects.order_by("id")
    with undone():
        Event.objects.filter(kind="lead.finished", subject_id=first.subject_id).delete()
        lines = list(history.violations())
        assert any(
            line.startswith(f"line 1 of number {floor.number.pk}: call {second.pk} takes it") for line in lines
        )
        assert f"lead {first.subject_id}: its row is finished, but its events end with processing" in lines, lines


def test_histories_of_retried_leads_are_accepted(floor: Floor) -> None:
    (lead_id,) = floor.add_many(1)
    floor.promote()
    floor.settle(
        [RequestResult(asked.call_id, asked.call, RateLimited(1.0, "later")) for asked in floor.claim().calls]
    )
    assert floor.told(lead_id) == ["created", "processing", "again"]
    history_is_legal()
    clock.travel(3600.0)
    floor.work()
    assert floor.told(lead_id)[3:] == ["processing", "finished"]
    history_is_legal()
