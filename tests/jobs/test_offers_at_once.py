"""An emergency is offered to several technicians at once: the first one who accepts has it."""

from __future__ import annotations

from datetime import timedelta

import pytest

from dispatch.core import clock
from dispatch.jobs import services
from dispatch.jobs.models import Offer
from dispatch.jobs.services import Answer, AnswerChannel
from dispatch.jobs.timeline import load_timeline
from dispatch.technicians.models import Technician
from tests.conftest import forget_redis
from tests.harness.jobs import MARIA, Floor
from tests.harness.provider import key_pressed, record_only
from tests.harness.several import call_at_once, call_of, emergency, offer_of, pending
from tests.jobs.test_races import at_once
from tests.phones import answer, busy
from tests.support.row_locks import ends_while_held


@pytest.fixture
def several(floor: Floor) -> Floor:
    """A floor that calls three technicians at once for emergencies."""
    return call_at_once(floor)


# --- one of several accepts ----------------------------------------------------------------------------------
def test_three_phones_ring_at_once_and_the_first_yes_wins(several):
    ann, bob, cid, _dee = several.crew("Ann", "Bob", "Cid", "Dee")
    job = emergency(several)
    anns, bobs, cids = (several.rings(one) for one in (ann, bob, cid))
    assert pending(job) == [(0, "Ann"), (1, "Bob"), (2, "Cid")]
    bobs.answer().hears("press 1 to accept")
    cids.answer().hears("press 1 to accept")

    bobs.press("1").hears("the job is yours").ended("completed")

    anns.ended("canceled")
    several.until(lambda: cids.status == "completed")  # a worker asks the provider to speak again
    cids.hears("this job has already been taken")
    job = several.job(job)
    assert (job.status, job.technician, job.fill_at, job.next_action_at) == ("assigned", bob, None, None)
    assert several.offers(job) == [("Ann", "taken"), ("Bob", "accepted"), ("Cid", "taken")]
    assert Offer.objects.get(technician=ann).status == "rescinded"
    assert several.calls_made(Technician.objects.get(name="Dee")) == 0


def test_history_says_how_many_are_called_at_once(several):
    several.crew("Ann", "Bob", "Cid", "Dee")
    job = emergency(several)
    (found,) = [entry for entry in load_timeline(job) if entry.kind == "job.offering"]
    assert found.did.startswith("found 4 eligible technicians of 4 within")
    assert found.did.endswith("; 3 technicians are called at once")


@pytest.mark.parametrize("again", range(3))
def test_of_two_keys_at_once_exactly_one_wins(several, again):
    ann, bob, _cid = several.crew("Ann", "Bob", "Cid")
    job = emergency(several)
    several.rings(ann).answer().hears("press 1")
    several.rings(bob).answer().hears("press 1")
    calls = [call_of(offer_of(job, one)) for one in (ann, bob)]
    answers = at_once(*[lambda call=call: services.answer_offer(call.subject_id, call.pk, "1") for call in calls])
    assert sorted(answers) == [Answer.ACCEPTED, Answer.TAKEN]
    winner = (ann, bob)[answers.index(Answer.ACCEPTED)]
    assert several.job(job).technician == winner
    assert several.kinds(job).count("job.assigned") == 1
    assert list(Technician.objects.filter(open_jobs=1)) == [winner]
    assert pending(job) == []


def test_of_two_keys_sent_at_once_one_hears_that_the_job_is_taken(several):
    ann, bob = several.crew("Ann", "Bob")
    job = emergency(several)
    several.rings(ann).answer().hears("press 1")
    several.rings(bob).answer().hears("press 1")
    requests = [key_pressed(several.sim, call_of(offer_of(job, one)), "1") for one in (ann, bob)]
    documents = [reply.text for reply in at_once(*[request.post for request in requests])]
    assert sorted("The job is yours" in document for document in documents) == [False, True]
    assert sorted("already been taken" in document for document in documents) == [False, True]
    assert several.kinds(job).count("job.assigned") == 1


@pytest.mark.parametrize("by", ["text", "link", "call_back"])
def test_a_later_yes_on_any_channel_is_refused_politely(several, by):
    ann, bob = several.crew("Ann", "Bob")
    job = emergency(several)
    several.rings(ann).answer().hears("press 1").press("1").hears("the job is yours")
    assert services.answer_offer(offer_of(job, bob).pk, None, "1", by=AnswerChannel(by)) is Answer.TAKEN
    assert several.job(job).technician == ann


def test_a_recorded_yes_of_another_slot_does_not_take_the_job_again(several):
    """Two keys are recorded, and the process that should apply the first one has died."""
    ann, bob = several.crew("Ann", "Bob")
    job = emergency(several)
    several.rings(ann).answer().hears("press 1")
    several.rings(bob).answer().hears("press 1")
    for one in (ann, bob):
        record_only(several.sim, call_of(offer_of(job, one)), "1")
    with pytest.raises(services.IllegalTransition):
        services.pause(job.pk, actor=MARIA)
    assert several.offers(job) == [("Ann", "accepted"), ("Bob", "taken")]
    assert several.kinds(job).count("job.assigned") == 1
    assert several.job(job).technician == ann


def test_winner_is_not_held_back_by_the_locked_row_of_another_technician(several):
    ann, bob = several.crew("Ann", "Bob")
    job = emergency(several)
    several.rings(ann).answer().hears("press 1")
    call = call_of(offer_of(job, ann))
    result = ends_while_held([bob], lambda: services.answer_offer(call.subject_id, call.pk, "1"), within=5)
    assert result is Answer.ACCEPTED
    assert several.offers(job) == [("Ann", "accepted"), ("Bob", "taken")]
    assert Technician.objects.get(pk=bob.pk).live_offer_id is not None  # until the repair
    services.repair_technicians()
    assert Technician.objects.get(pk=bob.pk).live_offer_id is None


# --- each slot has a cascade ---------------------------------------------------------------------------------
def test_a_decline_calls_the_next_technician_in_its_slot(several):
    ann, bob, cid, dee = several.crew("Ann", "Bob", "Cid", "Dee")
    job = emergency(several)
    for one in (ann, cid):
        several.rings(one)
    several.rings(bob).answer().hears("press 1").press("2").hears("declined")
    several.rings(dee)
    assert pending(job) == [(0, "Ann"), (1, "Dee"), (2, "Cid")]
    assert several.offers(job)[1] == ("Bob", "declined")


def test_each_slot_has_its_own_deadline_and_timeout_task(several):
    ann, bob, cid = several.crew("Ann", "Bob", "Cid")
    several.set_policy(offers_at_once_for_emergencies=2)
    job = emergency(several)
    anns, bobs = several.rings(ann), several.rings(bob)
    several.until(lambda: Offer.objects.filter(job=job, ringing_since=None).count() == 0)
    offer, other = offer_of(job, ann), offer_of(job, bob)
    token = str(several.job(job).step_token)
    tasks = [args for function, args in several.delayed() if function.endswith("offer_timed_out")]
    assert sum(args[:2] == [job.pk, token] for args in tasks) >= 2
    Offer.objects.filter(pk=other.pk).update(expires_at=offer.expires_at + timedelta(seconds=200))

    several.later((offer.expires_at - clock.now()).total_seconds() + 1)
    several.rings(cid)

    anns.ended("canceled")
    assert bobs.status == "ringing"
    assert several.offers(job) == [("Ann", "timed_out"), ("Bob", "pending"), ("Cid", "pending")]
    assert pending(job) == [(0, "Cid"), (1, "Bob")]
    other.refresh_from_db()
    assert several.job(job).next_action_at == other.expires_at


def test_both_slots_expire_at_the_same_time(several):
    ann, bob, cid, dee = several.crew("Ann", "Bob", "Cid", "Dee")
    several.set_policy(offers_at_once_for_emergencies=2)
    job = emergency(several)
    several.rings(ann)
    several.rings(bob)
    clock.travel(700)
    services.audit()
    assert several.offers(job)[:2] == [("Ann", "timed_out"), ("Bob", "timed_out")]
    assert sorted(pending(job)) == [(0, "Cid"), (1, "Dee")]
    several.audit()
    several.rings(cid)
    several.rings(dee)


def test_the_job_is_pending_only_after_the_last_slot(several):
    ann, bob = several.crew("Ann", "Bob")
    several.phone(bob).will(busy())
    job = emergency(several)
    anns = several.rings(ann)
    several.until(lambda: several.offers(job)[1] == ("Bob", "busy"))
    several.work()
    assert several.status(job) == "dispatching"
    anns.answer().hears("press 1").press("2").hears("declined")
    several.until(lambda: several.status(job) == "pending")
    assert several.job(job).pending_reason == "exhausted"
    assert several.kinds(job).count("job.pending") == 1


def test_nobody_is_offered_a_job_twice_in_a_round(several):
    crew = several.crew("Ann", "Bob", "Cid", "Dee", "Eve")
    several.set_policy(rounds=2)
    for one in crew:
        several.phone(one).will(busy())
    job = emergency(several)
    several.until(lambda: several.status(job) == "pending")
    made = list(Offer.objects.filter(job=job).values_list("technician__name", "round"))
    assert sorted(made) == sorted((one.name, round_) for one in crew for round_ in (1, 2))


def test_the_next_round_leaves_out_whoever_is_still_being_called(several):
    ann, bob = several.crew("Ann", "Bob")
    several.set_policy(rounds=2)
    several.phone(bob).will(busy(), answer(press="2"))
    job = emergency(several)
    anns = several.rings(ann)
    several.until(lambda: ("Bob", "declined") in several.offers(job))
    several.until(lambda: several.job(job).fill_at is None)
    assert several.offers(job) == [("Ann", "pending"), ("Bob", "busy"), ("Bob", "declined")]
    anns.decline()
    several.rings(ann)
    assert [pair for pair in several.offers(job) if pair[0] == "Ann"] == [("Ann", "busy"), ("Ann", "pending")]


def test_a_slot_waits_for_the_deadline_if_the_policy_says_so(several):
    ann, bob, cid = several.crew("Ann", "Bob", "Cid")
    several.set_policy(offers_at_once_for_emergencies=2, advance_on_decline=False)
    job = emergency(several)
    several.rings(ann)
    several.rings(bob).answer().hears("press 1").press("2").hears("declined")
    several.work()
    held = offer_of(job, bob).holds_until
    assert held is not None
    assert several.job(job).fill_at == held
    several.audit()
    assert pending(job) == [(0, "Ann")]
    Offer.objects.filter(job=job, technician=ann).update(expires_at=held + timedelta(seconds=300))
    several.later((held - clock.now()).total_seconds() + 1)
    several.rings(cid)
    assert pending(job) == [(0, "Ann"), (1, "Cid")]


def test_a_locked_technician_holds_back_only_their_slot(several):
    ann, bob, _cid, _dee = several.crew("Ann", "Bob", "Cid", "Dee")
    several.set_policy(offers_at_once_for_emergencies=2)
    job = emergency(several)
    several.rings(ann)
    several.rings(bob)
    clock.travel(700)
    forget_redis()
    ends_while_held([ann], services.audit)
    assert several.offers(job)[:2] == [("Ann", "pending"), ("Bob", "timed_out")]
    clock.travel(30)
    services.audit()
    assert several.offers(job)[:2] == [("Ann", "timed_out"), ("Bob", "timed_out")]
