"""The pages of the voice menu, and the texts that report a delay: pure functions."""

from __future__ import annotations

import pytest

from dispatch.jobs.rules import menu, phrases
from dispatch.jobs.rules.menu import JobFacts, MenuState, Page

CONTEXT = phrases.PromptContext(
    service="Water heater repair", priority=2, address="200 W Washington St, Phoenix, AZ 85003", distance_m=0,
    unit="mi", customer_name="Dana Whitfield", customer_phone="+16025550123",
)  # fmt: skip


@pytest.mark.parametrize("page", Page)
def test_state_survives_the_url(page):
    state = MenuState(page, 123456789, 42)
    assert MenuState.parse(str(state)) == state


@pytest.mark.parametrize(
    "text", ["", "job", "job-1", "job-x-1", "other-1-1", "job-1-1-1", "job--1-1", "JOB-1-1", "job-1-1 ", "job-١-1"]
)
def test_other_text_is_no_state(text):
    assert MenuState.parse(text) is None


@pytest.mark.parametrize(
    ("name", "spoken"),
    [
        ("Ann", "Ann"),
        ("Ann Lee", "Ann"),
        ("  José  Luis Ortega ", "José"),
        ("Unit 12", "Unit 12"),
        ("Lopez, Maria", "Maria"),
        ("Smith & Sons", "Smith & Sons"),
    ],
)
def test_technicians_are_greeted_by_first_name(name, spoken):
    assert menu.greeting(name, 2) == (f"Hello {spoken}.", "You have 2 open jobs.")


def test_job_page_speaks_the_job_and_its_keys():
    facts = JobFacts(CONTEXT, 1, 2, is_started=False)
    assert menu.job_page(facts) == (
        "Job 1 of 2.",
        "Urgent. Water heater repair.",
        "200 W Washington St, Phoenix, Arizona, 8 5 0 0 3.",
        "The customer is Dana Whitfield.",
        "Their number is 6 0 2, 5 5 5, 0 1 2 3.",
        "Press 1 if it is done, 2 if you are running late, 3 if you can't make it, 4 if you start now, "
        "5 for the next job, or 9 to repeat.",
    )
    assert sorted(facts.keys) == sorted("123459*")


def test_only_started_job_has_fewer_keys():
    facts = JobFacts(CONTEXT, 1, 1, is_started=True)
    assert menu.job_page(facts)[-2:] == (
        "You have started this job.",
        "Press 1 if it is done, 3 if you can't make it, or 9 to repeat.",
    )
    assert sorted(facts.keys) == sorted("139*")


def test_keys_after_an_action_do_nothing_to_a_job():
    for others in (0, 1, 3):
        for has_job in (True, False):
            keys = menu.result_keys(others=others, has_job=has_job)
            assert not set(keys) & {menu.DONE_KEY, menu.LATE_KEY, menu.GIVE_BACK_KEY, menu.START_KEY}


def test_result_names_what_is_left():
    assert menu.result_page("Done.", others=1, has_job=False) == (
        "Done.", "You have 1 other open job.", "Press 5 for the next job, or hang up.",
    )  # fmt: skip
    assert menu.result_page("Started.", others=0, has_job=True) == (
        "Started.",
        "Press 9 for this job, or hang up.",
    )


@pytest.mark.parametrize(
    ("body", "minutes"),
    [
        ("late 20", 20),
        ("Late 20 min.", 20),
        ("  RUNNING LATE 5 ", 5),
        ("I'm running late, 45 minutes", 45),
        ("I\u2019m late by 10m", 10),
        ("late20", 20),
        ("late about 15 mins!", 15),
        ("late", None),
        ("late 2 hours", None),
        ("late 20 at Main St", None),
        ("I will be late, maybe 20", None),
        ("not late 20", None),
        ("late 2000", None),
        ("20", None),
        ("", None),
    ],
)
def test_texts_that_report_a_delay(body, minutes):
    assert phrases.late_minutes_in(body) == minutes
