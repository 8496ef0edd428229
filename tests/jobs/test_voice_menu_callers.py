"""Who may use the voice menu, how it goes with offers, and what technicians report by text instead."""

from __future__ import annotations

from datetime import time

import pytest

from dispatch.core import clock, fault_injection
from dispatch.core.models import Event
from dispatch.jobs import services
from dispatch.jobs.models import DispatchPolicy, Offer
from dispatch.jobs.rules.menu import MenuState, Page
from dispatch.technicians import services as technicians
from dispatch.technicians.rules import MAX_PIN_FAILURES, PIN_LOCK
from dispatch.telephony.models import Call, Text
from tests.harness.jobs import MARIA, Floor
from tests.harness.menus import PIN, ann_of, calls, events, fail, gives
from tests.jobs.test_answer_channels import reply, texted, texting  # noqa: F401
from tests.phones import ignore


@pytest.fixture
def crew(texting: Floor) -> Floor:  # noqa: F811
    return texting


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
    for _ in range(MAX_PIN_FAILURES - 1):
        call.press("0000").hears("This PIN is wrong.").has_not_heard("Dana")
    call.press("0000").hears("too many wrong PINs")
    assert not call.listens
    call = calls(crew, ann, attestation="").hears("too many wrong PINs").has_not_heard("Dana")
    assert not call.listens
    assert Event.objects.filter(kind="technician.pin_locked").count() == 1
    clock.travel(PIN_LOCK.total_seconds() + 1)
    calls(crew, ann, attestation="").press(PIN).hears("Dana Whitfield").press("1").hears("marked as done")
    assert crew.status(job) == "completed"


def test_wrong_pin_that_is_delivered_again_counts_once(crew: Floor) -> None:
    ann, _ = ann_of(crew)
    technicians.set_pin(ann.pk, PIN, actor=MARIA)
    call = calls(crew, ann, attestation="")
    wrong = call.pressing("0000")
    for _ in range(MAX_PIN_FAILURES + 1):
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
