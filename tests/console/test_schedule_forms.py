"""The forms of schedules keep what was entered: after a change by someone else, and after an error."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from django.test import Client

from dispatch.schedules.models import Run
from dispatch.schedules.services import schedules
from tests.console.schedule_forms import filled, text
from tests.harness.schedules import ANA, World, noting
from tests.support import factories as make

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
    sent = {**filled(dora.get(at).content.decode(), "run-form"), "p-body": '{"week": 2}', "note": "For Ann"}
    schedules.change_schedule(schedule.pk, {"payload": {**HOOK, "method": "GET"}}, actor=ANA)
    refused = dora.post(at, sent)
    assert refused.status_code == 409
    assert "Not queued. This schedule has changed since you read it. Your input is kept" in text(refused)
    shown = filled(refused.content.decode(), "run-form")
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
