"""The phone provider refuses our account, or does not respond: no technician is to blame or used up."""

from __future__ import annotations

import pytest

from dispatch.capacity.models import ProviderAccount
from dispatch.console import health
from dispatch.console.board.attention import find_attention
from dispatch.console.board.cards import state_of
from dispatch.console.board.filters import Filters
from dispatch.console.health import OUTAGES, current_health
from dispatch.core import clock, events
from dispatch.core.models import Event
from dispatch.jobs.models import Offer
from dispatch.technicians.models import Technician
from dispatch.telephony.models import Call
from dispatch.telephony.services.probes import probe_accounts
from tests.phones import answer
from tests.support import factories


def account() -> ProviderAccount:
    return ProviderAccount.objects.get()


def account_events() -> list[str]:
    return list(Event.objects.filter(subject_type="account").order_by("id").values_list("kind", flat=True))


def problems(floor) -> list[str]:
    """Return the problems that need attention on the board."""
    return [item.title for item in find_attention(floor.organization, Filters.of({}), 40).items]


def pass_time(floor, seconds: float) -> None:
    """Second by second, as the dispatcher's loops would see it."""
    until = clock.now().timestamp() + seconds
    while clock.now().timestamp() < until:
        floor.later(1)
        probe_accounts()
        floor.work()
        floor.audit()


def assert_nobody_is_blamed() -> None:
    for technician in Technician.objects.all():
        assert (technician.misses_in_a_row, technician.auto_paused_at) == (0, None)


@pytest.mark.parametrize("code", [20003, 20005, 10001, 20403, 21205])
def test_refused_account_keeps_the_order_of_technicians(floor, code):
    floor.set_policy(auto_pause_misses=1)
    ann, *_ = floor.crew("Ann", "Bob", "Cid")
    floor.sim.fault("refuse", code=code, times=None, on="any")
    job = floor.started()
    assert floor.offers(job) == [("Ann", "provider_refused")]
    assert Offer.objects.get().status == "rescinded"
    assert (floor.status(job), floor.job(job).waiting_for) == ("dispatching", "account")
    assert account_events() == ["account.outage_began"], "known at once"
    assert str(code) in account().outage_reason
    assert current_health(floor.organization).outages == (OUTAGES["refused"],), (
        "also after the alert is acknowledged"
    )
    assert [str(code) in title for title in problems(floor)] == [True]
    pass_time(floor, 60)
    assert floor.offers(job) == [("Ann", "provider_refused")], "no offer is made while the account is refused"
    floor.phone(ann).will(answer(press="1"))
    floor.sim.heal()
    pass_time(floor, 10)
    floor.until(lambda: floor.status(job) == "assigned")
    assert floor.job(job).technician == ann
    assert account_events() == ["account.outage_began", "account.outage_ended"]
    health.reset()
    assert current_health(floor.organization).outages == ()
    assert problems(floor) == [], "the provider accepts the account again"
    assert_nobody_is_blamed()


def test_a_job_of_a_refused_account_is_handed_over_with_that_reason(floor):
    floor.set_policy(line_wait_s=60)
    floor.crew("Ann", "Bob")
    floor.sim.fault("refuse", code=20003, times=None, on="any")
    job = floor.started()
    pass_time(floor, 70)
    assert floor.job(job).pending_reason == "account_refused"
    pending = Event.objects.get(kind="job.pending")
    assert pending.data["reason_text"] == ("The phone provider refused our account: Authenticate (error 20003)")
    assert_nobody_is_blamed()


def test_pending_job_resumes_when_the_account_works_again(floor):
    floor.set_policy(line_wait_s=30)
    ann, _ = floor.crew("Ann", "Bob")
    floor.sim.fault("refuse", code=20005, times=None, on="any")
    left, taken_on = floor.started(), floor.started()
    pass_time(floor, 40)
    assert {floor.job(one).pending_reason for one in (left, taken_on)} == {"account_refused"}
    events.append(floor.organization.pk, "job.claimed", taken_on.pk)
    floor.phone(ann).will(answer(press="1"))
    floor.sim.heal()
    pass_time(floor, 10)
    floor.until(lambda: floor.status(left) == "assigned")
    assert floor.job(left).technician == ann
    assert "job.provider_back" in floor.kinds(left)
    assert floor.status(taken_on) == "pending"


def test_a_phone_that_the_account_may_not_call_is_set_aside_for_others(floor):
    ann, bob = floor.crew("Ann", "Bob")
    floor.sim.fault("refuse", code=21219, times=None, to=str(ann.phone))
    floor.phone(bob).will(answer(press="1"))
    job = floor.started()
    floor.until(lambda: floor.status(job) == "assigned")
    assert floor.offers(job) == [("Ann", "not_permitted"), ("Bob", "accepted")]
    assert account_events() == []
    assert_nobody_is_blamed()


def test_when_no_phone_may_be_called_the_job_waits_and_says_why(floor):
    floor.set_policy(line_wait_s=60)
    (ann,) = floor.crew("Ann")
    floor.sim.fault("refuse", code=21219, times=None, to=str(ann.phone))
    job = floor.started()
    assert floor.offers(job) == [("Ann", "not_permitted")]
    assert floor.job(job).waiting_for == "account"
    pass_time(floor, 65)
    assert floor.job(job).pending_reason == "account_refused"
    assert "21219" in Event.objects.get(kind="job.pending").data["reason_text"]


def test_a_refused_caller_number_leaves_the_call_to_another_account(floor):
    floor.crew("Ann")
    ProviderAccount.objects.update(outage="refused", outage_reason="Authenticate")
    second = factories.account(
        floor.organization,
        account_sid=floor.sim.account_sid,
        auth_token=floor.sim.auth_token,
        calls_per_second=1000.0,
    )
    factories.number(floor.organization, account=second)
    job = floor.started()
    assert floor.offers(job) == [("Ann", "pending")]
    assert Call.objects.get().account_id == second.pk


def test_provider_outage_uses_up_no_technicians_turn(floor):
    floor.set_policy(auto_pause_misses=1)
    ann, *_ = floor.crew("Ann", "Bob", "Cid")
    floor.sim.fault("error_503", times=None, on="any")
    job = floor.started()
    assert Call.objects.get().status == "unknown"
    pass_time(floor, 50)
    assert account_events() == ["account.outage_began"], "within a minute"
    assert floor.job(job).waiting_for == "provider"
    assert state_of(floor.job(job))[1] == "Phone provider not responding"
    assert floor.offers(job) == [("Ann", "provider_silent")]
    pass_time(floor, 60)
    assert floor.offers(job) == [("Ann", "provider_silent")]
    floor.sim.heal()
    floor.phone(floor_technician("Bob")).will(answer(press="1"))
    pass_time(floor, 10)
    floor.until(lambda: floor.status(job) == "assigned")
    assert account_events() == ["account.outage_began", "account.outage_ended"]
    assert floor.calls_made(ann) == 0
    assert_nobody_is_blamed()


def floor_technician(name: str) -> Technician:
    return Technician.objects.get(name=name)


def test_a_job_of_a_silent_provider_is_handed_over_with_that_reason(floor):
    floor.set_policy(line_wait_s=100)
    floor.crew("Ann", "Bob", "Cid")
    floor.sim.fault("error_503", times=None, on="any")
    job = floor.started()
    pass_time(floor, 130)
    assert floor.job(job).pending_reason == "provider_down"
    assert_nobody_is_blamed()


def test_a_provider_that_only_refuses_to_create_is_noticed_within_a_minute(floor):
    floor.crew("Ann", "Bob", "Cid")
    floor.sim.fault("error_503", times=None, on="create")
    floor.started()
    pass_time(floor, 55)
    assert account().outage == "no_answer"
    assert account_events() == ["account.outage_began"]


def test_lost_request_ends_after_ring_time_without_a_miss(floor, settings):
    settings.PROVIDER_TIMEOUT_S = 0.5
    floor.set_policy(auto_pause_misses=1, rounds=1)
    ann, bob = floor.crew("Ann", "Bob")
    floor.sim.time_out_before_creating(times=1, hold=60)
    job = floor.started()
    offer = floor.live_offer(job)
    call = Call.objects.get()
    assert (offer.expires_at - call.requested_at).total_seconds() == call.ring_timeout_s + 15
    assert offer.ringing_since is None
    floor.phone(bob).will(answer(press="1"))
    pass_time(floor, 50)
    floor.until(lambda: floor.status(job) == "assigned")
    assert floor.offers(job) == [("Ann", "provider_silent"), ("Bob", "accepted")]
    assert account().outage == "", "one lost request is no outage"
    assert floor.calls_made(ann) == 0
    assert_nobody_is_blamed()


def test_an_unreachable_provider_is_an_outage_and_no_lack_of_lines(floor, settings):
    settings.SIMULATOR_URL = "http://127.0.0.1:9"
    floor.set_policy(line_wait_s=60)
    floor.crew("Ann", "Bob")
    job = floor.started()
    pass_time(floor, 30)
    assert account().outage == "no_answer"
    assert floor.job(job).waiting_for == "provider"
    pass_time(floor, 40)
    assert floor.job(job).pending_reason == "provider_down"
    assert_nobody_is_blamed()


@pytest.mark.parametrize(
    "fault", [{"kind": "webhook_lost", "times": None}, {"kind": "webhook_slow", "seconds": 4, "purpose": "twiml"}]
)
def test_answered_call_without_webhooks_is_not_a_miss(floor, fault):
    """Either they do not arrive, or no response to the request for the prompt does."""
    floor.set_policy(auto_pause_misses=1)
    ann, bob = floor.crew("Ann", "Bob")
    floor.sim.fault(**fault, to=str(ann.phone))
    floor.phone(ann).will(answer(press="1"))
    floor.phone(bob).will(answer(press="1"))
    job = floor.started()
    floor.until(lambda: floor.sim.calls_to(str(ann.phone))[0].now["status"] == "completed")
    pass_time(floor, 100)
    floor.until(lambda: floor.status(job) == "assigned")
    assert floor.offers(job) == [("Ann", "not_reported"), ("Bob", "accepted")]
    assert_nobody_is_blamed()


def test_offer_without_any_report_is_not_a_miss(floor):
    floor.set_policy(auto_pause_misses=1, answer_timeout_s=50, ring_timeout_s=40)
    ann, bob = floor.crew("Ann", "Bob")
    floor.sim.fault("webhook_lost", times=None, to=str(ann.phone))
    floor.phone(bob).will(answer(press="1"))
    job = floor.started()
    pass_time(floor, 60)
    floor.until(lambda: floor.status(job) == "assigned")
    assert floor.offers(job) == [("Ann", "not_reported"), ("Bob", "accepted")]
    assert_nobody_is_blamed()
