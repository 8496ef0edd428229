"""Technicians who call hear their open jobs and report done, late, started or can't make it, each exactly once."""

from __future__ import annotations

import random
from collections import Counter
from datetime import time
from typing import Any

import pytest

from dispatch.console.board.cards import cards_of
from dispatch.core import clock, fault_injection
from dispatch.core.models import Event
from dispatch.jobs import services, timeline
from dispatch.jobs.badges import job_badge
from dispatch.jobs.models import DispatchPolicy, Job, Offer
from dispatch.jobs.rules.menu import MenuState, Page
from dispatch.jobs.services import Answer, AnswerChannel, answer_offer
from dispatch.technicians import services as technicians
from dispatch.technicians.models import Technician
from dispatch.telephony.models import Call, InboundCall, Text
from dispatch.telephony.services.inbound import apply_unhandled_inbound_keys
from notifications.models import Notification
from notifications.services.notifications import handle
from tests.api.client import Api
from tests.harness.call_back import CallBack
from tests.harness.jobs import MARIA, Floor
from tests.jobs.test_answer_channels import reply, texted, texting  # noqa: F401
from tests.phones import PhoneCall, ignore
from tests.support import factories

PIN = "4826"


@pytest.fixture
def crew(texting: Floor) -> Floor:  # noqa: F811
    return texting


def ann_of(floor: Floor, jobs: int = 1, **fields: Any) -> tuple[Technician, list[Job]]:
    """Ann Lee, who has this number of jobs."""
    ann = floor.technician("Ann Lee", max_open_jobs=9)
    return ann, [gives(floor, ann, **fields) for _ in range(jobs)]


def gives(floor: Floor, technician: Technician, **fields: Any) -> Job:
    """A job that this technician has accepted."""
    floor.until(lambda: not Call.objects.filter(ended_at=None).exists())
    job = floor.started(**fields)
    offer = floor.live_offer(job)
    assert offer.technician == technician
    assert answer_offer(offer.pk, None, "1", by=AnswerChannel.LINK) is Answer.ACCEPTED
    return floor.job(job)


def calls(floor: Floor, technician: Technician, **more: Any) -> CallBack:
    return CallBack(floor, str(technician.phone), **more)


def events(job: Job) -> Counter[str]:
    return Counter(Event.objects.filter(subject_type="job", subject_id=job.pk).values_list("kind", flat=True))


def entries(job: Job) -> list[str]:
    return [entry.text for entry in timeline.load_timeline(Job.objects.get(pk=job.pk))]


def types(call: PhoneCall, digits: str) -> PhoneCall:
    for digit in digits:
        call.press(digit)
    return call


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


def fail() -> None:
    raise RuntimeError("the process has trouble")


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


# --- who may


@pytest.mark.parametrize("attestation", ["TN-Validation-Passed-B", "TN-Validation-Failed-A", ""])
def test_forged_caller_without_a_pin_hears_and_changes_nothing(crew: Floor, attestation: str) -> None:
    ann, (job,) = ann_of(crew)
    before = events(job)
    call = calls(crew, ann, attestation=attestation)
    call.hears("You have 1 open job.").hears("We can't verify your number.")
    for secret in ("Dana", "Whitfield", "Washington", "Water heater", "5 5 5"):
        call.has_not_heard(secret)
    assert not call.listens
    technicians.set_pin(ann.pk, PIN, actor=MARIA)
    forged = calls(crew, ann, attestation=attestation).hears("Enter your PIN")
    for page, key in (
        (Page.JOB, "1"),
        (Page.JOB, "5"),
        (Page.GIVE_BACK, "1"),
        (Page.LATE, "20"),
        (Page.RESULT, "9"),
    ):
        forged.send(forged.pressing(key, state=str(MenuState(page, job.pk, crew.job(job).version))))
        forged.hears("Enter your PIN").has_not_heard("Dana")
    assert events(job) == before


def test_pin_guesses_are_limited(crew: Floor) -> None:
    ann, (job,) = ann_of(crew)
    technicians.set_pin(ann.pk, PIN, actor=MARIA)
    call = calls(crew, ann, attestation="")
    for _ in range(technicians.MAX_PIN_FAILURES - 1):
        call.press("0000").hears("This PIN is wrong.").has_not_heard("Dana")
    call.press("0000").hears("too many wrong PINs")
    assert not call.listens
    call = calls(crew, ann, attestation="").hears("too many wrong PINs").has_not_heard("Dana")
    assert not call.listens
    assert Event.objects.filter(kind="technician.pin_locked").count() == 1
    clock.travel(technicians.PIN_LOCK.total_seconds() + 1)
    calls(crew, ann, attestation="").press(PIN).hears("Dana Whitfield").press("1").hears("marked as done")
    assert crew.status(job) == "completed"


def test_wrong_pin_that_is_delivered_again_counts_once(crew: Floor) -> None:
    ann, _ = ann_of(crew)
    technicians.set_pin(ann.pk, PIN, actor=MARIA)
    call = calls(crew, ann, attestation="")
    wrong = call.pressing("0000")
    for _ in range(technicians.MAX_PIN_FAILURES + 1):
        call.send(wrong).hears("This PIN is wrong.").has_not_heard("Dana")
    ann.refresh_from_db()
    assert (ann.pin_failures, ann.pin_locked_until) == (1, None)
    call.press("1111").hears("This PIN is wrong.")
    ann.refresh_from_db()
    assert ann.pin_failures == 2, "another prompt's answer counts"
    call.send(call.pressing(PIN)).hears("Dana Whitfield")


def test_right_pin_that_is_delivered_again_is_still_right(crew: Floor) -> None:
    ann, _ = ann_of(crew)
    technicians.set_pin(ann.pk, PIN, actor=MARIA)
    call = calls(crew, ann, attestation="")
    right = call.pressing(PIN)
    with fault_injection.arm_crash_point("telephony.inbound_digits.recorded", fail):
        call.send(right, expected=500)
    for _ in range(2):
        call.send(right).hears("Dana Whitfield")
    row = call.row
    assert (row.keys_pressed, row.pending_keys) == ("", [])
    assert [identity for identity, _ in row.answered_prompts] == ["1:digits:pin-0-0"], "a PIN is never stored"


def test_technician_cannot_change_another_ones_job(crew: Floor) -> None:
    _ann, (job,) = ann_of(crew)
    bob = crew.technician("Bob", max_open_jobs=9, km=0.1)
    gives(crew, bob)
    call = calls(crew, bob)
    state = str(MenuState(Page.JOB, job.pk, crew.job(job).version))
    call.send(call.pressing("1", state=state)).hears("no longer yours, so nothing was recorded")
    assert crew.status(job) == "assigned"


def test_deactivated_technician_hears_nothing(crew: Floor) -> None:
    ann, (job,) = ann_of(crew)
    call = calls(crew, ann)
    technicians.change_technician(ann.pk, {"is_active": False}, open_jobs="keep", actor=MARIA)
    call.press("1").has_not_heard("Dana")
    assert crew.status(job) == "assigned"
    calls(crew, ann).has_not_heard("Dana").has_not_heard("Ann")


# --- beside offers


def test_open_offer_comes_first_and_key_5_leads_to_the_jobs(crew: Floor) -> None:
    ann, (job,) = ann_of(crew)
    crew.until(lambda: not Call.objects.filter(ended_at=None).exists())
    crew.phone(ann).will(ignore())
    offered = crew.started(customer_name="Eli Moss")
    crew.until(lambda: Offer.objects.filter(missed_at__isnull=False).exists())
    call = calls(crew, ann).hears("We have a job for you.").hears("For your open jobs, press 5.")
    call.press("5").hears("You have 1 open job.").hears("Dana Whitfield").press("1").hears("marked as done")
    assert crew.status(job) == "completed"
    calls(crew, ann).press("1").hears("the job is yours").hears("Eli Moss")
    assert crew.job(offered).technician == ann


def test_caller_hears_the_result_of_the_missed_offer_before_the_menu(crew: Floor) -> None:
    ann, _ = ann_of(crew)
    bob = crew.technician("Bob", on_duty=False)
    crew.until(lambda: not Call.objects.filter(ended_at=None).exists())
    crew.phone(ann).will(ignore())
    job = crew.started()
    crew.until(lambda: Offer.objects.filter(missed_at__isnull=False).exists())
    crew.later(91)
    crew.until(lambda: crew.status(job) == "pending")
    services.assign(job.pk, bob.pk, actor=MARIA, confirm_unfit=True)
    calls(crew, ann).hears("this job has already been taken").hears("You have 1 open job.")
    clock.travel(31 * 60)
    calls(crew, ann).has_not_heard("already been taken").hears("You have 1 open job.")


# --- by text


def test_late_by_text_is_recorded_once(crew: Floor) -> None:
    ann, (job,) = ann_of(crew)
    reply(crew, ann, "Late 20")
    assert texted(crew, ann, "you are 20 minutes late")
    text = Text.objects.get(direction="in")
    Text.objects.filter(pk=text.pk).update(handled_at=None)  # the process died before it had marked the text
    clock.travel(60)
    from dispatch.telephony.services import inbound

    inbound.process_unprocessed_texts()
    assert crew.job(job).late_minutes == 20
    assert events(job)["job.running_late"] == 1
    assert events(job)["job.text_received"] == 0


def test_late_by_text_with_several_jobs_reaches_the_dispatchers(crew: Floor) -> None:
    ann, jobs = ann_of(crew, 2)
    reply(crew, ann, "late 20")
    assert [events(job)["job.running_late"] for job in jobs] == [0, 0]
    assert [events(job)["job.text_received"] for job in jobs] == [1, 1]


def test_replies_are_sent_in_quiet_hours(crew: Floor) -> None:
    """Quiet hours hold back offers, never the answer to what a person has just done."""
    ann, (job,) = ann_of(crew)
    DispatchPolicy.objects.update(quiet_for="urgent", quiet_from=time(0), quiet_until=time(23, 59, 59))
    reply(crew, ann, "late 20")
    assert texted(crew, ann, "you are 20 minutes late")
    reply(crew, ann, "The gate is locked")
    assert texted(crew, ann, "Your dispatcher has received your text")
    calls(crew, ann).press("3").press("1").hears("We will look for another technician.")
    assert crew.job(job).waiting_for == "quiet_hours"
