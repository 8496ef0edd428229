"""Check concurrent actions: one of them wins, and the others get an error."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest
from django.db import connections

from dispatch.core import clock
from dispatch.core.api.problems import Conflict
from dispatch.jobs import services
from dispatch.jobs.models import Job, Offer
from dispatch.jobs.services import Answer
from dispatch.technicians import services as technicians
from dispatch.technicians.models import Technician
from dispatch.telephony.models import Call
from tests.harness.jobs import JOHN, MARIA
from tests.support.waiting import PATIENCE


def at_once(*actions: Callable[[], Any]) -> list[Any]:
    """Runs the actions in threads that start together; what each returned or raised, in order."""
    ready = threading.Barrier(len(actions))
    results: list[Any] = [None] * len(actions)

    def run(place: int, action: Callable[[], Any]) -> None:
        try:
            ready.wait(PATIENCE)
            results[place] = action()
        except Exception as error:
            results[place] = error
        finally:
            connections.close_all()

    threads = [threading.Thread(target=run, args=(place, action)) for place, action in enumerate(actions)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE)
    assert not any(thread.is_alive() for thread in threads), "somebody waits for somebody"
    return results


@pytest.mark.parametrize("again", range(3))
def test_accepting_expiring_and_assigning_at_once_has_one_winner(floor, again):
    ann, bob = floor.crew("Ann", "Bob")
    job = floor.started()
    floor.rings(ann).answer().hears("press 1")
    offer, call = floor.live_offer(job), Call.objects.get()
    token, version = floor.job(job).step_token, floor.job(job).version
    # the deadline is now: the first one decides
    Offer.objects.filter(pk=offer.pk).update(expires_at=clock.now())
    answered, _, assigned = at_once(
        lambda: services.answer_offer(offer.pk, call.pk, "1"),
        lambda: services.expire_offer(job.pk, token, place=False),
        lambda: services.assign(job.pk, bob.pk, actor=MARIA, version=version, confirm_unfit=True),
    )
    job = floor.job(job)
    assert floor.kinds(job).count("job.assigned") == 1
    assert isinstance(answered, Answer)
    assert isinstance(assigned, Conflict) == (answered is Answer.ACCEPTED)
    assert job.technician == (ann if answered is Answer.ACCEPTED else bob)
    assert Technician.objects.get(pk=ann.pk).live_offer_id is None


@pytest.mark.parametrize("again", range(3))
def test_a_key_and_a_dispatcher_at_once_assign_one_technician(floor, again):
    ann, bob = floor.crew("Ann", "Bob")
    job = floor.started()
    floor.rings(ann).answer().hears("press 1")
    offer, call, version = floor.live_offer(job), Call.objects.get(), floor.job(job).version
    answered, assigned = at_once(
        lambda: services.answer_offer(offer.pk, call.pk, "1"),
        lambda: services.assign(job.pk, bob.pk, actor=MARIA, version=version),
    )
    job = floor.job(job)
    if answered is Answer.ACCEPTED:
        assert job.technician == ann
        assert "Ann accepted the job" in str(assigned.detail)
    else:
        assert (answered, job.technician) == (Answer.TAKEN, bob)
    assert Technician.objects.filter(open_jobs=1).count() == 1
    assert floor.kinds(job).count("job.assigned") == 1


def test_two_keys_at_once_count_once(floor):
    (ann,) = floor.crew("Ann")
    job = floor.started()
    floor.rings(ann).answer().hears("press 1")
    offer, call = floor.live_offer(job), Call.objects.get()
    answers = at_once(*[lambda: services.answer_offer(offer.pk, call.pk, "1")] * 4)
    assert answers == [Answer.ACCEPTED] * 4
    assert Technician.objects.get().open_jobs == 1
    mixed_job = floor.kinds(job)
    assert mixed_job.count("offer.accepted") == mixed_job.count("job.assigned") == 1


def test_concurrent_answers_on_all_channels_count_once(floor):
    (ann,) = floor.crew("Ann")
    job = floor.started()
    floor.rings(ann).answer().hears("press 1")
    offer, call = floor.live_offer(job), Call.objects.get()
    answers = at_once(
        lambda: services.answer_offer(offer.pk, call.pk, "1"),
        *[
            lambda by=by: services.answer_offer(offer.pk, None, "1", by=services.AnswerChannel(by))
            for by in ("text", "link", "call_back")
        ],
    )
    assert answers == [Answer.ACCEPTED] * 4
    assert Technician.objects.get().open_jobs == 1
    assert floor.kinds(job).count("job.assigned") == 1


def test_accept_and_decline_at_once_are_one_of_the_two(floor):
    (ann,) = floor.crew("Ann")
    job = floor.started()
    floor.rings(ann).answer().hears("press 1")
    offer, call = floor.live_offer(job), Call.objects.get()
    at_once(*[lambda key=key: services.answer_offer(offer.pk, call.pk, key) for key in "1212"])
    offer.refresh_from_db()
    assert (offer.status, floor.status(job)) in [("accepted", "assigned"), ("declined", "dispatching")]
    assert Technician.objects.get().open_jobs == (offer.status == "accepted")


def test_second_of_two_dispatchers_gets_a_conflict(floor):
    ann, _bob = floor.crew("Ann", "Bob")
    job = floor.started()
    version = floor.job(job).version
    results = at_once(
        lambda: services.assign(job.pk, ann.pk, actor=MARIA, version=version, confirm_unfit=True),
        lambda: services.cancel(job.pk, "customer called", actor=JOHN, version=version),
    )
    (refused,) = [result for result in results if isinstance(result, Conflict)]
    who = (
        "Maria Lopez assigned the job to Ann"
        if floor.status(job) == "assigned"
        else "John Sedlak canceled the job"
    )
    assert who in str(refused.detail)


@pytest.mark.parametrize("given", [False, True], ids=["on-offers", "assigned"])
def test_two_dispatchers_who_swap_technicians_do_not_block_each_other(floor, monkeypatch, given):
    ann, bob = floor.crew("Ann", "Bob")
    one, two = floor.started(), floor.started()
    if given:
        services.assign(one.pk, ann.pk, actor=MARIA, confirm_unfit=True)
        services.assign(two.pk, bob.pk, actor=MARIA, confirm_unfit=True)
    halfway = threading.Barrier(2)

    def meet(step: Callable) -> Callable:
        def met(*args: Any) -> Any:
            with suppress(threading.BrokenBarrierError):
                halfway.wait(0.5)
            return step(*args)

        return met

    for freeing in ("end_offer", "remove_open_job"):
        monkeypatch.setattr(technicians, freeing, meet(getattr(technicians, freeing)))
    results = at_once(
        lambda: services.assign(one.pk, bob.pk, actor=MARIA, confirm_unfit=True),
        lambda: services.assign(two.pk, ann.pk, actor=JOHN, confirm_unfit=True),
    )
    assert [getattr(result, "assigned", result) for result in results] == [True, True]
    assert (floor.job(one).technician, floor.job(two).technician) == (bob, ann)


def test_many_starts_at_once_make_one_job_and_one_call(floor):
    (ann,) = floor.crew("Ann")
    submission = floor.submit()
    at_once(*[lambda: services.start_job(submission.pk)] * 5)
    assert Job.objects.count() == 1
    floor.rings(ann)
    assert floor.calls_made(ann) == 1


def test_many_steps_at_once_make_one_offer(floor):
    ann, bob = floor.crew("Ann", "Bob")
    job = floor.started()
    floor.rings(ann)
    clock.travel(301)
    token = floor.job(job).step_token
    at_once(*[lambda: services.expire_offer(job.pk, token)] * 5)
    floor.rings(bob)
    assert floor.offers(job) == [("Ann", "timed_out"), ("Bob", "pending")]
    assert floor.calls_made(bob) == 1


def test_jobs_that_want_the_same_technicians_do_not_block_each_other(floor):
    crew = floor.crew("Ann", "Bob", "Cid", "Dee")
    floor.set_policy(ring_timeout_s=280)  # a busy machine must not make them miss their calls
    submissions = [floor.submit() for _ in range(6)]
    at_once(*[lambda pk=one.pk: services.start_job(pk, place=False) for one in submissions])
    live = Offer.objects.filter(status="pending")
    assert sorted(live.values_list("technician_id", flat=True)) == [one.pk for one in crew]
    assert Job.objects.filter(waiting_for="technician").count() == 2
    while Call.objects.filter(status=Call.Status.CREATED).exists():  # some may be held back by the rate
        floor.tick()
    for one in crew:
        floor.rings(one)
