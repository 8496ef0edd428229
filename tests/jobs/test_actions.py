"""Check what dispatchers do to a job, and the error when an action no longer fits."""

from __future__ import annotations

import re

import pytest
from django.core.exceptions import ValidationError

from dispatch.core.api.problems import Conflict
from dispatch.jobs import rules, services
from dispatch.jobs.models import Job
from dispatch.jobs.rules import Action
from dispatch.jobs.services import Correction, IllegalTransition
from dispatch.technicians.models import Technician
from dispatch.telephony.models import Call
from tests.api.client import Api
from tests.harness.jobs import JOHN, MARIA
from tests.phones import answer, busy, manual
from tests.support import factories


def open_jobs(technician: Technician) -> int:
    return Technician.objects.get(pk=technician.pk).open_jobs


def exhausted(floor, *crew) -> Job:
    """A job that nobody took."""
    for one in crew:
        floor.phone(one).will(busy())
    job = floor.started()
    floor.until(lambda: floor.status(job) == "pending")
    return floor.job(job)


def assigned_to(floor, technician) -> Job:
    floor.phone(technician).will(answer(press="1"))
    job = floor.started()
    floor.until(lambda: floor.status(job) == "assigned")
    floor.until(lambda: not Call.objects.filter(ended_at=None).exists())
    return floor.job(job)


def test_manual_assignment_rescinds_the_offer_and_hangs_up(floor):
    ann, bob = floor.crew("Ann", "Bob")
    job = floor.started()
    call = floor.rings(ann)
    result = services.assign(job.pk, bob.pk, actor=MARIA, note="he is next door")
    assert (result.assigned, result.warnings) == (True, ())
    call.ended("canceled")
    assert (floor.job(job).technician, open_jobs(bob)) == (bob, 1)
    assert floor.offers(job) == [("Ann", "assigned_by_hand")]


def test_an_unfit_technician_is_assigned_only_when_confirmed(floor):
    ann, bob = floor.crew("Ann", "Bob")
    job = exhausted(floor, ann, bob)
    Technician.objects.filter(pk=bob.pk).update(on_duty=False)
    refused = services.assign(job.pk, bob.pk, actor=MARIA)
    assert (refused.assigned, refused.warnings) == (False, ("Bob: off duty.",))
    assert floor.status(job) == "pending"
    assert services.assign(job.pk, bob.pk, actor=MARIA, confirm_unfit=True).assigned
    assert floor.job(job).pending_reason == ""


def test_a_technician_of_another_organization_does_not_exist(floor):
    ann, _ = floor.crew("Ann", "Bob")
    job = floor.started()
    stranger = factories.technician(factories.organization())
    with pytest.raises(ValidationError, match="Unknown or inactive technician"):
        services.assign(job.pk, stranger.pk, actor=MARIA, confirm_unfit=True)
    floor.rings(ann)


def test_reassigning_frees_the_first_technician(floor):
    ann, bob = floor.crew("Ann", "Bob")
    job = assigned_to(floor, ann)
    services.assign(job.pk, bob.pk, actor=MARIA)
    assert (open_jobs(ann), open_jobs(bob)) == (0, 1)
    assert floor.offers(job) == [("Ann", "assigned_by_hand")]
    with pytest.raises(ValidationError, match="already has this job"):
        services.assign(job.pk, bob.pk, actor=MARIA)


def test_cannot_make_it_never_offers_the_job_to_them_again(floor):
    ann, bob = floor.crew("Ann", "Bob")
    job = assigned_to(floor, ann)
    services.cannot_make_it(job.pk, actor=MARIA, note="flat tyre")
    assert open_jobs(ann) == 0
    floor.phone(bob).will(busy())
    floor.until(lambda: floor.status(job) == "pending")
    services.dispatch_again(job.pk, actor=MARIA)
    floor.until(lambda: len(floor.offers(job)) == 3)
    assert floor.offers(job)[0] == ("Ann", "cannot_make_it")
    assert [name for name, _ in floor.offers(job)[1:]] == ["Bob", "Bob"]
    assert floor.calls_made(ann) == 1


def test_job_given_back_is_ranked_with_those_on_duty_now(floor):
    ann, bob = floor.crew("Ann", "Bob")
    Technician.objects.filter(pk=bob.pk).update(on_duty=False)
    job = assigned_to(floor, ann)
    Technician.objects.filter(pk=bob.pk).update(on_duty=True)
    floor.set_policy(answer_timeout_s=120)
    services.cannot_make_it(job.pk, actor=MARIA)
    floor.rings(bob)
    assert floor.offers(job) == [("Ann", "cannot_make_it"), ("Bob", "pending")]
    assert floor.job(job).policy["answer_timeout_s"] == 120


def test_job_given_back_is_offered_to_who_missed_it_not_to_who_declined(floor):
    ann, bob, cid = floor.crew("Ann", "Bob", "Cid")
    floor.phone(ann).will(answer(press="2"))
    floor.phone(bob).will(busy(), manual())
    job = assigned_to(floor, cid)
    services.cannot_make_it(job.pk, actor=MARIA)
    floor.rings(bob)
    services.call_next_now(job.pk, actor=MARIA)
    floor.until(lambda: floor.status(job) == "pending")
    assert (floor.job(job).pending_reason, floor.calls_made(ann)) == ("exhausted", 1)


def test_dispatching_again_asks_nobody_who_declined(floor):
    ann, bob = floor.crew("Ann", "Bob")
    floor.phone(ann).will(answer(press="2"))
    job = exhausted(floor, bob)
    refused = services.assign(job.pk, ann.pk, actor=MARIA)
    assert refused.warnings == ("Ann declined this job.",)
    floor.phone(bob).will(manual())
    services.dispatch_again(job.pk, actor=MARIA)
    floor.rings(bob)
    assert floor.calls_made(ann) == 1


def test_cannot_make_it_after_an_assignment_by_hand_looks_for_somebody(floor):
    (ann,) = floor.crew("Ann")
    job = floor.started(lat=None, lng=None, address="Somewhere")
    services.assign(job.pk, ann.pk, actor=MARIA)
    services.cannot_make_it(job.pk, actor=JOHN)
    assert floor.job(job).pending_reason == "no_position"


def test_dispatching_again_ranks_with_the_current_policy(floor):
    ann, bob = floor.crew("Ann", "Bob")
    job = exhausted(floor, ann, bob)
    cid = floor.technician("Cid", km=0.5)
    floor.set_policy(answer_timeout_s=120)
    job = services.dispatch_again(job.pk, actor=MARIA, note="try Cid")
    floor.rings(cid)
    assert floor.live_offer(job).round == 2
    assert job.policy["answer_timeout_s"] == 120
    assert job.candidates.order_by("rank").first().technician == cid


def test_a_job_without_a_place_is_dispatched_with_a_corrected_one(floor):
    (ann,) = floor.crew("Ann")
    job = floor.started(lat=None, lng=None, address="Somewhere")
    with pytest.raises(ValidationError, match="Address not found"):
        services.dispatch_again(job.pk, actor=MARIA)
    with pytest.raises(ValidationError, match="Address not found"):
        services.dispatch_again(job.pk, actor=MARIA, correction=Correction(address="Nowhere at all"))
    assert floor.status(job) == "pending"
    services.dispatch_again(
        job.pk, actor=MARIA, correction=Correction(address="200 W Washington St, Phoenix, AZ 85003")
    )
    floor.rings(ann)
    assert floor.job(job).position_source == "zip"


def test_calling_the_next_hangs_up_the_ringing_call(floor):
    ann, bob = floor.crew("Ann", "Bob")
    job = floor.started()
    call = floor.rings(ann)
    services.call_next_now(job.pk, actor=MARIA, version=floor.job(job).version)
    floor.rings(bob)
    call.ended("canceled")
    assert floor.offers(job) == [("Ann", "skipped"), ("Bob", "pending")]


def test_more_time_moves_the_deadline_and_voids_the_old_timer(floor):
    floor.set_policy(answer_timeout_s=60, ring_timeout_s=50)
    (ann,) = floor.crew("Ann")
    job = floor.started()
    call = floor.rings(ann)
    services.extend(job.pk, 120, actor=MARIA)
    floor.later(70)
    floor.work()
    assert floor.offers(job) == [("Ann", "pending")]
    call.answer().press("1").hears("the job is yours")


def actions_of(job) -> list[str]:
    """What the API offers to do with it now."""
    user = factories.dispatcher(job.organization)
    return Api(user=user).get(f"jobs/{job.pk}/").json()["actions"]


def test_more_time_before_the_phone_rings_is_refused_instead_of_lost(floor):
    """The technician's time starts over when the phone rings: what was added before would be gone."""
    (ann,) = floor.crew("Ann")
    job = services.start_job(floor.submit().pk, place=False)
    before = floor.live_offer(job).expires_at
    with pytest.raises(IllegalTransition, match="The phone is not ringing yet, so there is nothing"):
        services.extend(job.pk, 120, actor=MARIA)
    assert floor.live_offer(job).expires_at == before
    assert "extend" not in actions_of(job)
    assert "job.extended" not in floor.kinds(job)
    floor.tick()
    floor.rings(ann)
    assert "extend" in actions_of(job)
    services.extend(job.pk, 120, actor=MARIA)
    offer = floor.live_offer(job)
    assert (offer.expires_at - offer.ringing_since).total_seconds() == 300 + 120


def test_more_time_needs_a_live_offer_and_a_sane_number(floor):
    ann, _ = floor.crew("Ann", "Bob")
    floor.set_policy(advance_on_busy=False)
    floor.phone(ann).will(busy())
    job = floor.started()
    floor.until(lambda: floor.offers(job) == [("Ann", "busy")])
    with pytest.raises(IllegalTransition, match="nothing to extend"):
        services.extend(job.pk, 60, actor=MARIA)
    with pytest.raises(ValidationError):
        services.extend(job.pk, 0, actor=MARIA)


def test_a_paused_job_rings_nobody_until_it_is_resumed(floor):
    ann, bob = floor.crew("Ann", "Bob")
    job = floor.started()
    call = floor.rings(ann)
    services.pause(job.pk, actor=MARIA)
    call.ended("canceled")
    paused = floor.job(job)
    assert (paused.next_action_at, paused.waiting_for) == (None, "person")
    floor.later(1000)
    floor.audit()
    floor.work()
    assert floor.offers(job) == [("Ann", "paused")]
    with pytest.raises(IllegalTransition, match="Resume it first"):
        services.call_next_now(job.pk, actor=JOHN)
    services.resume(job.pk, actor=JOHN)
    floor.rings(ann)
    assert floor.offers(job) == [("Ann", "paused"), ("Ann", "pending")]
    floor.phone(bob).did_not_ring()


def test_a_key_pressed_while_the_job_is_being_paused_does_not_assign(floor):
    (ann,) = floor.crew("Ann")
    job = floor.started()
    floor.rings(ann).answer().hears("press 1")
    offer, call = floor.live_offer(job), Call.objects.get()
    services.pause(job.pk, actor=MARIA)
    assert services.answer_offer(offer.pk, call.pk, "1") is services.Answer.NO_LONGER
    assert floor.status(job) == "dispatching"


def test_canceling_hangs_up_and_records_the_reason(floor):
    ann, _ = floor.crew("Ann", "Bob")
    job = floor.started()
    call = floor.rings(ann)
    with pytest.raises(ValidationError, match="Enter a reason"):
        services.cancel(job.pk, "  ", actor=MARIA)
    services.cancel(job.pk, "customer fixed it", actor=MARIA)
    call.ended("canceled")
    assert floor.status(job) == "cancelled"
    floor.later(1000)
    floor.work()
    floor.audit()
    assert floor.offers(job) == [("Ann", "cancelled")]


def test_a_cancelled_job_can_be_dispatched_again(floor):
    (ann,) = floor.crew("Ann")
    job = assigned_to(floor, ann)
    services.cancel(job.pk, "by mistake", actor=MARIA)
    assert open_jobs(ann) == 0
    services.dispatch_again(job.pk, actor=MARIA)
    floor.until(lambda: floor.status(job) == "assigned")
    assert floor.job(job).ended_at is None
    assert floor.offers(job) == [("Ann", "cancelled"), ("Ann", "accepted")]


def test_completing_frees_the_technician(floor):
    (ann,) = floor.crew("Ann")
    job = assigned_to(floor, ann)
    services.complete(job.pk, actor=MARIA)
    assert (floor.status(job), open_jobs(ann)) == ("completed", 0)


def test_stale_action_is_rejected_naming_the_last_change(floor):
    ann, bob = floor.crew("Ann", "Bob")
    job = floor.started()
    floor.rings(ann)
    seen = floor.job(job).version
    services.assign(job.pk, bob.pk, actor=MARIA, version=seen)
    with pytest.raises(Conflict) as refused:
        services.cancel(job.pk, "no longer needed", actor=JOHN, version=seen)
    said = str(refused.value.detail)
    last = r"At \d\d:\d\d:\d\d MST on 20\d\d-\d\d-\d\d, Maria Lopez assigned the job to Bob\."
    assert re.fullmatch(rf"This job has changed\. {last}", said), "in the organization's time"
    assert refused.value.conflict["by"]["label"] == "Maria Lopez"
    assert refused.value.conflict["version"] == floor.job(job).version


def test_time_of_the_last_change_is_not_part_of_its_reason(floor):
    job = exhausted(floor)
    services.cancel(job.pk, "The customer moved the visit.", actor=MARIA)
    with pytest.raises(Conflict) as refused:
        services.cancel(job.pk, "no longer needed", actor=JOHN, version=job.version)
    said = str(refused.value.detail)
    assert said.endswith(", Maria Lopez canceled the job: The customer moved the visit.")


@pytest.mark.parametrize("again", ["cancel", "complete"])
def test_action_that_a_colleague_took_already_is_refused_as_such(floor, again):
    (ann,) = floor.crew("Ann")
    job = assigned_to(floor, ann)

    def act(actor):
        return (
            services.cancel(job.pk, "x", actor=actor)
            if again == "cancel"
            else services.complete(job.pk, actor=actor)
        )

    act(MARIA)
    with pytest.raises(IllegalTransition) as refused:
        act(JOHN)
    said = str(refused.value.detail)
    assert re.match(
        r"This job is (canceled|completed) already\. At .*, Maria Lopez (canceled|completed) the job", said
    )


ACTIONS = {
    Action.ASSIGN: lambda job, who: services.assign(job.pk, who.pk, actor=JOHN, confirm_unfit=True),
    Action.DISPATCH_AGAIN: lambda job, who: services.dispatch_again(job.pk, actor=JOHN),
    Action.CALL_NEXT: lambda job, who: services.call_next_now(job.pk, actor=JOHN),
    Action.EXTEND: lambda job, who: services.extend(job.pk, 30, actor=JOHN),
    Action.PAUSE: lambda job, who: services.pause(job.pk, actor=JOHN),
    Action.RESUME: lambda job, who: services.resume(job.pk, actor=JOHN),
    Action.CANNOT_MAKE_IT: lambda job, who: services.cannot_make_it(job.pk, actor=JOHN),
    Action.CANCEL: lambda job, who: services.cancel(job.pk, "x", actor=JOHN),
    Action.COMPLETE: lambda job, who: services.complete(job.pk, actor=JOHN),
}


@pytest.mark.parametrize("status", ["pending", "assigned", "completed", "cancelled"])
def test_forbidden_transitions_are_rejected_with_a_reason(floor, status):
    """Every action in every status except dispatching, whose actions have separate tests."""
    (ann,) = floor.crew("Ann")
    other = floor.technician("Bob", km=3)
    Technician.objects.filter(pk=other.pk).update(on_duty=False)
    if status == "pending":
        job = exhausted(floor, ann)
    else:
        job = assigned_to(floor, ann)
        if status == "completed":
            services.complete(job.pk, actor=MARIA)
        elif status == "cancelled":
            services.cancel(job.pk, "customer called", actor=MARIA)
    before = Job.objects.values().get(pk=job.pk)
    for action, act in ACTIONS.items():
        if rules.status_after(status, action) is None:
            said = Job.Status(status).label.lower()
            with pytest.raises(IllegalTransition, match=f"is {said}.*{rules.DONE_TO[action]}"):
                act(job, other)
    assert Job.objects.values().get(pk=job.pk) == before


@pytest.mark.parametrize("status", ["dispatching", "pending", "assigned", "cancelled"])
def test_allowed_transitions_lead_to_the_listed_status(floor, status):
    ann, bob = floor.crew("Ann", "Bob")
    Technician.objects.update(max_open_jobs=20)

    def job_in_status() -> Job:
        job = floor.started()
        if status == "assigned":
            services.assign(job.pk, ann.pk, actor=MARIA, confirm_unfit=True)
        elif status == "cancelled":
            services.cancel(job.pk, "customer called", actor=MARIA)
        elif status == "pending":
            services.pause(job.pk, actor=MARIA)  # no phone rings now
            Job.objects.filter(pk=job.pk).update(status="pending", pending_reason="exhausted", paused_at=None)
        return job

    for action, act in ACTIONS.items():
        after = rules.status_after(status, action)
        if after is None:
            continue
        job = job_in_status()
        if action is Action.RESUME:
            services.pause(job.pk, actor=MARIA)
        act(job, bob)
        assert floor.status(job) == after, action
        if after not in ("completed", "cancelled"):
            services.cancel(job.pk, "make room", actor=MARIA)


def test_every_action_carries_its_actor_into_the_log(floor):
    ann, bob = floor.crew("Ann", "Bob")
    floor.phone(ann).will(manual())
    job = floor.started()
    services.pause(job.pk, actor=MARIA)
    services.resume(job.pk, actor=MARIA)
    floor.until(lambda: any(status == "pending" for _, status in floor.offers(job)))
    services.extend(job.pk, 30, actor=MARIA)
    services.call_next_now(job.pk, actor=MARIA)
    services.assign(job.pk, bob.pk, actor=MARIA, confirm_unfit=True)
    services.cannot_make_it(job.pk, actor=MARIA)
    services.assign(job.pk, ann.pk, actor=MARIA, confirm_unfit=True)
    services.complete(job.pk, actor=MARIA)
    from dispatch.jobs.timeline import load_timeline

    by_maria = [entry.kind for entry in load_timeline(floor.job(job)) if entry.actor_label == "Maria Lopez"]
    for kind in ("paused", "resumed", "extended", "called_next", "assigned", "cannot_make_it", "completed"):
        assert f"job.{kind}" in by_maria
