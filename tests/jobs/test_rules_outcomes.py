"""What a call's end means, which transitions are legal, and what is heard."""

from __future__ import annotations

from dataclasses import replace

import pytest
from django.conf import settings

from dispatch.jobs import rules
from dispatch.jobs.models import Job
from dispatch.jobs.rules import Action, CascadePolicy, Outcome, phrases
from dispatch.telephony.models import Call
from dispatch.telephony.rules import ENDS

POLICY = CascadePolicy(**settings.DISPATCH_POLICY_DEFAULTS)


@pytest.mark.parametrize("status", Call.Status.values)
def test_every_status_of_a_call_either_runs_or_ends_an_offer(status):
    end = rules.outcome_of_call(status)
    assert (end is not None) == (status in ENDS)
    assert end is None or end.reason
    assert not (end and status in rules.PLACED_STATUSES)


def test_a_number_that_can_never_be_called_is_remembered_as_such():
    end = rules.outcome_of_call("rejected", error_code="21211", bad_number=True)
    assert (end.outcome, "21211" in end.reason) == (Outcome.BAD_NUMBER, True)
    assert rules.outcome_of_call("rejected", error_code="20003").outcome == Outcome.FAILED


def test_a_machine_is_named():
    assert rules.outcome_of_call("completed", answered_by="machine_start").reason == "voicemail or fax answered"
    assert rules.outcome_of_call("completed", answered_by="human").reason == "hung up without pressing a key"


@pytest.mark.parametrize("end", ["decline", "busy", "failed", "no_answer", "hangup"])
def test_each_end_can_be_made_to_wait_out_the_deadline(end):
    outcome = Outcome("declined" if end == "decline" else end)
    assert rules.advances_at_once(POLICY, outcome)
    assert not rules.advances_at_once(replace(POLICY, **{f"advance_on_{end}": False}), outcome)


def test_a_deadline_always_moves_on():
    assert rules.advances_at_once(POLICY, Outcome.TIMED_OUT)


def test_transition_table_has_only_real_statuses_and_every_action():
    assert {status for status, _ in rules.LEGAL} | set(rules.LEGAL.values()) <= set(Job.Status.values)
    assert {action for _, action in rules.LEGAL} == set(Action) == set(rules.DONE_TO)


def test_completed_job_can_only_be_reopened():
    changes = set(Action) - {Action.TECHNICIAN_TOLD}  # which changes no job
    assert [action for action in Action if action in changes and rules.status_after("completed", action)] == [
        Action.REOPEN
    ]


@pytest.mark.parametrize("status", Job.Status.values)
def test_technician_can_be_told_in_every_status_while_not_reached(status):
    assert rules.status_after(status, Action.TECHNICIAN_TOLD) == status
    assert Action.TECHNICIAN_TOLD not in rules.actions_in(status, paused=False, ringing=False)
    assert Action.TECHNICIAN_TOLD in rules.actions_in(status, paused=False, ringing=False, uninformed=True)


def test_only_the_cascade_and_a_person_make_a_job_assigned():
    made = {action for (before, action), after in rules.LEGAL.items() if after == "assigned" != before}
    assert made == {Action.ACCEPT, Action.ASSIGN, Action.REOPEN}


def test_the_buttons_of_a_job_fit_its_state():
    live = rules.actions_in("dispatching", paused=False, ringing=True)
    assert live == [
        Action.ASSIGN,
        Action.CALL_NEXT,
        Action.EXTEND,
        Action.PAUSE,
        Action.CORRECT,
        Action.CANCEL,
    ]
    assert rules.actions_in("dispatching", paused=True, ringing=False) == [
        Action.ASSIGN,
        Action.RESUME,
        Action.CORRECT,
        Action.CANCEL,
    ]
    on_it = rules.actions_in("assigned", paused=False, ringing=False)
    assert {Action.ON_THE_WAY, Action.REPORT_LATE, Action.MARK_STARTED} <= set(on_it)
    begun = rules.actions_in("assigned", paused=False, ringing=False, started=True)
    assert set(on_it) - set(begun) == {Action.ON_THE_WAY, Action.REPORT_LATE, Action.MARK_STARTED}
    assert rules.actions_in("completed", paused=False, ringing=False) == [Action.REOPEN]


TOLD = phrases.PromptContext(
    service="Water heater repair",
    priority=1,
    address="200 W Washington St, Phoenix, AZ 85003",
    distance_m=5200,
    unit="mi",
    customer_name="Dana Whitfield",
    customer_phone="+16025550123",
)


def test_offer_prompt_names_service_place_distance_and_keys():
    said = " ".join(phrases.offer_prompt(TOLD))
    assert "Emergency. Water heater repair." in said
    assert "200 W Washington St, Phoenix, Arizona, 8 5 0 0 3." in said
    assert "About 3 miles from you." in said
    assert "Press 1 to accept, 2 to decline, star to repeat." in said
    assert "Dana" not in said


def test_accepting_technician_hears_customer_and_number():
    said = " ".join(phrases.accepted_prompt(TOLD))
    assert "The job is yours." in said
    assert "Dana Whitfield" in said
    assert "6 0 2, 5 5 5, 0 1 2 3" in said


@pytest.mark.parametrize(
    ("phone", "region", "said"),
    [
        ("+16025550123", "US", "6 0 2, 5 5 5, 0 1 2 3"),
        ("+16025550123", "CA", "6 0 2, 5 5 5, 0 1 2 3"),
        ("+16025550123", "DE", "plus 1, 6 0 2, 5 5 5, 0 1 2 3"),
        ("+4917012345678", "US", "plus 4 9, 1 7 0, 1 2 3, 4 5 6, 7 8"),
        ("+4917012345678", "DE", "0 1 7 0, 1 2 3, 4 5 6, 7 8"),
        ("+442071838750", "US", "plus 4 4, 2 0, 7 1 8 3, 8 7 5 0"),
        ("5550123", "US", "5 5 5, 0 1 2, 3"),
    ],
)
def test_numbers_are_spoken_as_they_are_dialed(phone, region, said):
    assert phrases.spoken_digits(phone, region) == said


@pytest.mark.parametrize(
    ("metres", "unit", "said"),
    [
        (300, "mi", "Less than a mile"),
        (1700, "mi", "About 1 mile"),
        (16_093, "mi", "About 10 miles"),
        (900, "km", "Less than a kilometer"),
        (12_400, "km", "About 12 kilometers"),
    ],
)
def test_distances_are_spoken_in_the_organizations_unit(metres, unit, said):
    assert phrases.spoken_distance(metres, unit) == said


@pytest.mark.parametrize(
    ("written", "spoken"),
    [
        ("31 E 5th St, Tempe, AZ 85281-1234", "31 E 5th St, Tempe, Arizona, 8 5 2 8 1"),
        ("5 Main St\nReno NV", "5 Main St, Reno Nevada"),
        ("63 Calle Fortaleza, San Juan, PR 00901", "63 Calle Fortaleza, San Juan, Puerto Rico, 0 0 9 0 1"),
        ("12 Rue de Rivoli, Paris", "12 Rue de Rivoli, Paris"),
        ("", ""),
    ],
)
def test_places_are_read_out(written, spoken):
    assert phrases.spoken_place(written) == spoken
