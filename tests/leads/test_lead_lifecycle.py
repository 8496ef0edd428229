"""A lead from its row to its call and the call's end, step by step, with a provider that makes no calls."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import pytest

from dispatch.core import clock, fault_injection
from dispatch.core.events import SYSTEM
from dispatch.core.models import Event
from dispatch.core.redis.client import client, connect
from dispatch.leads import redis_queue
from dispatch.leads.models import Campaign, DoNotCall, EngineSwitch, Lead, LeadDispatch
from dispatch.leads.rules.states import Reason
from dispatch.leads.services import actions, claims, completion, switches
from dispatch.leads.services.claims import ClaimResult
from dispatch.leads.services.intake import NewLead
from dispatch.telephony.models import Call
from dispatch.telephony.providers.base import Outcome, RateLimited, Rejected, Submitted, Unknown
from dispatch.telephony.services import sms
from dispatch.telephony.services.bulk import RequestResult
from tests.benchmarks import noop_provider
from tests.harness.leads import Floor
from tests.support import factories
from tests.support.waiting import PATIENCE, wait_until

pytestmark = pytest.mark.django_db(transaction=True)

ANN, BOB, CAT = "+16025550101", "+16025550102", "+16025550103"


@pytest.fixture
def floor(settings: Any) -> Floor:
    settings.PROVIDER_MODULES = noop_provider.MODULES
    return Floor()


def answered(floor: Floor, outcome: Outcome) -> None:
    """Promote and claim all leads, and let the provider respond with this outcome."""
    floor.promote()
    claimed = floor.claim()
    assert claimed.calls
    floor.settle([RequestResult(to_ask.call_id, to_ask.call, outcome) for to_ask in claimed.calls])


def nothing_is_held(floor: Floor) -> None:
    assert {name for name in floor.in_redis() if name.startswith("held")} == set()
    assert floor.lines_in_use() == Call.objects.filter(ended_at=None).count()


# --- The normal path


def test_a_due_lead_is_called_once_and_finished(floor: Floor) -> None:
    (lead,) = floor.add(ANN)

    assert floor.work() == 1

    row = floor.lead(lead)
    assert (row.status, row.outcome, row.attempts, row.token) == ("finished", "answered", 1, 1)
    (call,) = floor.calls(lead)
    assert (call.status, str(call.to_phone), call.attempt) == ("completed", ANN, 1)
    assert floor.told(lead) == ["created", "processing", "finished"]
    assert floor.in_redis() == {}
    nothing_is_held(floor)


def test_nobody_is_called_before_they_are_due(floor: Floor) -> None:
    (lead,) = floor.add(ANN, at=floor.due_in(60))
    assert floor.work() == 0
    clock.travel(25)
    assert floor.work() == 0
    assert floor.in_redis()["schedule"] == 1
    clock.travel(35.1)
    assert floor.work() == 1
    assert floor.lead(lead).outcome == "answered"


def test_the_promoter_sleeps_until_the_next_is_due(floor: Floor, settings: Any) -> None:
    settings.LEADS_TICK_S = 900.0
    assert floor.promote() == 900.0
    floor.add(ANN, at=floor.due_in(300))
    wish = floor.promote()
    assert wish is not None
    assert 100 < wish <= 300


def test_an_earlier_lead_wakes_the_promoter_and_a_later_one_does_not(floor: Floor) -> None:
    heard = heard_on(redis_queue.notification_channel())
    floor.add(ANN, at=floor.due_in(60))
    assert heard() == [redis_queue.PROMOTER]
    floor.add(BOB, at=floor.due_in(90))
    assert heard() == []
    floor.add(CAT, at=floor.due_in(30))
    assert heard() == [redis_queue.PROMOTER]


def test_wakeup_names_the_pool_of_one_lead_but_not_of_many(floor: Floor) -> None:
    heard = heard_on(redis_queue.wakeup_channel())
    floor.add_many(1)
    floor.promote()
    assert heard() == [f"one:{floor.pool.pk}"]
    floor.add_many(2)
    floor.promote()
    assert heard() == ["due"]


def test_calls_are_committed_before_redis_is_updated(floor: Floor) -> None:
    floor.add_many(2)
    floor.promote()
    seen = []

    def committed(claimed: ClaimResult) -> None:
        (held,) = (count for name, count in floor.in_redis().items() if name.startswith("held:tester:"))
        seen.append((len(claimed.calls), Call.objects.count(), held))

    claims.claim_leads("tester", floor.pool.pk, 100, committed)
    assert seen == [(2, 2, 2)]
    assert floor.in_redis() == {}


def test_many_are_written_with_one_event_and_an_answer_for_each(floor: Floor) -> None:
    first = floor.accept([NewLead(ANN, external_id="a"), NewLead("nonsense"), NewLead("602 555 0102")])
    assert [bool(answer.id) for answer in first] == [True, False, True]
    assert first[1].error == "not a phone number"
    again = floor.accept([NewLead(ANN, external_id="a"), NewLead(CAT, external_id="c"), NewLead(CAT, lat=1.0)])
    assert [(answer.id == first[0].id, answer.is_new) for answer in again[:2]] == [(True, False), (False, True)]
    assert "lng" in again[2].error
    counts = Event.objects.filter(kind="campaign.leads_added").values_list("data__count", flat=True)
    assert list(counts.order_by("id")) == [2, 1]
    assert Lead.objects.count() == 3
    assert floor.work() == 3


@pytest.mark.parametrize("phone", ["+19005550101", "+442079460000", "+11115550101", "+1602555010", "", "+"])
def test_uncallable_number_is_rejected_on_intake(floor: Floor, phone: str) -> None:
    (answer,) = floor.accept([NewLead(phone)])
    assert answer.id is None
    assert answer.error


# --- The provider's responses


def test_a_refused_number_is_invalid_for_good(floor: Floor) -> None:
    (lead,) = floor.add(ANN)
    answered(floor, Rejected(True, "21211", "not a number", "number"))
    assert floor.lead(lead).outcome == "invalid_number"
    assert floor.calls(lead)[0].status == "rejected"
    nothing_is_held(floor)


def test_rate_limited_lead_is_retried_without_an_attempt(floor: Floor) -> None:
    (lead,) = floor.add(ANN)
    answered(floor, RateLimited(70.0))
    row = floor.lead(lead)
    assert (row.status, row.reason, row.attempts, row.token) == ("backlog", Reason.NOT_ACCEPTED, 0, 1)
    nothing_is_held(floor)
    assert floor.work() == 0
    clock.travel(70.1)
    assert floor.work() == 1
    assert [call.status for call in floor.calls(lead)] == ["not_placed", "completed"]
    assert floor.lead(lead).attempts == 1


def test_rate_limited_account_takes_no_leads_until_then(floor: Floor) -> None:
    ids = floor.add(ANN, BOB)
    floor.promote()
    claimed = floor.claim(1)
    (to_ask,) = claimed.calls
    floor.settle([RequestResult(to_ask.call_id, to_ask.call, RateLimited(70.0))])
    assert floor.claim().why == "rate"
    assert floor.outcomes(ids) == {"backlog": 2}


def test_an_unknown_outcome_keeps_its_line_and_is_never_asked_again(floor: Floor) -> None:
    (lead,) = floor.add(ANN)
    answered(floor, Unknown("time-out"))
    assert floor.status(lead) == "processing"
    assert floor.lines_in_use() == 1
    assert floor.work() == 0
    call = floor.calls(lead)[0]
    assert call.status == "unknown"
    assert Event.objects.filter(kind="call.unknown", subject_id=call.pk).count() == 1


def test_unanswered_call_is_retried_by_the_rules_then_exhausted(floor: Floor) -> None:
    floor.campaign.max_attempts = 2
    floor.campaign.save()
    (lead,) = floor.add(ANN)
    answered(floor, Submitted("CA1", "no_answer"))
    row = floor.lead(lead)
    assert (row.status, row.reason, row.last_outcome, row.attempts) == ("backlog", "retry", "no_answer", 1)
    assert row.due_at > clock.now() + timedelta(minutes=30)
    assert floor.told(lead)[-1] == "again"
    clock.travel(2 * 3600)
    answered(floor, Submitted("CA2", "no_answer"))
    row = floor.lead(lead)
    assert (row.outcome, row.last_outcome, row.attempts, row.token) == ("attempts_exhausted", "no_answer", 2, 2)
    assert [call.attempt for call in floor.calls(lead)] == [1, 2]


def test_end_of_a_call_counts_once_and_of_another_attempt_never(floor: Floor) -> None:
    (lead,) = floor.add(ANN)
    answered(floor, Submitted("CA1"))
    call = floor.calls(lead)[0]
    assert (floor.status(lead), call.status) == ("processing", "submitted")
    Call.objects.filter(pk=call.pk).update(status="busy", ended_at=clock.now())
    for _ in range(2):
        completion.call_changed(call)
    assert floor.told(lead).count("again") == 1
    assert floor.lead(lead).last_outcome == "busy"
    clock.travel(2 * 3600)
    answered(floor, Submitted("CA2"))
    completion.call_changed(call)
    assert floor.status(lead) == "processing"


# --- Eligibility and limits


def test_deferred_lead_is_rescheduled_and_releases_its_line(floor: Floor) -> None:
    floor.campaign.is_paused = True
    floor.campaign.save()
    (lead,) = floor.add(ANN)
    assert floor.work() == 0
    row = floor.lead(lead)
    assert (row.status, row.reason) == ("backlog", Reason.CAMPAIGN_PAUSED)
    assert row.due_at > clock.now() + timedelta(days=1)
    assert floor.told(lead) == ["created"]
    nothing_is_held(floor)

    floor.campaign.is_paused = False
    floor.campaign.save()
    assert switches.release_leads([Reason.CAMPAIGN_PAUSED], campaign_id=floor.campaign.pk) == 1
    assert floor.work() == 1


def test_opted_out_phone_is_not_called(floor: Floor) -> None:
    (lead,) = floor.add(ANN)
    DoNotCall.objects.create(organization=floor.organization, phone=ANN)
    assert floor.work() == 0
    assert floor.lead(lead).outcome == "do_not_call"
    assert floor.told(lead) == ["created", "finished"]
    nothing_is_held(floor)


def test_stop_by_text_prevents_calls(floor: Floor) -> None:
    sms.opt_out(floor.organization.pk, ANN)
    (lead,) = floor.add(ANN)
    assert floor.work() == 0
    assert floor.lead(lead).outcome == "do_not_call"


def test_the_kill_switch_stops_all_and_loses_nothing(floor: Floor) -> None:
    (lead,) = floor.add(ANN)
    switch = EngineSwitch.objects.create(pk=1, is_stopped=True)
    floor.promote()
    claimed = floor.claim()
    assert (claimed.calls, claimed.why) == ([], "stopped")
    assert floor.lead(lead).reason == ""
    nothing_is_held(floor)
    switch.is_stopped = False
    switch.save()
    assert floor.work() == 1


def test_no_more_calls_at_once_than_lines_and_the_next_when_one_ends(floor: Floor) -> None:
    use(floor, provider="noop")
    ids = floor.add_many(8)
    floor.promote()
    floor.settle(floor.ask(floor.claim()))
    assert floor.outcomes(ids) == {"processing": 5, "backlog": 3}
    assert floor.claim().why == "lines_busy"
    slots = Call.objects.filter(ended_at=None).values_list("line_slot", flat=True)
    assert sorted(slots) == [1, 2, 3, 4, 5]
    heard = heard_on(redis_queue.wakeup_channel())
    hang_up(Call.objects.filter(ended_at=None).order_by("pk")[0])
    assert heard() == [f"line:{floor.pool.pk}"]
    assert len(floor.dial().calls) == 1
    assert floor.claim().why == "lines_busy"


def test_reserved_lines_are_not_for_leads(floor: Floor) -> None:
    use(floor, provider="noop")
    floor.number.reserved_for_offers, floor.number.reserved_for_alerts = 2, 1
    floor.number.save()
    floor.add_many(4)
    floor.promote()
    assert len(floor.dial().calls) == 2
    assert floor.claim().why == "lines_busy"


def test_the_pools_concurrency_holds(floor: Floor) -> None:
    use(floor, provider="noop")
    floor.pool.concurrency = 3
    floor.pool.save()
    floor.add_many(5)
    floor.promote()
    assert len(floor.dial().calls) == 3
    assert floor.claim().why == "pool_full"


def test_the_pools_rate_holds_in_any_minute(floor: Floor) -> None:
    floor.pool.rate_per_minute = 3
    floor.pool.save()
    floor.add_many(5)
    assert floor.work() == 3
    claimed = floor.claim()
    assert claimed.why == "rate"
    assert 0 < claimed.wait_s <= 60
    clock.travel(60.1)
    assert floor.work() == 2


def test_an_accounts_pace_holds_and_its_turns_are_spread(floor: Floor) -> None:
    floor.account.calls_per_second = 50.0
    floor.account.save()
    floor.add_many(20)
    floor.promote()
    claimed = floor.claim()
    turns = [to_ask.turn_at for to_ask in claimed.calls]
    # what one reserves lies within a tenth of a second: at 50 a second, the present and five more
    assert 1 <= len(turns) <= 6
    gaps = [(later - earlier).total_seconds() for earlier, later in itertools.pairwise(turns)]
    assert all(gap == pytest.approx(0.02, abs=0.001) for gap in gaps)
    assert floor.outcomes() == {"processing": len(turns), "backlog": 20 - len(turns)}
    assert floor.in_redis()[f"room:{floor.pool.pk}"] == 20 - len(turns)


def test_two_leads_to_one_phone_are_never_called_at_once(floor: Floor) -> None:
    use(floor, provider="noop")
    Campaign.objects.update(allows_duplicates=True)
    floor.campaign.refresh_from_db()
    ids = floor.add(ANN, ANN)
    floor.promote()
    assert len(floor.dial().calls) == 1
    assert floor.outcomes(ids) == {"processing": 1, "backlog": 1}
    waiting = Lead.objects.get(status="backlog")
    assert waiting.reason == Reason.PHONE_BUSY
    assert floor.lines_in_use() == 1
    hang_up(Call.objects.get())
    clock.travel(11)
    floor.promote()
    assert len(floor.dial().calls) == 1


def test_line_lost_by_redis_is_refused_by_postgres_and_repaired(floor: Floor) -> None:
    use(floor, provider="noop")
    floor.number.max_channels = 1
    floor.number.save()
    first, second = floor.add(ANN, BOB)
    floor.promote()
    assert len(floor.dial(1).calls) == 1
    from dispatch.capacity import redis_scripts

    redis_scripts.run_script(redis_scripts.RELEASE, [f"lead:{first}:1"])  # in Redis the line is free
    assert floor.dial().calls == []
    assert floor.lines_in_use() == 1
    assert floor.status(second) == "backlog"
    assert Call.objects.count() == 1


def test_a_paused_tenant_does_not_hold_up_a_busy_one(floor: Floor) -> None:
    other = factories.organization()
    LeadDispatch.objects.create(organization=other, mode="live", is_paused=True)
    account = factories.account(other, provider="noop-ends")
    pool = factories.pool(other)
    factories.number(other, account=account, pool=pool)
    theirs = floor.add_campaign(organization=other, pool=pool)
    held = floor.add_many(30, to=theirs)
    mine = floor.add_many(30)
    pools = redis_queue.ready_pools()
    assert floor.work() == 30
    assert floor.outcomes(mine) == {"answered": 30}
    assert floor.outcomes(held) == {"backlog": 30}
    assert pools == []
    assert redis_queue.ready_pools() == [pool.pk]


# --- User actions


def test_a_cancelled_lead_leaves_the_schedule(floor: Floor) -> None:
    ready, waiting = floor.add(ANN)[0], floor.add(BOB, at=floor.due_in(60))[0]
    floor.promote()
    for lead in (ready, waiting, waiting):
        assert actions.cancel_lead(lead, actor=SYSTEM).outcome == "cancelled"
    assert floor.in_redis() in ({}, {"rooms": 1})
    assert floor.work() == 0
    assert floor.told(waiting) == ["created", "finished"]


def test_lead_in_a_call_cannot_be_cancelled(floor: Floor) -> None:
    (lead,) = floor.add(ANN)
    floor.promote()
    floor.claim()
    with pytest.raises(actions.LeadConflict, match="being called"):
        actions.cancel_lead(lead, actor=SYSTEM)
    assert floor.status(lead) == "processing"


def test_cancelled_between_taking_and_claiming_it_is_not_called(floor: Floor) -> None:
    (lead,) = floor.add(ANN)
    floor.promote()
    with fault_injection.arm_crash_point("leads.claim.taken", lambda: actions.cancel_lead(lead, actor=SYSTEM)):
        claimed = floor.claim()
    assert claimed.calls == []
    assert floor.lead(lead).outcome == "cancelled"
    nothing_is_held(floor)


def test_dispatch_now_passes_every_eligibility_check(floor: Floor) -> None:
    early, refused = floor.add(ANN, BOB, at=floor.due_in(3600))
    DoNotCall.objects.create(organization=floor.organization, phone=BOB)
    for lead in (early, refused):
        actions.dispatch_now(lead, actor=SYSTEM)
    assert floor.work() == 1
    assert floor.lead(early).outcome == "answered"
    assert floor.lead(refused).outcome == "do_not_call"
    with pytest.raises(actions.LeadConflict, match="has ended"):
        actions.dispatch_now(early, actor=SYSTEM)


def test_a_campaign_that_moves_to_another_pool_takes_its_leads_along(floor: Floor) -> None:
    (lead,) = floor.add(ANN)
    floor.promote()
    other = factories.pool(floor.organization)
    factories.number(floor.organization, pool=other, account=floor.account)
    floor.campaign.pool = other
    floor.campaign.save()
    assert floor.dial().calls == []
    nothing_is_held(floor)
    floor.pool = other
    assert len(floor.dial().calls) == 1
    assert floor.calls(lead)[0].pool_id == other.pk


# --- Helpers


@dataclass
class _Heard:
    listener: Any
    channel: str

    def __call__(self) -> list[str]:
        """Return what was said since the last call."""
        client().publish(self.channel, "that is all")
        found: list[str] = []
        while "that is all" not in found:
            message = self.listener.get_message(timeout=PATIENCE)
            if message and isinstance(message["data"], bytes):
                found.append(message["data"].decode())
        return found[:-1]


def heard_on(channel: str) -> Callable[[], list[str]]:
    listener = connect(socket_timeout=PATIENCE).pubsub(ignore_subscribe_messages=True)
    listener.subscribe(channel)
    wait_until(lambda: client().pubsub_numsub(channel)[0][1] == 1)
    return _Heard(listener, channel)


def use(floor: Floor, provider: str) -> None:
    floor.account.provider = provider
    floor.account.save()
    claims.reset()


def hang_up(call: Call) -> None:
    from dispatch.telephony import services

    services.hang_up(call.pk)
