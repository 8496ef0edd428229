"""Jobs that wait: for a technician on another offer, for a line, for the provider's rate."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta

from django.db import transaction

from dispatch.capacity import redis_scripts
from dispatch.capacity.models import DispatchPool, OutboundNumber
from dispatch.core import clock
from dispatch.core.models import Event
from dispatch.core.redis.client import client
from dispatch.core.runtime.queues import notification_channel
from dispatch.jobs import services
from dispatch.jobs.models import Job
from dispatch.jobs.services import auditor, dispatching, expire_offer, transitions
from dispatch.technicians.models import Technician
from dispatch.technicians.services import set_duty
from dispatch.telephony import services as telephony
from dispatch.telephony.models import Call
from tests.harness.jobs import MARIA
from tests.phones import answer, busy, ignore
from tests.support.waiting import wait_until
from tests.telephony.conftest import listener

__all__ = ["listener"]


def test_two_jobs_never_ring_one_technician_at_once(floor):
    (ann,) = floor.crew("Ann")
    Technician.objects.update(max_open_jobs=2)
    first, second = floor.started(), floor.started()
    call = floor.rings(ann)
    waiting = floor.job(second)
    assert (waiting.status, waiting.waiting_for) == ("dispatching", "technician")
    assert waiting.candidates.get().verdict == "deferred"
    call.answer().press("1").hears("the job is yours").ended()
    floor.until(lambda: floor.status(first) == "assigned")
    floor.until(lambda: Call.objects.filter(ended_at=None).count() == 0)
    floor.tick()
    floor.rings(ann).answer().press("1").hears("the job is yours")
    floor.until(lambda: floor.status(second) == "assigned")
    assert Technician.objects.get().open_jobs == 2


def test_all_others_are_tried_before_the_job_waits(floor):
    ann, bob = floor.crew("Ann", "Bob")
    floor.started()
    floor.rings(ann)
    floor.phone(bob).will(busy())
    second = floor.started()
    floor.until(lambda: floor.job(second).waiting_for == "technician")
    assert floor.offers(second) == [("Bob", "busy")]
    assert "job.waiting" in floor.kinds(second)


def test_job_for_which_everybody_is_busy_locks_only_one_technician(floor, monkeypatch):
    crew = floor.crew("Ann", "Bob", "Cid", "Dan", "Eve")
    for one in crew:
        floor.started()
        floor.rings(one)
    locked = []
    real = dispatching.technicians.lock_unlocked

    def noted(technician_id, *args, **wanted):
        locked.append(technician_id)
        return real(technician_id, *args, **wanted)

    monkeypatch.setattr(dispatching.technicians, "lock_unlocked", noted)
    last = floor.started()
    assert (floor.job(last).waiting_for, len(locked)) == ("technician", 1)
    found = last.candidates.order_by("rank").values_list("verdict", "reason")
    assert [verdict for verdict, _ in found] == ["deferred"] * 5
    assert all("has another offer" in reason for _, reason in found)
    floor.later(11)
    floor.tick()
    assert (floor.job(last).waiting_for, len(locked)) == ("technician", 2)

    set_duty(crew[1].pk, False, actor=MARIA)
    floor.later(11)
    floor.tick()

    assert floor.offers(last) == []
    assert last.candidates.get(technician=crew[1]).verdict == "out"
    assert Event.objects.filter(kind="job.skipped", subject_id=last.pk).count() == 1


def test_free_technician_costs_a_try_of_one_waiting_job(floor, monkeypatch):
    (ann,) = floor.crew("Ann")
    floor.started()
    call = floor.rings(ann)
    waiting = [floor.started() for _ in range(6)]
    tried = []
    real = auditor._advance_job

    def noted(pk, *args):
        tried.append(pk)
        return real(pk, *args)

    monkeypatch.setattr(auditor, "_advance_job", noted)
    call.decline()
    floor.until(lambda: Technician.objects.get().live_offer_id is None)
    floor.until(lambda: Call.objects.filter(ended_at=None).count() == 0)
    floor.tick()
    assert floor.offers(waiting[0]) == [("Ann", "pending")]
    assert tried == [waiting[0].pk]


def test_waiting_too_long_for_technicians_goes_to_dispatchers(floor):
    (ann,) = floor.crew("Ann")
    floor.set_policy(answer_timeout_s=3000, ring_timeout_s=600, technician_wait_s=100)
    floor.started()
    floor.rings(ann)
    second = floor.started()
    version = floor.job(second).version
    for _ in range(3):
        floor.later(20)
        floor.tick()
    assert floor.job(second).waiting_for == "technician"
    assert floor.job(second).version == version, "looking again is no change that a person must know"
    floor.later(60)
    floor.tick()
    assert floor.job(second).pending_reason == "exhausted"


def test_a_policy_may_forbid_waiting_for_technicians(floor):
    (ann,) = floor.crew("Ann")
    floor.set_policy(technician_wait_s=0)
    floor.started()
    floor.rings(ann)
    assert floor.started().pending_reason == "exhausted"


def test_emergencies_get_the_free_technician_first(floor):
    (ann,) = floor.crew("Ann")
    floor.started()
    call = floor.rings(ann)
    normal = floor.started()
    emergency = floor.started(priority=1)
    call.decline()
    floor.until(lambda: Technician.objects.get().live_offer_id is None)
    floor.until(lambda: Call.objects.filter(ended_at=None).count() == 0)
    floor.tick()
    assert floor.offers(emergency) == [("Ann", "pending")]
    assert floor.offers(normal) == []


def test_a_job_waits_for_a_line_without_losing_its_place(floor):
    ann, bob = floor.crew("Ann", "Bob")
    OutboundNumber.objects.update(max_channels=1)
    floor.started()
    floor.rings(ann)
    second = floor.started()
    job = floor.job(second)
    assert (job.waiting_for, floor.offers(second)) == ("line", [])
    assert waiters(floor) == [f"job:{job.pk}"]
    assert floor.sim.max_simultaneous(str(floor.number.phone)) == 1
    floor.sim.calls_to(str(ann.phone))[0].decline()
    floor.until(lambda: Call.objects.filter(ended_at=None).count() == 0 or floor.sim.calls_to(str(bob.phone)))
    floor.later(20)
    floor.tick()
    floor.until(lambda: floor.offers(second) or floor.tick())
    assert waiters(floor) == []


def waiters(floor) -> list[str]:
    """Return what waits for a line of the pool, before any lead."""
    key = f"{redis_scripts.base_key()}:waiting:{floor.number.pool_id}"
    return [name.decode() for name in client().zrange(key, 0, -1)]


def another_call(floor) -> Call:
    """A call that is no offer has a line."""
    with transaction.atomic():
        return telephony.create_call(
            organization=floor.organization,
            purpose="test",
            subject_id=1,
            attempt=1,
            to_phone="+16025550777",
            pool=floor.number.pool,
            ring_timeout_s=20,
            time_limit_s=60,
            place_by=clock.now() + timedelta(minutes=5),
        )


def woken_by(act: Callable[[], object]) -> list[str]:
    """The loops that are woken while `act` runs."""
    listener = client().pubsub(ignore_subscribe_messages=True)
    listener.subscribe(notification_channel())
    wait_until(lambda: client().pubsub_numsub(notification_channel())[0][1] == 1)
    act()
    client().publish(notification_channel(), "the end")
    heard: list[str] = []
    while "the end" not in heard:
        if message := listener.get_message(timeout=1.0):
            heard.append(message["data"].decode())
    listener.close()
    return heard[:-1]


def test_released_line_goes_immediately_to_the_waiting_job(floor, listener):
    """Check it for calls of every purpose, and when no job is due."""
    floor.crew("Ann", "Bob")
    OutboundNumber.objects.update(max_channels=1)
    other = another_call(floor)
    jobs = [floor.started(), floor.started()]
    assert [floor.job(job).waiting_for for job in jobs] == ["line", "line"]
    Job.objects.update(next_action_at=clock.now() + timedelta(hours=1))
    services.move_on_waiting()
    assert floor.offers(jobs[0]) == []
    assert "jobs_waiting" in woken_by(lambda: telephony.hang_up(other.pk))
    services.move_on_waiting()
    assert floor.offers(jobs[0]) == [("Ann", "pending")]
    assert floor.offers(jobs[1]) == []
    # the other one is still there to be woken
    assert "jobs_waiting" in woken_by(lambda: telephony.hang_up(Call.objects.get(ended_at=None).pk))


def test_while_no_job_waits_for_a_line_nobody_is_woken_for_it(floor, listener):
    other = another_call(floor)
    assert woken_by(lambda: telephony.hang_up(other.pk)) == []


def test_an_answer_wakes_only_a_job_that_waits_for_a_technician(floor, listener):
    ann, bob = floor.crew("Ann", "Bob")
    floor.set_policy(answer_timeout_s=3000, ring_timeout_s=600, technician_wait_s=600)
    first = floor.started()
    floor.rings(ann)

    def end_offer(job) -> None:
        with transaction.atomic():
            offer = floor.live_offer(job)
            transitions.close_offer(offer, "declined", "declined", "pressed 2", hang_up=False)

    assert woken_by(lambda: end_offer(first)) == []
    second = floor.started()  # Ann's phone still rings
    floor.rings(bob)
    third = floor.started()
    assert floor.job(third).waiting_for == "technician"
    assert "jobs_waiting" in woken_by(lambda: end_offer(second))


def test_new_job_does_not_overtake_a_job_waiting_for_a_line(floor):
    ann, _, _ = floor.crew("Ann", "Bob", "Cleo")
    OutboundNumber.objects.update(max_channels=1)
    floor.set_policy(answer_timeout_s=3000, ring_timeout_s=600)
    floor.started()
    call = floor.rings(ann)
    waiting = floor.started(priority=1)
    assert floor.job(waiting).waiting_for == "line"
    call.answer().press("1").ended()
    floor.until(lambda: Call.objects.filter(ended_at=None).count() == 0)
    late = floor.started(priority=1)
    assert (floor.job(late).waiting_for, floor.offers(late)) == ("line", [])
    floor.until(lambda: floor.offers(waiting) or floor.tick())
    assert floor.offers(waiting) == [("Bob", "pending")]
    assert floor.offers(late) == []


def test_emergency_goes_first_and_unpolled_jobs_block_nobody(floor):
    ann, _, _ = floor.crew("Ann", "Bob", "Cleo")
    OutboundNumber.objects.update(max_channels=1)
    floor.set_policy(answer_timeout_s=3000, ring_timeout_s=600)
    floor.started()
    call = floor.rings(ann)
    waiting = floor.started()
    call.answer().press("1").ended()
    floor.until(lambda: Call.objects.filter(ended_at=None).count() == 0)
    emergency = floor.started(priority=1)
    assert floor.offers(emergency) == [("Bob", "pending")]
    OutboundNumber.objects.update(max_channels=2)
    clock.travel(10)  # no loop has run since: nobody looks after the waiting job
    assert floor.offers(floor.started()) == [("Cleo", "pending")]
    assert floor.offers(waiting) == []


def test_waiting_too_long_for_a_line_goes_to_the_dispatchers(floor):
    ann, _ = floor.crew("Ann", "Bob")
    OutboundNumber.objects.update(max_channels=1)
    floor.set_policy(line_wait_s=60, answer_timeout_s=3000, ring_timeout_s=600)
    floor.started()
    floor.rings(ann)
    second = floor.started()
    floor.later(61)
    floor.tick()
    assert floor.job(second).pending_reason == "no_line"
    assert floor.offers(second) == []


def test_without_a_number_the_job_goes_to_the_dispatchers(floor):
    floor.crew("Ann")
    OutboundNumber.objects.all().delete()
    job = floor.started()
    assert floor.job(job).waiting_for == "line"
    floor.later(301)
    floor.tick()
    assert floor.job(job).pending_reason == "no_line"


def test_job_waits_for_a_paused_pool(floor):
    (ann,) = floor.crew("Ann")
    DispatchPool.objects.update(is_paused=True)
    job = floor.started()
    assert floor.job(job).waiting_for == "line"
    DispatchPool.objects.update(is_paused=False)
    floor.later(20)
    floor.tick()
    floor.rings(ann)
    assert floor.job(job).waiting_for == "answer"


def test_a_rate_limited_call_keeps_its_offer_and_rings_later(floor):
    (ann,) = floor.crew("Ann")
    floor.sim.answer_429(times=1, retry_after=5)
    job = floor.started()
    offer = floor.live_offer(job)
    assert (floor.job(job).waiting_for, offer.ringing_since) == ("line", None)
    floor.later(6)
    floor.tick()
    floor.rings(ann)
    offer.refresh_from_db()
    seconds = (offer.expires_at - offer.ringing_since).total_seconds()
    assert seconds == 300, "the clock starts when the provider takes the call"
    assert floor.calls_made(ann) == 1


def test_call_never_placed_does_not_cost_the_technician_an_offer(floor):
    (ann,) = floor.crew("Ann")
    floor.set_policy(line_wait_s=100)
    floor.sim.answer_429(times=None, retry_after=30)
    job = floor.started()
    floor.later(101)
    floor.tick()
    floor.until(lambda: floor.status(job) == "pending")
    assert floor.job(job).pending_reason == "no_line"
    assert floor.offers(job) == [("Ann", "not_placed")]
    assert floor.calls_made(ann) == 0


def test_two_rounds_ask_everybody_again_but_not_who_declined(floor):
    ann, bob = floor.crew("Ann", "Bob")
    floor.set_policy(rounds=2)
    floor.phone(ann).will(answer(press="2"))
    floor.phone(bob).will(busy())
    job = floor.started()
    floor.until(lambda: floor.status(job) == "pending")
    assert floor.offers(job) == [("Ann", "declined"), ("Bob", "busy"), ("Bob", "busy")]


def test_number_of_candidates_is_limited(floor):
    crew = floor.crew("Ann", "Bob", "Cid")
    floor.set_policy(max_candidates=2)
    for one in crew:
        floor.phone(one).will(busy())
    job = floor.started()
    floor.until(lambda: floor.status(job) == "pending")
    assert [name for name, _ in floor.offers(job)] == ["Ann", "Bob"]


def test_a_switch_makes_a_decline_wait_out_the_deadline(floor):
    ann, bob = floor.crew("Ann", "Bob")
    floor.set_policy(advance_on_decline=False)
    floor.phone(ann).will(answer(press="2"))
    job = floor.started()
    floor.until(lambda: floor.offers(job) == [("Ann", "declined")])
    assert Technician.objects.get(pk=ann.pk).live_offer_id is None
    floor.later(200)
    floor.work()
    expire_offer(job.pk, floor.job(job).step_token)
    assert floor.offers(job) == [("Ann", "declined")], "not before the offer's time would have been up"
    floor.later(150)
    floor.rings(bob)


def test_a_running_job_keeps_the_policy_it_started_with(floor):
    ann, bob = floor.crew("Ann", "Bob")
    job = floor.started()
    floor.set_policy(answer_timeout_s=60, advance_on_busy=False)
    floor.rings(ann).is_busy()
    floor.rings(bob)
    offer = floor.live_offer(job)
    assert (offer.expires_at - offer.ringing_since).total_seconds() == 300
    assert Job.objects.get().policy["advance_on_busy"] is True


def test_technician_is_paused_after_three_missed_calls_in_a_row(floor):
    floor.set_policy(auto_pause_misses=3, ring_timeout_s=5)
    ann, bob = floor.crew("Ann", "Bob")
    floor.phone(ann).will(ignore())
    floor.phone(bob).will(answer(press="1"))
    Technician.objects.filter(pk=bob.pk).update(max_open_jobs=9)
    for _ in range(3):
        assigned_and_over(floor)
    ann.refresh_from_db()
    assert (ann.misses_in_a_row, ann.auto_paused_at is not None) == (3, True)
    fourth = assigned_and_over(floor)
    assert floor.calls_made(ann) == 3
    told = floor.job(fourth).candidates.get(technician=ann)
    assert (told.verdict, told.reason) == ("out", "paused after 3 missed calls")
    assert set_duty(ann.pk, True, actor=MARIA)  # on duty already: it calls her back
    ann.refresh_from_db()
    assert (ann.misses_in_a_row, ann.auto_paused_at) == (0, None)
    about = Event.objects.filter(subject_type="technician", subject_id=ann.pk).order_by("id")
    assert list(about.values_list("kind", "actor_label")) == [
        ("technician.auto_paused", "Dispatch"),
        ("technician.back", "Maria Lopez"),
    ]


def test_answered_call_resets_misses_and_zero_never_pauses(floor):
    floor.set_policy(auto_pause_misses=0, ring_timeout_s=5)
    ann, bob = floor.crew("Ann", "Bob")
    floor.phone(ann).will(ignore())
    floor.phone(bob).will(answer(press="1"))
    Technician.objects.filter(pk=bob.pk).update(max_open_jobs=9)
    for _ in range(4):
        assigned_and_over(floor)
    ann.refresh_from_db()
    assert (ann.misses_in_a_row, ann.auto_paused_at) == (4, None)
    floor.phone(ann).will(answer(press="2"))
    assigned_and_over(floor)
    ann.refresh_from_db()
    assert ann.misses_in_a_row == 0


def assigned_and_over(floor):
    """A job that somebody took, and whose calls have ended."""
    job = floor.submit()
    floor.until(lambda: floor.status(job) == "assigned")
    floor.until(lambda: not Call.objects.filter(ended_at=None).exists())
    return job
