"""An outcome that is reported after the end of the call follows its rule like one reported during the call."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from dispatch.core import clock
from dispatch.core.events import SYSTEM, history
from dispatch.leads import eligibility
from dispatch.leads.models import Campaign, DispositionRule, DoNotCall, Lead
from dispatch.leads.services import actions, completion
from dispatch.telephony.models import Call, CallEvent
from tests.api.client import Api
from tests.harness.leads import Floor
from tests.support import factories as make

pytestmark = pytest.mark.django_db(transaction=True)

ANN = "+16025550101"


@pytest.fixture
def api(floor: Floor) -> Api:
    """The campaign's rules: "gone" is not called again, "not_now" is, after 72 hours."""
    for disposition, then in (("not_now", "again"), ("gone", "finish")):
        DispositionRule.objects.create(
            organization=floor.organization, campaign=floor.campaign, disposition=disposition, then=then,
            delay_h=72,
        )  # fmt: skip
    eligibility.reset()
    floor.use_provider("noop")
    return Api(key=make.api_key(floor.organization, "leads:write", "read"))


def call(floor: Floor, status: str = "completed") -> int:
    """Call a new lead, whose call ends with this status. Return the lead's id."""
    (lead,) = floor.add(ANN)
    floor.promote()
    floor.dial()
    end_call(lead, status)
    return lead


def end_call(lead: int, status: str) -> None:
    row = Call.objects.filter(subject_id=lead).latest("attempt")
    CallEvent.objects.create(
        organization_id=row.organization_id, call=row, key="voice:1", kind="voice", payload={}
    )
    row.status, row.ended_at = status, clock.now()
    row.save()
    completion.call_changed(row)


def report(api: Api, lead: int, disposition: str, **more: Any) -> Lead:
    response = api.post(f"leads/{lead}/outcome/", {"disposition": disposition, **more})
    assert response.status_code == 200, response.text
    row = Lead.objects.get(pk=lead)
    assert response.json()["status"] == row.status
    return row


def assert_history_is_legal() -> None:
    """Check the events of leads. Those of calls are missing, because these tests end calls without a provider."""
    assert [line for line in history.violations() if line.startswith("lead ")] == []


def test_lead_that_waits_for_its_retry_ends_by_the_rule(floor: Floor, api: Api) -> None:
    lead = call(floor, "busy")
    assert floor.lead(lead).reason == "retry"
    row = report(api, lead, "gone")
    assert (row.status, row.outcome, row.reason, row.disposition) == ("finished", "busy", "called", "gone")
    clock.travel(86_400)
    assert floor.work() == 0
    assert floor.told(lead)[-2:] == ["finished", "outcome_reported"]
    assert_history_is_legal()


def test_retry_outside_the_hours_ends_by_the_rule(floor: Floor, api: Api) -> None:
    lead = call(floor, "busy")
    Campaign.objects.update(weekdays=[(clock.now().weekday() + 4) % 7])
    eligibility.reset()
    clock.travel(7300)
    floor.work()
    assert floor.lead(lead).reason == "outside_window"
    assert report(api, lead, "gone").outcome == "busy"


def test_answered_lead_is_called_again_by_the_rule(floor: Floor, api: Api) -> None:
    lead = call(floor)
    assert floor.lead(lead).outcome == "answered"
    row = report(api, lead, "not_now")
    assert (row.status, row.outcome, row.reason, row.attempts) == ("backlog", "", "retry", 1)
    assert timedelta(hours=71) < row.due_at - clock.now() <= timedelta(hours=72)
    assert_history_is_legal()
    clock.travel(72 * 3600 + 1)
    floor.promote()
    assert len(floor.claim().calls) == 1
    assert floor.lead(lead).disposition == "", "the outcome was that of the earlier call"


def test_retry_is_moved_by_the_rule_and_only_by_news(floor: Floor, api: Api) -> None:
    lead = call(floor, "busy")
    row = report(api, lead, "not_now")
    assert (row.status, row.reason, row.attempts) == ("backlog", "retry", 1)
    assert timedelta(hours=71) < row.due_at - clock.now() <= timedelta(hours=72)
    clock.travel(60)
    assert report(api, lead, "not_now").due_at == row.due_at


def test_corrected_outcome_replaces_the_effect_of_the_first(floor: Floor, api: Api) -> None:
    lead = call(floor)
    assert report(api, lead, "not_now").status == "backlog"
    assert report(api, lead, "gone").outcome == "answered"
    assert report(api, lead, "not_now").status == "backlog"
    assert_history_is_legal()


def test_lead_without_attempts_left_stays_ended(floor: Floor, api: Api) -> None:
    Campaign.objects.update(max_attempts=1)
    lead = call(floor)
    row = report(api, lead, "not_now")
    assert (row.status, row.outcome) == ("finished", "answered")


def test_lead_that_was_canceled_stays_ended(floor: Floor, api: Api) -> None:
    lead = call(floor, "busy")
    actions.cancel_lead(lead, actor=SYSTEM)
    assert report(api, lead, "not_now").outcome == "cancelled"


def test_lead_that_was_canceled_during_its_call_stays_ended(floor: Floor, api: Api) -> None:
    (lead,) = floor.add(ANN)
    floor.promote()
    floor.dial()
    Lead.objects.filter(pk=lead).update(cancel_requested_at=clock.now())  # as it is hung up
    end_call(lead, "completed")
    assert report(api, lead, "not_now").outcome == "answered"


def test_lead_that_ended_for_another_reason_stays_ended(floor: Floor, api: Api) -> None:
    lead = call(floor, "busy")
    DoNotCall.objects.create(organization=floor.organization, phone=ANN)
    clock.travel(7300)
    floor.work()
    assert report(api, lead, "not_now").outcome == "do_not_call"


def test_outcome_is_recorded_although_another_lead_to_the_phone_is_open(floor: Floor, api: Api) -> None:
    lead = call(floor)
    floor.add(ANN, at=floor.due_in(3600))
    row = report(api, lead, "not_now")
    assert (row.status, row.disposition) == ("finished", "not_now")


@pytest.mark.parametrize("is_during_call", [True, False])
def test_call_back_that_was_asked_for_precedes_the_rule(floor: Floor, api: Api, is_during_call: bool) -> None:
    at = clock.now() + timedelta(days=2)
    (lead,) = floor.add(ANN)
    floor.promote()
    floor.dial()
    if is_during_call:
        report(api, lead, "asked_later", call_back_at=at.isoformat())
        end_call(lead, "completed")
    else:
        end_call(lead, "completed")
        report(api, lead, "asked_later", call_back_at=at.isoformat())
    for disposition in ("gone", "not_now"):
        row = report(api, lead, disposition)
        assert (row.status, row.reason) == ("backlog", "call_back")
        assert abs(row.due_at - at) < timedelta(seconds=1)


def test_outcome_that_is_reported_before_the_first_call_has_no_effect(floor: Floor, api: Api) -> None:
    (lead,) = floor.add(ANN)
    assert report(api, lead, "gone").status == "backlog"
    floor.promote()
    assert len(floor.claim().calls) == 1


def test_outcome_after_a_call_that_was_never_placed_has_no_effect(floor: Floor, api: Api) -> None:
    lead = call(floor, "not_placed")
    assert floor.lead(lead).reason == "not_accepted"
    assert report(api, lead, "gone").reason == "not_accepted"
