"""The schedule pages without JavaScript: upcoming runs, calendar, form with preview, and actions."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from html import unescape
from typing import Any

import pytest
from django.test import Client
from django.urls import reverse

from dispatch.console.schedules import forms
from dispatch.core import clock
from dispatch.outbox.models import Endpoint
from dispatch.outbox.services.intake import default_pool
from dispatch.schedules.api.timings import occurrences_of
from dispatch.schedules.kinds.base import Outcome, canceled
from dispatch.schedules.models import ConcurrencyLimit, Run, Schedule
from dispatch.schedules.services import schedules, worker
from tests.console.schedule_forms import filled, form, text
from tests.harness.schedules import ANA, World, noting
from tests.support import factories as make

HTMX = {"HX-Request": "true"}
SOON = datetime(2027, 3, 7, 19, 3, 37, tzinfo=UTC)


@pytest.fixture
def world(transactional_db: None) -> Iterator[World]:
    found = World()
    found.travel_to("2027-03-01 16:00")  # 09:00 in Phoenix
    with noting(found.note):
        yield found


@pytest.fixture
def dora(world: World, browser: Callable[..., Client]) -> Client:
    """A dispatcher's browser."""
    return browser(make.dispatcher(world.organization, "Dora"))


def test_empty_list_explains_what_appears_there(dora: Client) -> None:
    assert "No upcoming runs" in text(dora.get("/schedules/"))
    for view in ("calendar", "runs", "all"):
        assert dora.get(f"/schedules/?view={view}").status_code == 200


def test_upcoming_runs_are_grouped_by_day(world: World, dora: Client) -> None:
    world.schedule("Tomorrow's visit", trigger_at=world.at("2027-03-02 18:30"))
    world.schedule("Every first Monday", cron="0 9 * * MON#1", time_zone="America/Phoenix")
    said = text(dora.get("/schedules/"))
    assert said.index("Tuesday, March 2, 2027") < said.index("Tomorrow's visit") < said.index("Every first Monday")
    assert "11:30" in said
    assert "At 09:00 on the first Monday of the month (America/Phoenix)" in said
    assert "Tomorrow's visit" not in text(dora.get("/schedules/?name=monday"))


def test_the_calendar_shows_what_ran_and_what_comes(world: World, dora: Client) -> None:
    world.schedule("Daily", every=1, unit="day", starts_at=world.at("2027-03-02 17:00"))
    world.travel_to("2027-03-03 18:00")
    world.go()
    page = dora.get("/schedules/?view=calendar")
    said = text(page)
    assert "March 2027" in said
    assert said.count("10:00 Daily") >= 28
    assert "1 succeeded" in said
    assert text(dora.get("/schedules/?view=calendar&month=2027-04")).count("10:00 Daily") >= 30
    assert dora.get("/schedules/?view=calendar&month=nonsense").status_code == 200


def test_calendar_of_later_month_shows_frequent_and_long_running(world: World, dora: Client) -> None:
    world.schedule("Hourly", every=1, unit="hour")
    world.schedule("Twice", cron="0 8,20 * * *")
    world.schedule("Daily", cron="0 9 * * *")
    world.schedule("Five times", every=1, unit="week", starts_at=world.at("2027-05-20 17:00"), max_occurrences=5)
    world.schedule("Till then", cron="30 9 * * *", ends_at=world.at("2027-06-02 17:00"))
    said = text(dora.get("/schedules/?view=calendar&month=2027-06"))
    squares = 35  # May 31 to July 4
    assert said.count("00:00 often Hourly") == squares
    assert said.count("08:00 2 times Twice") == squares
    assert said.count("09:00 Daily") == squares
    assert said.count("10:00 Five times") == 3  # June 3, 10 and 17 are the last three of five
    assert said.count("09:30 Till then") == 3  # May 31, June 1 and 2
    assert "Too many schedules to show" not in said


def test_a_calendar_that_cannot_show_all_says_so(world: World, dora: Client) -> None:
    world.schedule("Counted", every=10, unit="second", max_occurrences=1_000_000)
    world.schedule("Daily", cron="0 9 * * *")
    said = text(dora.get("/schedules/?view=calendar&month=2027-04"))
    assert "Too many schedules to show" in said
    assert said.count("09:00 Daily") == 35
    for month in ("9999-12", "0001-01", "1999-12", "2027-13"):
        assert "March 2027" in text(dora.get(f"/schedules/?view=calendar&month={month}"))


def test_the_form_shows_the_next_ten_times_in_words_and_makes_the_schedule(dora: Client) -> None:
    assert "Next ten runs" in text(dora.get("/schedules/new/?kind=http"))
    preview = dora.post("/schedules/preview/", form(), headers=HTMX)
    assert "aria-live" not in preview.content.decode(), "the page keeps the region that is announced"
    said = text(preview)
    assert "At 09:00 on the first Monday of the month (America/Phoenix)" in said
    assert "Mon, Apr 5, 2027, 09:00 MST" in said
    assert preview.content.decode().count("<li>") == 10
    made = dora.post("/schedules/new/", form())
    schedule = Schedule.objects.get()
    assert made["Location"] == f"/schedules/{schedule.pk}/"
    assert (schedule.cron, schedule.payload) == (
        "0 9 * * MON#1", {"url": "https://example.com/hook", "method": "POST"},
    )  # fmt: skip
    assert "Ping the boiler" in text(dora.get(made["Location"]))


def test_without_javascript_the_preview_is_a_button_and_keeps_what_was_typed(dora: Client) -> None:
    answer = dora.post("/schedules/new/", form(preview="1"))
    assert "Mon, Apr 5, 2027, 09:00 MST" in text(answer)
    assert 'value="Ping the boiler"' in answer.content.decode()
    assert not Schedule.objects.exists()


def test_a_preview_says_where_the_clocks_go_forward(dora: Client) -> None:
    said = text(dora.post("/schedules/preview/", form(cron="30 2 14 3 *", time_zone="America/New_York")))
    assert "Sun, Mar 14, 2027, 03:00 EDT Clocks go forward: moved to the next valid time" in said


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"cron": "never"}, "Must have five fields"),
        ({"how": "once", "trigger_at": ""}, "Set one of"),
        ({"time_zone": "Mars"}, "is not a valid time zone"),
        ({"kind": "message", "p-payload": "{", "p-endpoint": "ERP"}, "Invalid JSON"),
        ({"kind": "message", "p-payload": '{"a": 1e999}', "p-endpoint": "ERP"}, "a: This number is too large"),
        ({"kind": "message", "p-payload": '{"a": NaN}', "p-endpoint": "ERP"}, "Invalid JSON"),
        ({"kind": "message", "p-payload": '{"a": "\\u0000"}', "p-endpoint": "ERP"}, "a: Contains a NUL"),
        ({"name": ""}, "may not be blank"),
        ({"retry_schedule_s": "soon"}, "valid integer"),
    ],
)
def test_form_errors_are_shown_and_input_is_kept(dora: Client, wrong: dict[str, str], said: str) -> None:
    answer = dora.post("/schedules/new/", form(**wrong))
    assert answer.status_code == 422
    assert said in text(answer)
    assert "Not saved." in text(answer)
    assert not Schedule.objects.exists()


def test_editing_saves_and_rejects_a_concurrent_change(world: World, dora: Client) -> None:
    schedule = world.schedule(
        "Old", every=1, unit="day", payload={"url": "https://example.com/hook", "body": {"a": 1}}
    )
    page = dora.get(f"/schedules/{schedule.pk}/edit/").content.decode()
    assert 'value="Old"' in page
    assert "{&quot;a&quot;: 1}" in page
    sent = form(name="New", how="every", every="2", unit="week", version="1")
    assert dora.post(f"/schedules/{schedule.pk}/edit/", {**sent, "p-body": '{"a": 2}'}).status_code == 302
    found = world.again(schedule)
    assert (found.name, found.every, found.unit, found.payload["body"]) == ("New", 2, "week", {"a": 2})
    late = dora.post(f"/schedules/{schedule.pk}/edit/", {**sent, "name": "Third"})
    assert late.status_code == 409
    assert "This schedule has changed since you read it." in late.content.decode()


@pytest.mark.parametrize(
    "when",
    [
        {"trigger_at": SOON},
        {"every": 1, "unit": "hour"},
        {
            "every": 2,
            "unit": "week",
            "starts_at": datetime(2027, 3, 7, 19, 3, 37, tzinfo=UTC),
            "max_occurrences": 9,
        },
        # the second of two equal hours in New York
        {"trigger_at": datetime(2027, 11, 7, 6, 30, tzinfo=UTC), "time_zone": "America/New_York"},
        {"cron": "0 9 * * MON#1", "ends_at": datetime(2027, 12, 31, 23, 59, 59, tzinfo=UTC)},
    ],
)
@pytest.mark.parametrize("payload", [{"url": "https://example.com/hook"}, {"endpoint": "ERP", "method": "GET"}])
def test_a_new_name_changes_nothing_else(
    world: World, dora: Client, when: dict[str, Any], payload: dict[str, Any]
) -> None:
    pool = default_pool(world.organization.pk)
    Endpoint.objects.create(organization=world.organization, name="ERP", url="https://example.com/hook", pool=pool)
    schedule = world.schedule("Old", payload=payload, **when)
    before = {**vars(world.again(schedule)), "next": [one["words"] for one in occurrences_of(schedule)]}
    world.travel(600)
    page = dora.get(f"/schedules/{schedule.pk}/edit/").content.decode()
    sent = filled(page)
    assert unescape(page).count('<li><span class="figure">') == len(before["next"])
    shown = text(dora.post("/schedules/preview/", sent, headers=HTMX))
    assert all(one in shown for one in before["next"])
    assert dora.post(f"/schedules/{schedule.pk}/edit/", {**sent, "name": "New"}).status_code == 302
    after = world.again(schedule)
    changed = {name for name, value in vars(after).items() if name != "_state" and value != before[name]}
    assert changed == {"name", "version", "changed_at"}


@pytest.mark.parametrize("starts_at", [None, datetime(2027, 3, 7, 19, 3, 37, tzinfo=UTC)])
def test_a_limit_in_the_form_leaves_the_times(world: World, dora: Client, starts_at: datetime | None) -> None:
    schedule = world.schedule("Old", every=1, unit="day", starts_at=starts_at)
    times = [one["at"] for one in occurrences_of(schedule)]
    world.travel(6 * 3600)
    sent = {**filled(dora.get(f"/schedules/{schedule.pk}/edit/").content.decode()), "max_occurrences": "5"}
    shown = text(dora.post("/schedules/preview/", sent, headers=HTMX))
    assert all(one["words"] in shown for one in occurrences_of(schedule)[:5])
    assert dora.post(f"/schedules/{schedule.pk}/edit/", sent).status_code == 302
    assert [one["at"] for one in occurrences_of(world.again(schedule))] == times[:5]


def test_ended_schedule_can_be_renamed(world: World, dora: Client) -> None:
    schedule = world.schedule("Old", cron="0 9 * * *", ends_at=world.at("2027-03-02 17:00"))
    world.go_until("2027-03-03 17:00", 3600)
    assert world.again(schedule).status == "ended"
    sent = filled(dora.get(f"/schedules/{schedule.pk}/edit/").content.decode())
    assert dora.post(f"/schedules/{schedule.pk}/edit/", {**sent, "name": "New"}).status_code == 302
    assert (world.again(schedule).name, world.again(schedule).status) == ("New", "ended")


def test_run_now_pause_resume_and_delete_which_asks_first(world: World, dora: Client) -> None:
    schedule = world.schedule(every=1, unit="day")
    at = f"/schedules/{schedule.pk}"
    assert dora.post(f"{at}/act/run-now/").status_code == 302
    world.go()
    assert Run.objects.get(schedule=schedule, number=None).status == "succeeded"
    dora.post(f"{at}/act/pause/")
    assert "No runs until the schedule is resumed." in text(dora.get(f"{at}/"))
    dora.post(f"{at}/act/resume/")
    assert "will be canceled" in text(dora.get(f"{at}/act/delete/"))
    assert world.again(schedule).status == "active"
    dora.post(f"{at}/act/delete/")
    assert world.again(schedule).status == "deleted"
    assert "Run now" not in text(dora.get(f"{at}/"))


def test_failed_run_shows_attempts_and_can_be_retried(world: World, dora: Client) -> None:
    schedule = world.schedule("Ping", every=1, unit="hour", retry_schedule_s=[])
    world.note.answers = [
        Outcome("failed", {"status": 503, "answer": "<b>busy</b>", "elapsed_s": 0.1}, "It said 503.")
    ]
    world.travel(3600)
    world.go()
    assert "Last run failed" in text(dora.get("/schedules/"))
    assert "It said 503." in text(dora.get("/schedules/?view=runs&status=failed"))
    run = world.run(schedule)
    page = dora.get(f"/schedules/runs/{run.pk}/")
    said = text(page)
    assert "HTTP 503" in said
    assert "&lt;b&gt;busy&lt;/b&gt;" in page.content.decode()
    assert "Dispatch gave up after attempt 1: It said 503." in said
    dora.post(f"/schedules/runs/{run.pk}/act/retry/")
    world.go()
    assert world.run(schedule).status == "succeeded"
    again = dora.post(f"/schedules/runs/{run.pk}/act/retry/", follow=True)
    assert "cannot be retried" in text(again)


def test_all_failing_schedules_are_counted_and_can_be_listed(world: World, dora: Client) -> None:
    for number in range(12):
        schedule = world.schedule(f"Visit {number:02}", every=1, unit="day")
        Schedule.objects.filter(pk=schedule.pk).update(failures=2 if number == 0 else 1)
    world.schedule("Working", every=1, unit="day")
    said = text(dora.get("/schedules/"))
    assert "Needs attention 12 Visit 00" in said
    assert "2 more · Show all" in said
    listed = text(dora.get("/schedules/?view=all&status=failing")).partition("Clear filters")[2]
    assert all(f"Visit {number:02}" in listed for number in range(12))
    assert "Working" not in listed


def test_a_running_run_is_canceled_on_its_page(world: World, dora: Client) -> None:
    schedule = world.schedule(trigger_at=clock.now())
    world.execute()
    (message,) = world.messages()
    (assignment,) = worker.start_runs(message.args[1])
    page = reverse("console:schedule_run", args=[assignment.run_id])
    assert "Cancel run" in text(dora.get(page))
    dora.post(reverse("console:act_on_run", args=[assignment.run_id, "cancel"]))
    shown = text(dora.get(page))
    assert "Cancellation requested" in shown
    assert "requested the cancellation of the run" in shown
    assert "Cancel run" not in shown
    worker.report_outcomes([(assignment, canceled())])
    world.go()
    assert world.statuses(schedule) == ["cancelled"]


def test_a_manual_run_that_waits_is_canceled_on_its_page(world: World, dora: Client) -> None:
    schedule = world.schedule(every=1, unit="day", overlap="buffer_one")
    world.travel(86_400)
    world.execute()
    assert "Cancel run" not in text(dora.get(reverse("console:schedule_run", args=[world.run(schedule, 2).pk])))
    manual = schedules.run_now(schedule.pk, actor=ANA)
    world.execute()
    assert "Cancel run" in text(dora.get(reverse("console:schedule_run", args=[manual.pk])))
    dora.post(reverse("console:act_on_run", args=[manual.pk, "cancel"]))
    manual.refresh_from_db()
    assert manual.status == "cancelled"


def test_jitter_is_set_shown_and_cleared(world: World, dora: Client) -> None:
    assert dora.post("/schedules/new/", form(jitter_s="600")).status_code == 302
    schedule = Schedule.objects.get()
    assert schedule.jitter_s == 600
    assert "Random delay up to 10 min" in text(dora.get(f"/schedules/{schedule.pk}/"))
    sent = filled(dora.get(f"/schedules/{schedule.pk}/edit/").content.decode())
    assert sent["jitter_s"] == "600"
    refused = dora.post(f"/schedules/{schedule.pk}/edit/", {**sent, "jitter_s": "90000"})
    assert "86400" in text(refused)
    assert dora.post(f"/schedules/{schedule.pk}/edit/", {**sent, "jitter_s": ""}).status_code == 302
    assert world.again(schedule).jitter_s == 0


def test_saving_keeps_a_concurrency_limit_that_is_not_among_the_first(
    world: World, dora: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(forms, "MAX_LIMITS", 1)
    first, second = (
        ConcurrencyLimit.objects.create(organization=world.organization, key=key, max_runs=2) for key in ("a", "b")
    )
    schedule = world.schedule("Old", cron="0 9 * * *", concurrency_limit=second)
    sent = filled(dora.get(f"/schedules/{schedule.pk}/edit/").content.decode())
    assert sent["concurrency_key"] == "b"
    assert dora.post(f"/schedules/{schedule.pk}/edit/", {**sent, "name": "New"}).status_code == 302
    assert world.again(schedule).concurrency_limit == second
    sent = filled(dora.get(f"/schedules/{schedule.pk}/edit/").content.decode())
    assert dora.post(f"/schedules/{schedule.pk}/edit/", {**sent, "concurrency_key": "a"}).status_code == 302
    assert world.again(schedule).concurrency_limit == first


def test_other_organizations_schedules_are_not_found(world: World, browser: Callable[..., Client]) -> None:
    schedule = world.schedule("Secret", every=1, unit="day")
    stranger = browser(make.dispatcher(make.organization()))
    for path in ("", "edit/", "act/pause/"):
        assert stranger.get(f"/schedules/{schedule.pk}/{path}").status_code == 404
    assert stranger.post(f"/schedules/{schedule.pk}/act/delete/").status_code == 404
    assert stranger.get(f"/schedules/runs/{world.run(schedule).pk}/").status_code == 404
    for view in ("coming", "calendar", "runs", "all"):
        assert "Secret" not in stranger.get(f"/schedules/?view={view}").content.decode()
    assert world.again(schedule).status == "active"


def test_anonymous_visitors_are_sent_to_sign_in(world: World, browser: Callable[..., Client]) -> None:
    for path in ("", "new/", "1/", "runs/1/"):
        assert "/login/" in browser().get(f"/schedules/{path}")["Location"]


def test_each_view_has_its_own_title(dora: Client) -> None:
    pages = [dora.get(f"/schedules/?view={view}").content.decode() for view in ("all", "calendar", "runs")]
    titles = [re.search(r"<title>(.*?)</title>", page, re.DOTALL)[1] for page in pages]  # type: ignore[index]
    assert len(set(titles)) == 3
    assert all("Schedules" in title for title in titles)
