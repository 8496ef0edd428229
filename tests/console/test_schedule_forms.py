"""The forms of schedules keep what was entered: after a change by someone else, and after an error."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

import pytest
from django.test import Client

from dispatch.schedules.kinds.base import Outcome
from dispatch.schedules.models import Run, Schedule
from dispatch.schedules.services import schedules
from tests.console.schedule_forms import filled, form, text
from tests.harness.schedules import ANA, World, noting
from tests.support import factories as make

RUN_FORM = 'id="run-form"'
HOOK = {"url": "https://example.com/hook", "body": {"week": 1}}


@pytest.fixture
def world(transactional_db: None) -> Iterator[World]:
    found = World()
    found.travel_to("2027-03-01 16:00")
    with noting(found.note):
        yield found


@pytest.fixture
def dora(world: World, browser: Callable[..., Client]) -> Client:
    """A dispatcher's browser."""
    return browser(make.dispatcher(world.organization, "Dora"))


def test_refused_save_keeps_the_input_and_can_be_repeated(world: World, dora: Client) -> None:
    schedule = world.schedule("Old", cron="0 9 * * *", payload=HOOK)
    at = f"/schedules/{schedule.pk}/edit/"
    sent = {**filled(dora.get(at).content.decode()), "name": "New", "p-body": '{"week": 2}'}
    schedules.change_schedule(
        schedule.pk, {"missed_after_s": 600, "cron": "0 7 * * *", "payload": {**HOOK, "method": "GET"}}, actor=ANA
    )
    refused = dora.post(at, sent)
    assert refused.status_code == 409
    assert "This schedule has changed since you read it. Your input is kept" in text(refused)
    assert world.again(schedule).name == "Old"
    shown = filled(refused.content.decode())
    assert (shown["name"], shown["p-body"]) == ("New", '{"week": 2}')
    assert (shown["missed_after_s"], shown["cron"], shown["p-method"]) == ("600", "0 7 * * *", "GET")
    assert dora.post(at, shown).status_code == 302
    found = world.again(schedule)
    assert (found.name, found.missed_after_s, found.cron) == ("New", 600, "0 7 * * *")
    assert found.payload == {**HOOK, "body": {"week": 2}, "method": "GET"}


def test_entered_timing_replaces_the_timing_saved_meanwhile(world: World, dora: Client) -> None:
    schedule = world.schedule(cron="0 9 * * *", payload=HOOK)
    at = f"/schedules/{schedule.pk}/edit/"
    sent = {**filled(dora.get(at).content.decode()), "how": "every", "every": "2", "unit": "week"}
    schedules.change_schedule(schedule.pk, {"name": "New", "cron": "0 7 * * *"}, actor=ANA)
    shown = filled(dora.post(at, sent).content.decode())
    assert (shown["name"], shown["how"], shown["every"], shown["unit"]) == ("New", "every", "2", "week")
    assert dora.post(at, shown).status_code == 302
    found = world.again(schedule)
    assert (found.name, found.every, found.unit, found.cron) == ("New", 2, "week", "")


def test_refused_run_keeps_the_input_and_can_be_repeated(world: World, dora: Client) -> None:
    schedule = world.schedule(cron="0 9 * * *", payload=HOOK)
    at = f"/schedules/{schedule.pk}/run/"
    sent = {**filled(dora.get(at).content.decode(), RUN_FORM), "p-body": '{"week": 2}', "note": "For Ann"}
    schedules.change_schedule(schedule.pk, {"payload": {**HOOK, "method": "GET"}}, actor=ANA)
    refused = dora.post(at, sent)
    assert refused.status_code == 409
    assert "Not queued. This schedule has changed since you read it. Your input is kept" in text(refused)
    shown = filled(refused.content.decode(), RUN_FORM)
    assert (shown["p-body"], shown["p-method"], shown["note"]) == ('{"week": 2}', "GET", "For Ann")
    assert dora.post(at, shown).status_code == 302
    assert Run.objects.get(number=None).payload == {**HOOK, "body": {"week": 2}, "method": "GET"}


def test_refused_change_of_a_deleted_schedule_says_so(world: World, dora: Client) -> None:
    schedule = world.schedule("Old", cron="0 9 * * *", payload=HOOK)
    at = f"/schedules/{schedule.pk}/edit/"
    sent = {**filled(dora.get(at).content.decode()), "name": "New"}
    schedules.delete_schedule(schedule.pk, actor=ANA)
    for _ in range(2):
        refused = dora.post(at, sent)
        assert refused.status_code == 409
        assert "This schedule is deleted, so it cannot be changed." in text(refused)
        sent = filled(refused.content.decode())


def press_once(dora: Client, page: str, address: str) -> str:
    """Send the form with this address of the page. Return what the page then says."""
    sent = filled(dora.get(page).content.decode(), f'action="{address}"')
    return text(dora.post(address, sent, follow=True))


def press_twice(dora: Client, page: str, address: str) -> str:
    """Send it twice."""
    sent = filled(dora.get(page).content.decode(), f'action="{address}"')
    dora.post(address, sent)
    return text(dora.post(address, sent, follow=True))


def test_double_click_on_run_now_queues_one_run(world: World, dora: Client) -> None:
    schedule = world.schedule(every=1, unit="day", retry_schedule_s=[])
    at = f"/schedules/{schedule.pk}/"
    said = press_twice(dora, at, f"{at}act/run-now/")
    assert "Already queued. To run it again, press the button again." in said
    assert Run.objects.filter(number=None).count() == 1
    assert "Run queued." in press_once(dora, at, f"{at}act/run-now/")
    assert Run.objects.filter(number=None).count() == 2


def test_double_click_on_a_missed_run_queues_it_once(world: World, dora: Client) -> None:
    schedule = world.schedule(every=1, unit="day", missed="skip")
    world.travel(2 * 86400)
    world.go()
    run = Run.objects.filter(schedule=schedule, status__in=["missed", "skipped"]).get()
    at = f"/schedules/runs/{run.pk}/"
    queued = run.stretch_count
    assert "Already queued." in press_twice(dora, at, f"{at}act/run-missed/")
    assert Run.objects.filter(number=None).count() == queued


def test_double_click_on_retry_reports_no_refusal(world: World, dora: Client) -> None:
    schedule = world.schedule(every=1, unit="hour", retry_schedule_s=[])
    world.note.answers = [Outcome("failed", error="It said 503.")]
    world.travel(3600)
    world.go()
    at = f"/schedules/runs/{world.run(schedule).pk}/"
    said = press_twice(dora, at, f"{at}act/retry/")
    assert "Already queued." in said
    assert "cannot be retried" not in said


def test_a_form_sent_twice_creates_one_schedule(dora: Client) -> None:
    sent = {**filled(dora.get("/schedules/new/?kind=http").content.decode()), **form()}
    first, second = (dora.post("/schedules/new/", sent) for _ in range(2))
    assert first["Location"] == second["Location"] == f"/schedules/{Schedule.objects.get().pk}/"


def test_a_form_sent_again_after_its_time_shows_its_schedule(world: World, dora: Client) -> None:
    once = form(how="once", trigger_at="2027-03-01T10:00")
    sent = {**filled(dora.get("/schedules/new/?kind=http").content.decode()), **once}
    made = dora.post("/schedules/new/", sent)
    world.travel_to("2027-03-01 18:00")
    assert dora.post("/schedules/new/", sent)["Location"] == made["Location"]
    fresh = {**filled(dora.get("/schedules/new/?kind=http").content.decode()), **once}
    assert "This time has passed." in text(dora.post("/schedules/new/", fresh))
    assert Schedule.objects.count() == 1


def test_a_form_that_created_a_schedule_asks_before_another(dora: Client) -> None:
    sent = {**filled(dora.get("/schedules/new/?kind=http").content.decode()), **form()}
    assert dora.post("/schedules/new/", sent).status_code == 302
    asked = dora.post("/schedules/new/", {**sent, "name": "Ping the pump"})
    assert asked.status_code == 409
    assert "This form has already created a schedule." in text(asked)
    assert Schedule.objects.count() == 1
    assert dora.post("/schedules/new/", filled(asked.content.decode())).status_code == 302
    assert [one.name for one in Schedule.objects.order_by("pk")] == ["Ping the boiler", "Ping the pump"]


def test_a_run_with_changes_sent_twice_is_queued_once(world: World, dora: Client) -> None:
    schedule = world.schedule(cron="0 9 * * *", payload=HOOK)
    at = f"/schedules/{schedule.pk}/run/"
    sent = filled(dora.get(at).content.decode(), RUN_FORM)
    first, second = (dora.post(at, sent) for _ in range(2))
    assert first["Location"] == second["Location"] == f"/schedules/runs/{Run.objects.get(number=None).pk}/"
    asked = dora.post(at, {**sent, "note": "Once more"})
    assert asked.status_code == 409
    assert "This form has already queued a run." in text(asked)
    assert dora.post(at, filled(asked.content.decode(), RUN_FORM)).status_code == 302
    assert Run.objects.filter(number=None).count() == 2


def test_another_kind_keeps_what_was_entered(dora: Client) -> None:
    sent = {**filled(dora.get("/schedules/new/?kind=http").content.decode()), **form(jitter_s="600")}
    page = dora.get("/schedules/new/?kind=http").content.decode()
    (chosen,) = re.findall(r'<button[^>]*name="(\w+)" value="lead"', page)
    lead = filled(dora.post("/schedules/new/", {**sent, chosen: "lead"}).content.decode())
    assert {"p-campaign", "p-phone"} <= set(lead)
    kept = ("name", "how", "cron", "time_zone", "jitter_s")
    assert [lead[name] for name in kept] == [sent[name] for name in kept]
    assert lead["kind"] == "lead"
    back = filled(dora.post("/schedules/new/", {**lead, "p-phone": "12", chosen: "http"}).content.decode())
    assert (back["kind"], back["p-url"]) == ("http", "https://example.com/hook")
    assert dora.post("/schedules/new/", back).status_code == 302
    made = Schedule.objects.get()
    assert (made.cron, made.jitter_s, made.payload) == (
        "0 9 * * MON#1", 600, {"url": "https://example.com/hook", "method": "POST"},
    )  # fmt: skip
