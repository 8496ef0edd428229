"""Technicians who call hear their open jobs and report done, late, started or can't make it, each exactly once."""

from __future__ import annotations

import random
from typing import Any

import pytest

from dispatch.console.board.cards import cards_of
from dispatch.core import clock, fault_injection
from dispatch.core.models import Event
from dispatch.jobs import services
from dispatch.jobs.badges import job_badge
from dispatch.technicians import services as technicians
from dispatch.technicians.models import Technician
from dispatch.telephony.models import InboundCall
from dispatch.telephony.services.inbound import apply_unhandled_inbound_keys
from notifications.models import Notification
from notifications.services.notifications import handle
from tests.api.client import Api
from tests.harness.jobs import MARIA, Floor
from tests.harness.menus import PIN, ann_of, calls, entries, events, fail, gives, types
from tests.jobs.test_answer_channels import reply, texted, texting  # noqa: F401
from tests.support import factories


@pytest.fixture
def crew(texting: Floor) -> Floor:  # noqa: F811
    return texting


# --- over the simulator's phones


def test_menu_speaks_the_open_jobs_and_marks_them_done(crew: Floor) -> None:
    ann, (first,) = ann_of(crew)
    second = gives(crew, ann, customer_name="Eli Moss")
    call = crew.phone(ann).calls_us(str(crew.number.phone))
    call.hears("Hello Ann.").hears("You have 2 open jobs.").hears("Job 1 of 2.").hears("Water heater repair.")
    call.hears("Arizona").hears("The customer is Dana Whitfield.").has_not_heard("Eli Moss")
    call.press("5").hears("Job 2 of 2.").hears("Eli Moss")
    call.press("1").hears("The job is marked as done.").hears("You have 1 other open job.").hang_up()
    assert (crew.status(first), crew.status(second)) == ("assigned", "completed")
    call = crew.phone(ann).calls_us(str(crew.number.phone)).hears("You have 1 open job.")
    call.press("1").hears("You have no more open jobs.").ended()
    assert crew.status(first) == "completed"
    assert "Ann Lee completed the job" in entries(second)
    assert Technician.objects.get(pk=ann.pk).open_jobs == 0


def test_running_late_is_shown_to_the_dispatchers(crew: Floor) -> None:
    maria = factories.dispatcher(crew.organization, "Maria")
    ann, (job,) = ann_of(crew)
    call = crew.phone(ann).calls_us(str(crew.number.phone))
    call.hears("running late").press("2").hears("By how many minutes")
    types(call, "20#").hears("Your dispatcher knows that you are 20 minutes late.").hang_up()
    row = crew.job(job)
    assert (row.late_minutes, row.status) == (20, "assigned")
    assert "Ann Lee is running late 20 min" in entries(job)
    (card,) = cards_of([row])
    assert (card.tone, card.state) == ("late", "Running late 20 min")
    assert "Running late 20 min" in job_badge(row)
    shown = Api(user=maria).get(f"jobs/{job.pk}/").json()
    assert shown["late_minutes"] == 20
    assert shown["late_reported_at"]
    handle(list(Event.objects.filter(kind="job.running_late")))
    (notification,) = Notification.objects.filter(kind="job.running_late")
    assert notification.title == f"Job {job.pk}: Ann Lee is running late 20 min"


def test_cannot_make_it_asks_for_a_second_key(crew: Floor) -> None:
    ann, (job,) = ann_of(crew)
    bob = crew.technician("Bob", km=2)
    call = crew.phone(ann).calls_us(str(crew.number.phone))
    call.hears("can't make it").press("3").hears("Press 1 to give the job back, 2 to keep it.")
    assert crew.status(job) == "assigned"
    call.press("1").hears("You gave the job back.").hears("no more open jobs").ended()
    crew.rings(bob)
    assert events(job)["job.cannot_make_it"] == 1
    assert crew.job(job).not_again == [ann.pk]


def test_pin_opens_the_menu_of_an_unattested_caller(crew: Floor) -> None:
    ann, (job,) = ann_of(crew)
    technicians.set_pin(ann.pk, PIN, actor=MARIA)
    call = crew.phone(ann).calls_us(str(crew.number.phone), attestation="none")
    call.hears("You have 1 open job.").hears("Enter your PIN").has_not_heard("Dana")
    types(call, f"{PIN}#").hears("Dana Whitfield").press("4").hears("marked as started").hang_up()
    assert crew.job(job).started_at is not None
    assert PIN not in InboundCall.objects.get().keys_pressed


def test_withheld_caller_hears_nothing(crew: Floor) -> None:
    ann_of(crew)
    call = crew.sim.phone("+266696687").calls_us(str(crew.number.phone))
    call.hears("We have nothing waiting for you.").ended()
    call.has_not_heard("Ann").has_not_heard("Dana")


# --- webhooks in every order


def test_started_job_offers_fewer_keys(crew: Floor) -> None:
    ann, (job,) = ann_of(crew)
    call = calls(crew, ann).press("4").hears("marked as started").press("9").hears("You have started this job.")
    call.has_not_heard("running late").press("2").hears("that is not a valid key")
    assert events(job)["job.started"] == 1
    assert crew.job(job).late_minutes is None


def test_delay_ends_with_the_start_and_with_another_technician(crew: Floor) -> None:
    ann, (job,) = ann_of(crew)
    bob = crew.technician("Bob", km=2)
    calls(crew, ann).press("2").press("30").hears("30 minutes late").press("9").press("4")
    assert crew.job(job).late_words == ""
    services.assign(job.pk, bob.pk, actor=MARIA, confirm_unfit=True)
    assert crew.job(job).late_minutes is None


def test_delay_moves_the_time_by_which_the_work_must_start(crew: Floor) -> None:
    crew.set_policy(start_within_s=600)
    ann, (job,) = ann_of(crew)
    calls(crew, ann).press("2").press("20").hears("20 minutes late")
    clock.travel(601)
    assert services.remind_due_jobs() == 0
    clock.travel(600)
    assert services.remind_due_jobs() == 1
    assert events(job)["job.not_started"] == 1


@pytest.mark.parametrize("minutes", ["241", "999"])
def test_too_many_minutes_are_asked_for_again(crew: Floor, minutes: str) -> None:
    ann, (job,) = ann_of(crew)
    call = calls(crew, ann).press("2").press(minutes).hears("Enter a number from 1 to 240.")
    call.press("*5").hears("Enter a number").press("0").hears("Dana Whitfield")
    assert events(job)["job.running_late"] == 0


@pytest.mark.parametrize(
    ("keys", "kind"),
    [
        (["1"], "job.completed"),
        (["4"], "job.started"),
        (["2", "20"], "job.running_late"),
        (["3", "1"], "job.cannot_make_it"),
    ],
)
def test_doubled_and_delayed_keys_act_once(crew: Floor, keys: list[str], kind: str) -> None:
    ann, jobs = ann_of(crew, 2)
    call = calls(crew, ann)
    for key in keys[:-1]:
        call.press(key)
    last = call.pressing(keys[-1])
    result = call.send(last).words
    assert call.send(last).words == result
    call.press("5")
    clock.travel(300)
    call.send(last)
    assert [events(job)[kind] for job in jobs] == [1, 0]


def test_key_pressed_twice_in_haste_does_nothing_to_the_next_job(crew: Floor) -> None:
    ann, (first, second) = ann_of(crew, 2)
    calls(crew, ann).press("1").hears("marked as done").press("1").press("1")
    assert (crew.status(first), crew.status(second)) == ("completed", "assigned")


def test_changed_job_is_refused_and_spoken_again(crew: Floor) -> None:
    ann, (job,) = ann_of(crew)
    call = calls(crew, ann).hears("Washington")
    correction = services.Correction(address="100 N Central Ave, Phoenix, AZ 85004", lat=33.45, lng=-112.07)
    services.correct(job.pk, actor=MARIA, correction=correction)
    call.press("1").hears("this job has changed, so nothing was recorded").hears("100 N Central Ave")
    assert crew.status(job) == "assigned"
    call.press("1").hears("marked as done")


@pytest.mark.parametrize("keys", [["1"], ["2"], ["3"], ["4"], ["2", "20"], ["3", "1"]])
def test_job_taken_away_meanwhile_is_refused(crew: Floor, keys: list[str]) -> None:
    ann, (job,) = ann_of(crew)
    call = calls(crew, ann)
    for key in keys[:-1]:
        call.press(key)
    services.cancel(job.pk, "a mistake", actor=MARIA)
    before = events(job)
    call.press(keys[-1]).hears("no longer yours, so nothing was recorded").hears("no more open jobs")
    assert not call.listens
    assert events(job) == before


def test_wrong_keys_and_hang_ups_change_nothing(crew: Floor) -> None:
    ann, (job,) = ann_of(crew)
    version, before = crew.job(job).version, events(job)
    call = calls(crew, ann)
    for key in ("7", "0", "#", "12", ""):
        call.press(key).hears("that is not a valid key").hears("Dana Whitfield")
    call.press("9").hears("Dana Whitfield").has_not_heard("not in use").press("*").hears("Dana Whitfield")
    call.press("3").hang_up()
    calls(crew, ann).press("2").hang_up()
    calls(crew, ann).press("3").press("2").hears("still yours").hang_up()
    calls(crew, ann).hang_up()
    apply_unhandled_inbound_keys()
    assert (crew.job(job).version, events(job)) == (version, before)


def test_key_is_applied_once_although_its_process_died(crew: Floor) -> None:
    ann, jobs = ann_of(crew, 2)
    call = calls(crew, ann)
    pressed = call.pressing("1")
    with fault_injection.arm_crash_point("telephony.inbound_key.recorded", fail):
        call.send(pressed, expected=500)
    assert crew.status(jobs[0]) == "assigned"
    clock.travel(60)
    apply_unhandled_inbound_keys()
    assert [crew.status(job) for job in jobs] == ["completed", "assigned"]
    call.send(pressed).hears("marked as done")
    apply_unhandled_inbound_keys()
    assert [crew.status(job) for job in jobs] == ["completed", "assigned"]
    assert call.row.pending_keys == []


@pytest.mark.parametrize("seed", range(6))
def test_repeated_requests_of_any_call_change_nothing(crew: Floor, seed: int) -> None:
    chance = random.Random(seed)
    ann, jobs = ann_of(crew, 3)
    sent: list[Any] = []
    call = calls(crew, ann)
    for _ in range(25):
        if not call.listens or chance.random() < 0.1:
            call.hang_up()
            call, sent = calls(crew, ann), []
            if not call.listens:
                break
        is_asking = "how many minutes" in call.words
        pressed = call.pressing(
            chance.choice(["15", "0", "300", "7"]) if is_asking else chance.choice("1122333445579*")
        )
        sent.append(pressed)
        call.send(pressed)
        if chance.random() < 0.4:
            before = sum(sum(events(job).values()) for job in jobs)
            call.send(chance.choice(sent))
            assert sum(sum(events(job).values()) for job in jobs) == before
    for job in jobs:
        assert events(job)["job.completed"] <= 1
        assert events(job)["job.started"] <= 1
        assert events(job)["job.cannot_make_it"] <= 1


def test_technician_without_open_jobs_hears_that(crew: Floor) -> None:
    ann = crew.technician("Ann Lee", max_open_jobs=9)
    nothing = "Hello Ann. You have no open jobs and no job offer to answer."
    calls(crew, ann).hears(nothing)
    job = gives(crew, ann)
    services.complete(job.pk, actor=MARIA)
    call = calls(crew, ann).hears(nothing).has_not_heard("Dana")
    assert not call.listens
