"""A late yes takes a job that nobody has, on every channel. A job that somebody has, or is called for, stays."""

from __future__ import annotations

import pytest
import requests

from dispatch.capacity.models import OutboundNumber
from dispatch.core import clock
from dispatch.jobs import services, signed_links
from dispatch.jobs.models import Job, Offer
from dispatch.jobs.services import Answer, AnswerChannel, answer_offer
from dispatch.technicians.models import Technician
from dispatch.telephony.models import Call
from tests.harness.jobs import MARIA, Floor
from tests.harness.provider import end, press
from tests.jobs.test_answer_channels import tell_provider
from tests.phones import busy, ignore, manual
from tests.support.waiting import PATIENCE, wait_until


def missed(floor: Floor, *crew: Technician) -> Job:
    """A job whose technicians did not answer, so that it needs a dispatcher."""
    for one in crew:
        floor.phone(one).will(ignore())
    job = floor.started()
    floor.until(lambda: floor.status(job) == "pending")
    return floor.job(job)


def offer_to(job: Job, technician: Technician) -> Offer:
    return Offer.objects.filter(job=job, technician=technician).order_by("attempt")[0]


@pytest.mark.parametrize("by", [AnswerChannel.TEXT, AnswerChannel.LINK, AnswerChannel.CALL_BACK])
def test_late_yes_takes_a_job_that_needs_a_dispatcher(floor, by):
    ann, bob = floor.crew("Ann", "Bob")
    job = missed(floor, ann, bob)
    assert answer_offer(offer_to(job, ann).pk, None, "1", by=by) is Answer.ACCEPTED
    assert answer_offer(offer_to(job, bob).pk, None, "1", by=by) is Answer.TAKEN
    assert floor.offers(job) == [("Ann", "accepted"), ("Bob", "no_answer")]
    taken = floor.job(job)
    assert (taken.status, taken.technician, taken.pending_reason) == ("assigned", ann, "")
    row = Technician.objects.get(pk=ann.pk)
    assert (row.open_jobs, row.misses_in_a_row) == (1, 0)
    assert answer_offer(offer_to(job, ann).pk, None, "1", by=by) is Answer.ACCEPTED
    assert floor.kinds(job).count("job.assigned") == 1


def test_late_key_takes_a_job_that_needs_a_dispatcher(floor):
    (ann,) = floor.crew("Ann")
    job = floor.started()
    floor.rings(ann).answer().hears("press 1")
    call = Call.objects.get()
    clock.travel(400)
    services.expire_offer(job.pk, floor.job(job).step_token)
    floor.until(lambda: floor.status(job) == "pending")
    assert press(floor.sim, call, "1").status_code == 200
    assert floor.job(job).technician == ann


def test_calling_back_late_hears_the_offer_and_takes_the_job(floor):
    tell_provider(floor)
    (ann,) = floor.crew("Ann")
    job = missed(floor, ann)
    call = floor.phone(ann).calls_us(str(floor.number.phone), press="1")
    call.hears("Water heater repair").hears("the job is yours")
    assert floor.job(job).technician == ann


def test_link_opened_late_shows_the_offer_and_takes_the_job(floor):
    (ann,) = floor.crew("Ann")
    job = missed(floor, ann)
    url = signed_links.offer_url(offer_to(job, ann))
    page = requests.get(url, timeout=PATIENCE).text
    assert "Accept job" in page
    assert "Nobody has taken this job yet" in page
    assert "Answer by" not in page
    assert "The job is yours" in requests.post(url, data={"answer": "accept"}, timeout=PATIENCE).text
    assert floor.job(job).technician == ann


def test_late_yes_takes_a_job_that_waits_for_a_line(floor):
    ann, bob, _cid = floor.crew("Ann", "Bob", "Cid")
    floor.phone(ann).will(busy())
    floor.phone(bob).will(manual())
    job = floor.started()
    floor.rings(bob)
    OutboundNumber.objects.update(is_paused=True)
    services.call_next_now(job.pk, actor=MARIA)
    floor.until(lambda: floor.job(job).waiting_for == "line")
    assert answer_offer(offer_to(job, ann).pk, None, "1", by=AnswerChannel.TEXT) is Answer.ACCEPTED
    OutboundNumber.objects.update(is_paused=False)
    floor.tick()
    floor.work()
    assert floor.job(job).technician == ann
    assert floor.offers(job) == [("Ann", "accepted"), ("Bob", "skipped")]


def test_late_yes_withdraws_an_offer_whose_phone_was_not_called_yet(floor):
    ann, bob = floor.crew("Ann", "Bob")
    job = floor.started()
    floor.rings(ann).answer().hears("press 1")
    call = Call.objects.get()
    wait_until(lambda: Call.objects.get().status == "answered")
    clock.travel(400)
    services.expire_offer(job.pk, floor.job(job).step_token, place=False)
    assert Call.objects.get(subject_id=floor.live_offer(job).pk).status == "created"
    press(floor.sim, call, "1")
    assert floor.offers(job) == [("Ann", "accepted"), ("Bob", "taken")]
    assert floor.calls_made(bob) == 0


def test_late_yes_is_refused_while_another_phone_rings(floor):
    ann, bob = floor.crew("Ann", "Bob")
    floor.phone(ann).will(busy())
    floor.phone(bob).will(manual())
    job = floor.started()
    floor.rings(bob)
    assert answer_offer(offer_to(job, ann).pk, None, "1", by=AnswerChannel.TEXT) is Answer.EXPIRED
    assert floor.offers(job) == [("Ann", "busy"), ("Bob", "pending")]


@pytest.mark.parametrize("state", ["paused", "cancelled", "left", "gave it back", "declined first"])
def test_late_yes_is_refused_for_a_job_that_cannot_be_taken(floor, state):
    ann, _bob = floor.crew("Ann", "Bob")
    job = missed(floor, ann, _bob)
    offer = offer_to(job, ann)
    match state:
        case "paused":
            services.dispatch_again(job.pk, actor=MARIA)
            services.pause(job.pk, actor=MARIA)
        case "cancelled":
            services.cancel(job.pk, "by the customer", actor=MARIA)
        case "left":
            Technician.objects.filter(pk=ann.pk).update(is_active=False)
        case "gave it back":
            Job.objects.filter(pk=job.pk).update(not_again=[ann.pk])
        case _:
            Offer.objects.filter(pk=offer.pk).update(
                status="declined", outcome=Answer.DECLINED, settled_at=clock.now()
            )
    before = floor.offers(job), floor.status(job)
    arrived = offer.created_at if state == "declined first" else None
    answer = answer_offer(offer.pk, None, "1", by=AnswerChannel.TEXT, arrived_at=arrived)
    assert answer is not Answer.ACCEPTED
    assert (floor.offers(job), floor.status(job)) == before


def test_technician_who_changes_their_mind_takes_a_job_that_nobody_has(floor):
    (ann,) = floor.crew("Ann")
    floor.phone(ann).will(manual())
    job = floor.started()
    floor.rings(ann)
    offer = floor.live_offer(job)
    answer_offer(offer.pk, None, "2", by=AnswerChannel.TEXT)
    floor.until(lambda: floor.status(job) == "pending")
    assert answer_offer(offer.pk, None, "1", by=AnswerChannel.TEXT) is Answer.ACCEPTED


def test_late_yes_counts_for_the_newer_offer_of_the_same_job(floor):
    (ann,) = floor.crew("Ann")
    job = missed(floor, ann)
    floor.phone(ann).will(manual())
    services.dispatch_again(job.pk, actor=MARIA)
    floor.rings(ann)
    assert answer_offer(offer_to(job, ann).pk, None, "1", by=AnswerChannel.TEXT) is Answer.ACCEPTED
    assert floor.offers(job) == [("Ann", "no_answer"), ("Ann", "accepted")]


def test_late_yes_and_an_ended_call_never_assign_twice(floor):
    ann, bob = floor.crew("Ann", "Bob")
    job = floor.started()
    floor.rings(ann).answer().hears("press 1")
    call = Call.objects.get()
    end(floor.sim, call)
    floor.rings(bob).answer().press("1").hears("the job is yours")
    assert b"<Say" not in press(floor.sim, call, "1").content
    assert floor.job(job).technician == bob
