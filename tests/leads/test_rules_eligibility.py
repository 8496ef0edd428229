"""Whether a lead is called now, later or never."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, date, datetime, time, timedelta
from zoneinfo import ZoneInfo

import pytest

from dispatch.leads.rules.calling_hours import hours_of
from dispatch.leads.rules.eligibility import FAR, BatchContext, CustomerRateLimit, RegionRule, check_eligibility
from dispatch.leads.rules.retries import (
    GO,
    CampaignRules,
    Defer,
    End,
    LeadFacts,
    RetryPolicy,
    after_call,
    outcome_of_call,
)
from dispatch.leads.rules.states import Outcome, Reason

EVERY_DAY = tuple((day, time(8), time(21)) for day in range(7))
NOON = datetime(2026, 11, 20, 12, tzinfo=ZoneInfo("America/Phoenix")).astimezone(UTC)
PHOENIX, PENSACOLA, TOLL_FREE = "+16025550100", "+18505550100", "+18005550100"

CAMPAIGN = CampaignRules(
    id=1, organization_id=7, pool_id=3, mode="live", ring_timeout_s=30, time_limit_s=300, detect_machines=False,
    precheck_url="", dial={}, is_paused=False, organization_paused=False, countries=frozenset({"US", "CA"}),
    customer="acme", week=EVERY_DAY, keeps_holidays=True, closed_days=frozenset(), patience_h=168, max_attempts=3,
    max_attempts_24h=2, retries={Outcome.NO_ANSWER: RetryPolicy(delay_s=600, factor=2, attempts=3)},
)  # fmt: skip


def lead(phone: str = PHOENIX, **more: object) -> LeadFacts:
    plain = LeadFacts(
        id=1, organization_id=7, campaign_id=1, phone=phone, lat=None, lng=None, customer="", external_id="",
        attempts=0, token=0, wanted_at=NOON, due_at=NOON, reason="",
    )  # fmt: skip
    return plain._replace(**more)


def batch(now: datetime = NOON, **more: object) -> BatchContext:
    return BatchContext(now, False, {1: CAMPAIGN}, **more)  # type: ignore[arg-type]


def at(zone: str, text: str) -> datetime:
    return datetime.fromisoformat(text).replace(tzinfo=ZoneInfo(zone)).astimezone(UTC)


def test_eligible_lead_is_called():
    assert check_eligibility(lead(), CAMPAIGN, batch()) is GO


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"mode": "off"}, Reason.ORGANIZATION_OFF),
        ({"organization_paused": True}, Reason.ORGANIZATION_PAUSED),
        ({"is_paused": True}, Reason.CAMPAIGN_PAUSED),
    ],
)
def test_manual_pause_waits_for_a_person(change, reason):
    assert check_eligibility(lead(), replace(CAMPAIGN, **change), batch()) == Defer(NOON + FAR, reason)


def test_the_kill_switch_holds_everything():
    stopped = batch()
    stopped.stopped = True
    assert check_eligibility(lead(), CAMPAIGN, stopped) == Defer(NOON + FAR, Reason.STOPPED)


@pytest.mark.parametrize(
    ("given", "more", "end"),
    [
        ({}, {"refused": {(7, PHOENIX)}}, End(Outcome.DO_NOT_CALL, Reason.DO_NOT_CALL)),
        ({}, {"refused_everywhere": {PHOENIX}}, End(Outcome.DO_NOT_CALL, Reason.DO_NOT_CALL)),
        ({}, {"opted_out": {(7, PHOENIX)}}, End(Outcome.DO_NOT_CALL, Reason.OPTED_OUT)),
        (
            {},
            {"refused": {(7, PHOENIX)}, "opted_out": {(7, PHOENIX)}},
            End(Outcome.DO_NOT_CALL, Reason.DO_NOT_CALL),
        ),
        ({"attempts": 3}, {}, End(Outcome.EXHAUSTED, Reason.MOST_ATTEMPTS)),
        ({"phone": "+442079460018"}, {}, End(Outcome.NOT_PLACED, Reason.COUNTRY)),
        ({"phone": "+999"}, {}, End(Outcome.INVALID_NUMBER, Reason.NOT_A_NUMBER)),
    ],
)
def test_reasons_that_end_a_lead(given, more, end):
    assert check_eligibility(lead(**given), CAMPAIGN, batch(**more)) == end


def test_another_organizations_do_not_call_is_not_ours():
    assert check_eligibility(lead(), CAMPAIGN, batch(refused={(8, PHOENIX)})) is GO


def test_outside_the_campaigns_hours_it_waits_until_they_open():
    early = at("America/Phoenix", "2026-11-20 06:00")
    found = check_eligibility(lead(), CAMPAIGN, batch(early))
    assert found == Defer(at("America/Phoenix", "2026-11-20 08:00"), Reason.OUTSIDE_WINDOW)


def test_a_position_says_more_than_the_number():
    evening = at("America/New_York", "2026-11-20 21:30")
    assert isinstance(check_eligibility(lead(PENSACOLA), CAMPAIGN, batch(evening)), Defer)
    assert check_eligibility(lead(PENSACOLA, lat=30.42, lng=-87.21), CAMPAIGN, batch(evening)) is GO  # 20:30 there


def test_a_stricter_state_closes_before_the_campaign_does():
    florida = RegionRule("US", "FL", hours_of("Florida", [(day, time(8), time(20)) for day in range(7)]))
    evening = at("America/New_York", "2026-11-20 20:30")
    miami = lead("+13055550100", wanted_at=evening)
    assert check_eligibility(miami, CAMPAIGN, batch(evening)) is GO
    found = check_eligibility(miami, CAMPAIGN, batch(evening, rules=[florida]))
    assert found == Defer(at("America/New_York", "2026-11-21 08:00"), Reason.STATE_RULE)


def test_a_toll_free_number_may_be_in_the_strictest_of_states():
    florida = RegionRule("US", "FL", hours_of("Florida", [(day, time(8), time(9)) for day in range(7)]))
    assert check_eligibility(lead(TOLL_FREE), CAMPAIGN, batch(rules=[florida])) != GO


def test_on_a_holiday_nobody_is_called():
    thanksgiving = at("America/Phoenix", "2026-11-26 12:00")
    days = {("US", ""): frozenset({date(2026, 11, 26)})}
    waits = Defer(at("America/Phoenix", "2026-11-27 08:00"), Reason.HOLIDAY)
    someone = lead(wanted_at=thanksgiving)
    assert check_eligibility(someone, CAMPAIGN, batch(thanksgiving, holidays=days)) == waits
    assert (
        check_eligibility(someone, replace(CAMPAIGN, keeps_holidays=False), batch(thanksgiving, holidays=days))
        is GO
    )


def test_daily_attempts_count_over_all_campaigns():
    began = [NOON - timedelta(hours=20), NOON - timedelta(hours=3)]
    found = check_eligibility(lead(), CAMPAIGN, batch(dialed={(7, PHOENIX): began}))
    # four hours from now it is 16:00 in Phoenix: the first of the two has left the rolling day
    assert found == Defer(NOON + timedelta(hours=4), Reason.ATTEMPTS_24H)


def test_lead_that_a_limit_of_calls_kept_for_too_long_ends_because_of_it():
    waiting = lead(wanted_at=NOON - timedelta(hours=160))
    dialed = {(7, PHOENIX): [NOON - timedelta(hours=2), NOON - timedelta(hours=1)]}
    found = check_eligibility(waiting, CAMPAIGN, batch(dialed=dialed))
    assert found == End(Outcome.OUTSIDE_WINDOW, Reason.ATTEMPTS_24H)


def test_the_first_moment_is_one_that_all_limits_allow():
    began = [NOON - timedelta(hours=13), NOON - timedelta(hours=1)]  # room at 23:00, which is night
    found = check_eligibility(lead(), CAMPAIGN, batch(dialed={(7, PHOENIX): began}))
    assert found == Defer(at("America/Phoenix", "2026-11-21 08:00"), Reason.OUTSIDE_WINDOW)


def test_lead_that_was_ineligible_for_too_long_ends():
    late = at("America/Phoenix", "2026-11-20 22:00")
    waiting = lead(wanted_at=late - timedelta(hours=160), due_at=late)
    assert check_eligibility(waiting, CAMPAIGN, batch(late)) == End(Outcome.OUTSIDE_WINDOW, Reason.NEVER_PERMITTED)


def test_time_for_which_a_lead_was_due_does_not_count_against_its_patience():
    late = at("America/Phoenix", "2026-11-20 22:00")
    ready = lead(wanted_at=late - timedelta(hours=160), due_at=late - timedelta(hours=3))
    opens = at("America/Phoenix", "2026-11-21 08:00")
    assert check_eligibility(ready, CAMPAIGN, batch(late)) == Defer(opens, Reason.OUTSIDE_WINDOW)


def test_weeks_of_closed_days_are_waited_for_within_the_patience():
    closed = frozenset(NOON.date() + timedelta(days=n) for n in range(17))
    patient = replace(CAMPAIGN, closed_days=closed, patience_h=24 * 60)
    found = check_eligibility(lead(), patient, batch())
    assert found == Defer(at("America/Phoenix", "2026-12-07 08:00"), Reason.HOLIDAY)
    impatient = replace(patient, patience_h=24 * 16)
    assert check_eligibility(lead(), impatient, batch()) == End(Outcome.OUTSIDE_WINDOW, Reason.NEVER_PERMITTED)


def test_hours_that_never_open_end_the_lead_within_its_patience():
    night = lead(contact_from=time(22), contact_until=time(23))
    patient = replace(CAMPAIGN, patience_h=24 * 60)
    assert check_eligibility(night, patient, batch()) == End(Outcome.OUTSIDE_WINDOW, Reason.NEVER_PERMITTED)


def test_late_lead_that_is_eligible_now_is_called():
    assert check_eligibility(lead(wanted_at=NOON - timedelta(days=30)), CAMPAIGN, batch()) is GO


def test_a_customers_rate_holds_across_the_batch_and_spreads_who_waits():
    rated = batch(
        rates={(7, "acme"): CustomerRateLimit(2, timedelta(seconds=60))},
        spent={(7, "acme"): [NOON - timedelta(seconds=40)]},
    )
    found = [check_eligibility(lead(f"+1602555{place:04}"), CAMPAIGN, rated) for place in range(100, 105)]
    waits = [(one.until - NOON).total_seconds() for one in found if isinstance(one, Defer)]
    assert found[0] is GO
    assert waits == [20, 60, 81, 121]  # a call that is planned may be made up to a second late
    assert {one.reason for one in found[1:]} == {Reason.CUSTOMER_RATE}


def test_another_customer_has_a_rate_of_its_own():
    rated = batch(rates={(7, "acme"): CustomerRateLimit(1, timedelta(seconds=60))}, spent={(7, "acme"): [NOON]})
    assert check_eligibility(lead(customer="other"), CAMPAIGN, rated) is GO
    assert check_eligibility(lead(), CAMPAIGN, rated) == Defer(NOON + timedelta(seconds=60), Reason.CUSTOMER_RATE)


def test_two_leads_with_one_phone_share_its_day():
    both = batch(dialed={(7, PHOENIX): [NOON - timedelta(hours=1)]})
    assert check_eligibility(lead(), CAMPAIGN, both) is GO
    assert check_eligibility(lead(id=2), CAMPAIGN, both).reason is Reason.ATTEMPTS_24H


@pytest.mark.parametrize(
    ("status", "answered_by", "bad", "outcome"),
    [
        ("completed", "", False, Outcome.ANSWERED),
        ("completed", "human", False, Outcome.ANSWERED),
        ("completed", "machine_start", False, Outcome.VOICEMAIL),
        ("completed", "fax", False, Outcome.VOICEMAIL),
        ("busy", "", False, Outcome.BUSY),
        ("no_answer", "", False, Outcome.NO_ANSWER),
        ("rejected", "", True, Outcome.INVALID_NUMBER),
        ("rejected", "", False, Outcome.NOT_PLACED),
        ("lost", "", False, Outcome.LOST),
    ],
)
def test_how_an_attempt_ended(status, answered_by, bad, outcome):
    assert outcome_of_call(status, answered_by, bad) is outcome


@pytest.mark.parametrize(
    ("status", "answered_by", "outcome"),
    [
        ("completed", "", Outcome.FAILED),
        ("completed", "human", Outcome.FAILED),
        ("completed", "machine_start", Outcome.VOICEMAIL),
        ("busy", "", Outcome.BUSY),
    ],
)
def test_script_that_was_not_fetched_was_not_heard(status, answered_by, outcome):
    assert outcome_of_call(status, answered_by, was_spoken=False) is outcome


def test_unanswered_lead_is_retried_until_attempts_are_used_up():
    first = after_call(lead(attempts=1), CAMPAIGN, Outcome.NO_ANSWER, NOON, 0.5)
    assert first == Defer(NOON + timedelta(seconds=600), Reason.RETRY)
    second = after_call(lead(attempts=2), CAMPAIGN, Outcome.NO_ANSWER, NOON, 0.5)
    assert second == Defer(NOON + timedelta(seconds=1200), Reason.RETRY)
    third = after_call(lead(attempts=3), CAMPAIGN, Outcome.NO_ANSWER, NOON, 0.5)
    assert third == End(Outcome.EXHAUSTED, Reason.MOST_ATTEMPTS)


def test_an_answer_ends_it():
    assert after_call(lead(attempts=1), CAMPAIGN, Outcome.ANSWERED, NOON, 0.5) == End(
        Outcome.ANSWERED, Reason.CALLED
    )
