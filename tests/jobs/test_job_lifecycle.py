"""From a form to an assigned technician, as the people at their phones live it."""

from __future__ import annotations

import pytest

from dispatch.core.models import Event
from dispatch.jobs import timeline
from dispatch.technicians.models import Technician
from dispatch.telephony.models import Call
from tests.phones import answer, busy, decline, fails, ignore, refused, voicemail


def test_a_form_rings_the_nearest_technicians_phone_and_is_accepted(floor):
    ann, bob = floor.crew("Ann", "Bob")
    job = floor.started()
    call = floor.rings(ann).answer()
    call.hears("Water heater repair").hears("200 W Washington St, Phoenix, Arizona").hears("press 1 to accept")
    call.press("1").hears("the job is yours").hears("Dana Whitfield")
    floor.until(lambda: floor.status(job) == "assigned")
    assert floor.job(job).technician == ann
    assert Technician.objects.get(pk=ann.pk).open_jobs == 1
    floor.phone(bob).did_not_ring()
    assert floor.kinds(job) == [
        "submission.received",
        "job.created",
        "job.offering",
        "offer.made",
        "offer.ringing",
        "offer.answered",
        "offer.accepted",
        "job.assigned",
    ]
    call.ended("completed")


@pytest.mark.parametrize(
    ("does", "outcome"),
    [
        (answer(press="2"), "declined"),
        (busy(), "busy"),
        (decline(), "busy"),
        (fails(30003), "failed"),
        (ignore(), "no_answer"),
        (answer(hang_up_after=1), "hangup"),
        (voicemail(), "hangup"),
        (refused(21211), "bad_number"),
    ],
    ids=["declines", "is busy", "refuses", "fails", "ignores", "hangs up", "voicemail", "refused"],
)
def test_next_technician_is_called_at_once_when_the_first(floor, does, outcome):
    ann, bob = floor.crew("Ann", "Bob")
    floor.sim.forgive()
    floor.phone(ann).will(does)
    floor.phone(bob).will(answer(press="1"))
    job = floor.started()
    floor.until(lambda: floor.status(job) == "assigned")
    assert floor.offers(job) == [("Ann", outcome), ("Bob", "accepted")]
    assert floor.calls_made(ann) <= 1


def test_star_repeats_the_offer(floor):
    (ann,) = floor.crew("Ann")
    floor.started()
    call = floor.rings(ann).answer().hears("press 1 to accept")
    call.press("*")
    floor.until(lambda: call.said.lower().count("press 1 to accept") == 2)
    call.press("1").hears("the job is yours")


def test_at_the_deadline_the_call_is_hung_up_and_the_next_one_rings(floor):
    ann, bob = floor.crew("Ann", "Bob")
    floor.set_policy(ring_timeout_s=280)
    job = floor.started()
    call = floor.rings(ann)
    floor.later(301)
    bobs = floor.rings(bob)
    call.ended("canceled")
    assert floor.offers(job) == [("Ann", "timed_out"), ("Bob", "pending")]
    bobs.answer().press("1").hears("the job is yours")


def test_answering_extends_the_deadline_once_to_some_time_after(floor):
    (ann,) = floor.crew("Ann")
    floor.set_policy(answer_timeout_s=600, ring_timeout_s=600, answered_extension_s=600)
    job = floor.started()
    call = floor.rings(ann)
    first = floor.live_offer(job).expires_at
    floor.later(400)
    call.answer().hears("press 1 to accept")
    offer = floor.live_offer(job)
    assert abs((offer.expires_at - offer.answered_at).total_seconds() - 600) < 0.01
    assert offer.expires_at > first
    floor.later(201)  # past the first deadline, with its timeout task
    floor.work()
    assert floor.offers(job) == [("Ann", "pending")]
    call.press("1").hears("the job is yours")


def test_nobody_accepts_and_the_job_goes_to_the_dispatchers(floor):
    ann, bob = floor.crew("Ann", "Bob")
    floor.phone(ann).will(answer(press="2"))
    floor.phone(bob).will(busy())
    job = floor.started()
    floor.until(lambda: floor.status(job) == "pending")
    job = floor.job(job)
    assert (job.pending_reason, job.waiting_for, job.next_action_at) == ("exhausted", "person", None)
    told = Event.objects.get(kind="job.pending")
    assert (told.subject_id, told.data["reason"]) == (job.pk, "exhausted")


def test_nobody_near_and_no_place_go_to_the_dispatchers_too(floor):
    floor.technician("Far away", km=200)
    assert floor.started().pending_reason == "nobody_near"
    lost = floor.started(lat=None, lng=None, address="Somewhere")
    assert (lost.status, lost.pending_reason) == ("pending", "no_position")


def test_a_zip_code_is_enough_of_a_place(floor):
    (ann,) = floor.crew("Ann")
    job = floor.started(lat=None, lng=None)
    assert job.position_source == "zip"
    floor.rings(ann)


def test_candidates_carry_their_reasons_and_the_rest_is_counted(floor):
    floor.technician("Near", km=3)
    floor.technician("Off duty", km=1, on_duty=False)
    floor.technician("Loaded", km=2, open_jobs=1)
    rows = floor.started().candidates.select_related("technician")
    assert [(row.technician.name, row.verdict) for row in rows] == [
        ("Near", "in"),
        ("Off duty", "out"),
        ("Loaded", "out"),
    ]
    assert all(row.reason for row in rows)
    Technician.objects.filter(name="Loaded").update(open_jobs=0)


def test_the_timeout_task_carries_the_token_and_who_remains(floor):
    floor.crew("Ann", "Bob", "Cid")
    job = floor.started()
    floor.until(floor.delayed)
    job = floor.job(job)
    ((function, (job_id, token, remaining)),) = floor.delayed()
    assert function == "dispatch.jobs.tasks.offer_timed_out"
    assert (job_id, token) == (job.pk, str(job.step_token))
    assert remaining == list(Technician.objects.exclude(name="Ann").order_by("pk").values_list("pk", flat=True))


def test_technician_who_went_off_duty_is_skipped(floor):
    ann, bob, cid = floor.crew("Ann", "Bob", "Cid")
    job = floor.started()
    Technician.objects.filter(pk=bob.pk).update(on_duty=False)
    floor.rings(ann).decline()
    floor.rings(cid)
    assert floor.offers(job) == [("Ann", "busy"), ("Cid", "pending")]
    assert (row := job.candidates.get(technician=bob)).verdict == "out"
    assert row.reason == "off duty"
    floor.phone(bob).did_not_ring()


def test_timeline_describes_every_event(floor):
    (ann,) = floor.crew("Ann")
    floor.phone(ann).will(answer(press="1"))
    job = floor.started()
    floor.until(lambda: floor.status(job) == "assigned")
    said = [entry.text for entry in timeline.load_timeline(job)]
    assert "Maria Lopez received the form: Water heater repair" in said
    assert "Dispatch offered the job to Ann (attempt 1)" in said
    assert "Ann accepted the job" in said
    assert "Phone provider reported key 1" in said
    assert Call.objects.get().context["job_id"] == job.pk
