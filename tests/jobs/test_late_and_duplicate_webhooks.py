"""What comes late, twice, out of order or never changes nothing, or heals."""

from __future__ import annotations

import uuid

import pytest

from dispatch.core import clock
from dispatch.jobs import services, tasks
from dispatch.jobs.models import Job, Offer
from dispatch.jobs.services import Answer, answer_offer
from dispatch.technicians.models import Technician
from dispatch.telephony.models import Call
from tests.harness.jobs import MARIA
from tests.phones import answer, ignore


def state_of(job: Job) -> tuple:
    row = Job.objects.values("status", "step_token", "version", "technician_id", "next_action_at").get(pk=job.pk)
    return (*row.values(), *Offer.objects.filter(job=job).order_by("pk").values_list("status", "expires_at"))


@pytest.mark.parametrize("trouble", ["duplicate", "reorder", "delay"])
def test_callbacks_doubled_reordered_or_late_make_the_same_story(floor, trouble):
    ann, bob = floor.crew("Ann", "Bob")
    {
        "duplicate": floor.sim.duplicate_callbacks,
        "reorder": floor.sim.reorder_callbacks,
        "delay": lambda: floor.sim.delay_callbacks(4),
    }[trouble]()
    floor.phone(ann).will(answer(press="2"))
    floor.phone(bob).will(answer(press="1"))
    job = floor.started()
    floor.until(lambda: floor.status(job) == "assigned")
    floor.until(lambda: Call.objects.filter(ended_at=None).count() == 0)
    assert floor.offers(job) == [("Ann", "declined"), ("Bob", "accepted")]
    assert Technician.objects.get(pk=bob.pk).open_jobs == 1


def test_without_any_status_callback_the_deadline_moves_on(floor):
    ann, bob = floor.crew("Ann", "Bob")
    floor.sim.lose_callbacks()
    floor.phone(ann).will(ignore())
    floor.phone(bob).will(answer(press="1"))
    job = floor.started()
    floor.later(301)
    floor.until(lambda: floor.status(job) == "assigned")
    assert floor.offers(job) == [("Ann", "not_reported"), ("Bob", "accepted")]


def test_key_after_the_deadline_takes_a_job_that_nobody_else_is_called_for(floor):
    (ann,) = floor.crew("Ann")
    job = floor.started()
    call = floor.rings(ann).answer().hears("press 1")
    clock.travel(400)  # nobody has noticed yet
    call.press("1").hears("the job is yours")
    assert floor.offers(job) == [("Ann", "accepted")]


def test_a_key_of_a_rescinded_offer_hears_that_the_job_is_gone(floor):
    ann, bob = floor.crew("Ann", "Bob")
    job = floor.started()
    floor.rings(ann).answer().hears("press 1")
    offer, call = floor.live_offer(job), Call.objects.get()
    services.assign(job.pk, bob.pk, actor=MARIA)
    before = state_of(job)
    assert answer_offer(offer.pk, call.pk, "1") is Answer.TAKEN
    assert state_of(job) == before


def test_key_pressed_before_hang_up_hears_that_the_job_is_taken(floor):
    ann, bob = floor.crew("Ann", "Bob")
    job = floor.started()
    call = floor.rings(ann).answer().hears("press 1")
    floor.sim.answer_500(on="update")  # the hang-up is not heard
    services.assign(job.pk, bob.pk, actor=MARIA)
    call.press("1").hears("this job has already been taken").ended("completed")
    assert floor.job(job).technician == bob


def test_the_same_key_twice_has_the_same_answer(floor):
    (ann,) = floor.crew("Ann")
    job = floor.started()
    floor.rings(ann).answer().hears("press 1")
    offer, call = floor.live_offer(job), Call.objects.get()
    assert answer_offer(offer.pk, call.pk, "1") is Answer.ACCEPTED
    assert answer_offer(offer.pk, call.pk, "1") is Answer.ACCEPTED
    assert answer_offer(offer.pk, call.pk, "2") is Answer.ACCEPTED
    assert Technician.objects.get().open_jobs == 1
    assert floor.kinds(job).count("job.assigned") == 1


def test_a_key_counts_only_for_the_offers_own_call(floor):
    ann, bob = floor.crew("Ann", "Bob")
    job, other = floor.started(), floor.started()
    floor.rings(ann)
    floor.rings(bob)
    offer = floor.live_offer(job)
    call_of_the_other = Call.objects.get(subject_id=floor.live_offer(other).pk)
    with pytest.raises(Call.DoesNotExist):
        answer_offer(offer.pk, call_of_the_other.pk, "1")
    assert floor.status(job) == "dispatching"


def test_wrong_timeout_tasks_change_nothing(floor):
    ann, bob = floor.crew("Ann", "Bob")
    job = floor.started()
    floor.rings(ann)
    token = str(floor.job(job).step_token)
    before = state_of(job)
    tasks.offer_timed_out(job.pk, token, [])  # early
    tasks.offer_timed_out(job.pk, str(uuid.uuid4()), [])  # of another step
    assert state_of(job) == before
    clock.travel(301)
    tasks.offer_timed_out(job.pk, token, [bob.pk])
    floor.rings(bob)
    before = state_of(job)
    tasks.offer_timed_out(job.pk, token, [bob.pk])  # again
    tasks.offer_next(job.pk, token)
    assert state_of(job) == before
    assert floor.offers(job) == [("Ann", "timed_out"), ("Bob", "pending")]
    assert floor.calls_made(bob) == 1


def test_a_late_timeout_of_an_assigned_job_changes_nothing(floor):
    (ann,) = floor.crew("Ann")
    floor.phone(ann).will(answer(press="1"))
    job = floor.started()
    token = str(floor.job(job).step_token)
    floor.until(lambda: floor.status(job) == "assigned")
    before = state_of(job)
    tasks.offer_timed_out(job.pk, token, [])
    floor.later(400)
    floor.work()
    assert state_of(job) == before


def test_starting_twice_makes_one_job(floor):
    (ann,) = floor.crew("Ann")
    submission = floor.submit()
    tasks.start_job(submission.pk)
    tasks.start_job(submission.pk)
    floor.work()
    assert Job.objects.count() == 1
    floor.rings(ann)
    assert floor.calls_made(ann) == 1


def test_accepting_hangs_up_whatever_else_still_rings_for_the_job(floor):
    ann, bob = floor.crew("Ann", "Bob")
    floor.set_policy(ring_timeout_s=280)
    floor.started()
    still_ringing = floor.rings(ann)
    floor.sim.answer_500(on="update")  # the hang-up at the deadline is not heard
    floor.later(301)
    floor.rings(bob).answer().press("1").hears("the job is yours")
    still_ringing.ended("canceled")


def test_late_report_of_an_ended_call_leaves_the_next_offer(floor):
    ann, bob = floor.crew("Ann", "Bob")
    job = floor.started()
    floor.rings(ann).decline()
    floor.rings(bob)
    before = state_of(job)
    services.call_changed(Call.objects.get(to_phone=str(ann.phone)))
    assert state_of(job) == before
