"""Calls that ring for longer than asked, or go on after their hang-up was requested, as Twilio's may."""

from __future__ import annotations

from dispatch.jobs.models import Offer
from dispatch.technicians.models import Technician
from dispatch.telephony.models import Call
from tests.harness.jobs import Floor
from tests.harness.several import call_at_once, emergency
from tests.phones import answer, ignore

# Simulated seconds, longer than any test: the call ends when the technician hangs up, or the test lets it end.
NEVER = 1_000_000


def answered_call_that_expires(floor: Floor, ann: Technician):
    """Return the job and Ann's call, which goes on although her offer has expired."""
    floor.sim.set_timing(hang_up=NEVER)
    job = floor.started()
    call = floor.rings(ann).answer().hears("press 1")
    floor.until(lambda: Offer.objects.get().answered_at)
    floor.later(900)
    floor.until(lambda: floor.offers(job)[0] == ("Ann", "timed_out"))
    assert call.status == "in-progress"
    return job, call


def test_technician_is_called_again_after_the_end_of_the_first_call(floor: Floor) -> None:
    floor.set_policy(rounds=2, answered_extension_s=600)
    (ann,) = floor.crew("Ann")
    job, call = answered_call_that_expires(floor, ann)
    floor.until(lambda: floor.job(job).waiting_for == "technician")
    assert floor.calls_made(ann) == 1

    call.hang_up().ended("completed")
    floor.phone(ann).will(answer(press="1"))
    floor.until(lambda: floor.tick() or floor.status(job) == "assigned")
    assert floor.offers(job) == [("Ann", "timed_out"), ("Ann", "accepted")]


def test_key_after_the_offer_expired_is_refused_while_another_phone_rings(floor: Floor) -> None:
    floor.set_policy(answered_extension_s=600)
    ann, bob = floor.crew("Ann", "Bob")
    job, call = answered_call_that_expires(floor, ann)
    ringing = floor.rings(bob)

    call.press("1").hears("the time to accept this job has passed").ended("completed")
    ringing.answer().press("1").hears("the job is yours")

    floor.until(lambda: floor.status(job) == "assigned")
    assert floor.offers(job) == [("Ann", "timed_out"), ("Bob", "accepted")]
    assert floor.kinds(job).count("job.assigned") == 1


def test_key_in_a_call_whose_offer_expired_takes_a_job_that_nobody_has(floor: Floor) -> None:
    floor.set_policy(answered_extension_s=600)
    (ann,) = floor.crew("Ann")
    job, call = answered_call_that_expires(floor, ann)
    floor.until(lambda: floor.status(job) == "pending")

    call.press("1").hears("the job is yours").ended("completed")

    assert floor.job(job).technician == ann
    assert floor.offers(job) == [("Ann", "accepted")]


def test_phone_that_is_answered_after_the_job_was_taken_changes_nothing(floor: Floor) -> None:
    call_at_once(floor, 2)
    floor.sim.set_timing(hang_up=NEVER)
    ann, bob = floor.crew("Ann", "Bob")
    job = emergency(floor)
    anns, bobs = floor.rings(ann), floor.rings(bob)
    bobs.answer().hears("press 1").press("1").hears("the job is yours").ended("completed")
    floor.until(lambda: Call.objects.filter(to_phone=ann.phone, cancel_requested_at__isnull=False).exists())
    assert anns.status == "ringing"

    anns.answer().ended("completed").has_not_heard("press 1")

    floor.until(lambda: not Call.objects.filter(ended_at=None).exists())
    assert floor.offers(job) == [("Ann", "taken"), ("Bob", "accepted")]
    assert floor.job(job).technician == bob


def test_technician_who_answers_after_the_asked_ring_time_takes_the_job(floor: Floor) -> None:
    floor.sim.set_timing(ring_buffer=5)
    floor.set_policy(ring_timeout_s=5, answer_timeout_s=600)
    (ann,) = floor.crew("Ann")
    floor.phone(ann).will(answer(after=8, press="1"))
    job = floor.started()
    floor.until(lambda: floor.status(job) == "assigned")
    assert floor.offers(job) == [("Ann", "accepted")]


def test_phone_that_rings_for_longer_than_asked_is_missed_once(floor: Floor) -> None:
    floor.sim.set_timing(ring_buffer=5)
    floor.set_policy(ring_timeout_s=5, answer_timeout_s=600)
    ann, bob = floor.crew("Ann", "Bob")
    floor.phone(ann).will(ignore())
    floor.phone(bob).will(answer(press="1"))
    job = floor.started()
    floor.until(lambda: floor.status(job) == "assigned")
    assert floor.offers(job) == [("Ann", "no_answer"), ("Bob", "accepted")]
    assert Technician.objects.get(pk=ann.pk).misses_in_a_row == 1


def test_hang_up_of_an_expired_offer_comes_before_the_end_of_the_ringing(floor: Floor) -> None:
    floor.sim.set_timing(ring_buffer=NEVER)  # the phone would ring on for ever
    floor.set_policy(ring_timeout_s=5, answer_timeout_s=600)
    ann, bob = floor.crew("Ann", "Bob")
    floor.phone(ann).will(ignore())
    floor.phone(bob).will(answer(press="1"))
    job = floor.started()
    ringing = floor.rings(ann)
    floor.until(lambda: Offer.objects.get().ringing_since)
    floor.later(700)
    floor.until(lambda: floor.status(job) == "assigned")
    ringing.ended("canceled")
    assert floor.offers(job) == [("Ann", "timed_out"), ("Bob", "accepted")]
