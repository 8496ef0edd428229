"""A key that arrives in time counts, whatever is processed first: the end of its call, the deadline, a retry."""

from __future__ import annotations

import random
import signal
from collections.abc import Callable

import pytest
from django.conf import settings
from django.db import connection

from dispatch.core import clock
from dispatch.core.db.lock_waits import RecentlyBlocked
from dispatch.core.runtime.loops import find_loop
from dispatch.jobs import services
from dispatch.jobs.models import Job, Offer
from dispatch.jobs.services import actions, offers
from dispatch.technicians.models import Technician
from dispatch.telephony.models import Call, CallEvent
from tests.harness.jobs import MARIA, Floor
from tests.harness.provider import end, key_pressed, press, record_only
from tests.support.processes import environment, running


def answered(floor: Floor, technician: Technician) -> tuple[Job, Call]:
    """A job whose first technician listens to the offer."""
    job = floor.started()
    floor.rings(technician).answer().hears("press 1")
    return job, Call.objects.get(purpose="offer", subject_id=floor.live_offer(job).pk)


def apply_unhandled_keys() -> None:
    clock.travel(6)
    find_loop("calls_keys").step()


def test_a_stored_key_counts_when_the_end_is_processed_first(floor):
    ann, _bob = floor.crew("Ann", "Bob")
    job, call = answered(floor, ann)
    record_only(floor.sim, call, "1")
    assert end(floor.sim, call).status_code == 204
    assert floor.offers(job) == [("Ann", "accepted")]
    assert floor.job(job).technician == ann
    assert Technician.objects.get(pk=ann.pk).misses_in_a_row == 0


def test_a_stored_decline_counts_when_the_end_is_processed_first(floor):
    ann, bob = floor.crew("Ann", "Bob")
    job, call = answered(floor, ann)
    record_only(floor.sim, call, "2")
    end(floor.sim, call)
    floor.rings(bob)
    assert floor.offers(job) == [("Ann", "declined"), ("Bob", "pending")]


def test_a_key_that_arrives_after_the_end_counts_in_silence(floor):
    ann, bob = floor.crew("Ann", "Bob")
    floor.set_policy(auto_pause_misses=1)
    job, call = answered(floor, ann)
    end(floor.sim, call)
    ringing = floor.rings(bob)
    assert floor.offers(job) == [("Ann", "hangup"), ("Bob", "pending")]
    assert Technician.objects.get(pk=ann.pk).auto_paused_at

    answer = press(floor.sim, call, "1")

    assert answer.status_code == 200
    assert b"<Say" not in answer.content
    assert floor.offers(job) == [("Ann", "accepted"), ("Bob", "taken")]
    assert floor.job(job).technician == ann
    ringing.ended("canceled")
    row = Technician.objects.get(pk=ann.pk)
    assert (row.auto_paused_at, row.misses_in_a_row, row.open_jobs) == (None, 0, 1)


def test_a_decline_that_arrives_after_the_end_leaves_the_next_offer(floor):
    ann, bob = floor.crew("Ann", "Bob")
    job, call = answered(floor, ann)
    end(floor.sim, call)
    floor.rings(bob)
    press(floor.sim, call, "2")
    assert floor.offers(job) == [("Ann", "declined"), ("Bob", "pending")]


def test_a_key_after_the_end_takes_a_job_that_needs_a_dispatcher(floor):
    (ann,) = floor.crew("Ann")
    job, call = answered(floor, ann)
    end(floor.sim, call)
    floor.until(lambda: floor.status(job) == "pending")
    press(floor.sim, call, "1")
    assert floor.job(job).technician == ann


@pytest.mark.parametrize("done", ["assigned", "cancelled", "paused"])
def test_a_key_after_the_end_undoes_no_later_decision(floor, done):
    ann, bob = floor.crew("Ann", "Bob")
    job, call = answered(floor, ann)
    end(floor.sim, call)
    floor.rings(bob)
    match done:
        case "assigned":
            services.assign(job.pk, bob.pk, actor=MARIA, confirm_unfit=True)
        case "cancelled":
            services.cancel(job.pk, "by the customer", actor=MARIA)
        case _:
            services.pause(job.pk, actor=MARIA)
    before = floor.offers(job), floor.status(job)
    press(floor.sim, call, "1")
    assert (floor.offers(job), floor.status(job)) == before


def test_a_key_counts_while_the_offer_stays_open_after_its_call(floor):
    ann, _bob = floor.crew("Ann", "Bob")
    floor.set_policy(missed_call_grace_s=60)
    job, call = answered(floor, ann)
    end(floor.sim, call)
    assert floor.live_offer(job).missed_at
    press(floor.sim, call, "1")
    assert floor.job(job).technician == ann


def test_a_stored_key_counts_while_the_offer_stays_open(floor):
    ann, _bob = floor.crew("Ann", "Bob")
    floor.set_policy(missed_call_grace_s=60)
    job, call = answered(floor, ann)
    end(floor.sim, call)
    record_only(floor.sim, call, "1")
    apply_unhandled_keys()
    assert floor.job(job).technician == ann


def test_a_stored_key_counts_when_the_deadline_is_processed_first(floor):
    ann, _bob = floor.crew("Ann", "Bob")
    job, call = answered(floor, ann)
    record_only(floor.sim, call, "1")
    clock.travel(400)
    services.expire_offer(job.pk, floor.job(job).step_token)
    assert floor.offers(job) == [("Ann", "accepted")]


def test_a_key_that_waited_for_its_row_counts_from_its_arrival(floor):
    ann, bob = floor.crew("Ann", "Bob")
    job, call = answered(floor, ann)
    record_only(floor.sim, call, "1")
    due = CallEvent.objects.get(kind="gather").next_action_at
    CallEvent.objects.filter(kind="gather").update(kind="held back", next_action_at=None)  # not committed yet
    clock.travel(400)
    services.expire_offer(job.pk, floor.job(job).step_token)
    floor.rings(bob)
    CallEvent.objects.filter(kind="held back").update(kind="gather", next_action_at=due)
    apply_unhandled_keys()
    assert floor.offers(job) == [("Ann", "accepted"), ("Bob", "taken")]


def test_a_stored_key_counts_before_a_dispatcher_takes_the_job(floor):
    ann, bob = floor.crew("Ann", "Bob")
    job, call = answered(floor, ann)
    version = floor.job(job).version
    record_only(floor.sim, call, "1")
    with pytest.raises(actions.Conflict, match="Ann accepted the job"):
        services.assign(job.pk, bob.pk, actor=MARIA, version=version)
    assert floor.job(job).technician == ann


def test_a_key_whose_first_answer_was_a_5xx_counts_when_repeated(floor):
    ann, _bob = floor.crew("Ann", "Bob")
    job, call = answered(floor, ann)
    record_only(floor.sim, call, "1")
    answer = press(floor.sim, call, "1")
    assert b"yours" in answer.content
    assert floor.job(job).technician == ann
    assert not CallEvent.objects.filter(next_action_at__isnull=False).exists()


@pytest.mark.parametrize("healed_by", ["the end of the call", "the loop", "the auditor"])
def test_a_process_killed_between_recording_and_acting_loses_no_key(floor, healed_by):
    ann, _bob = floor.crew("Ann", "Bob")
    job, call = answered(floor, ann)
    url, fields, headers = key_pressed(floor.sim, call, "1")
    signature = headers["X-Twilio-Signature"]
    script = (
        "from django.test import Client\n"
        f"Client().post({url.removeprefix(settings.PUBLIC_BASE_URL)!r}, {fields!r},"
        f" HTTP_X_TWILIO_SIGNATURE={signature!r}, HTTP_HOST='localhost')"
    )
    env = environment(
        connection.settings_dict["NAME"],
        SIMULATOR_URL=floor.sim.base_url,
        PUBLIC_BASE_URL=settings.PUBLIC_BASE_URL,
        DISPATCH_DATA_DIR=str(settings.DATA_DIR),
        DISPATCH_FAULTS="telephony.webhook.committed=kill",
    )
    with running("shell", "-v", "0", "-c", script, env=env) as child:
        assert child.ends() == -signal.SIGKILL, child.log()
    assert Call.objects.get(pk=call.pk).keys_pressed == "1"
    assert floor.offers(job) == [("Ann", "pending")]

    match healed_by:
        case "the end of the call":
            end(floor.sim, call)
        case "the loop":
            apply_unhandled_keys()
        case _:
            Call.objects.filter(pk=call.pk).update(status="completed", ended_at=clock.now())
            services.audit()
    assert floor.offers(job) == [("Ann", "accepted")]
    apply_unhandled_keys()
    assert floor.kinds(job).count("job.assigned") == 1
    assert not CallEvent.objects.filter(next_action_at__isnull=False).exists()


def test_a_key_that_cannot_be_acted_on_is_tried_again_then_given_up(floor, monkeypatch):
    ann, _bob = floor.crew("Ann", "Bob")
    job, call = answered(floor, ann)
    record_only(floor.sim, call, "1")
    real = services.answer_offer

    def broken(*_args, **_kwargs):
        raise RuntimeError("it fails")

    monkeypatch.setattr("dispatch.jobs.channels.voice.answer_offer", broken)
    apply_unhandled_keys()
    assert floor.offers(job) == [("Ann", "pending")]
    monkeypatch.setattr("dispatch.jobs.channels.voice.answer_offer", real)
    clock.travel(20)
    RecentlyBlocked.reset_all()  # the process no longer skips the key
    apply_unhandled_keys()
    assert floor.offers(job) == [("Ann", "accepted")]


@pytest.mark.parametrize("seed", range(12))
def test_any_order_of_key_end_and_deadline_assigns_the_one_who_pressed(floor, seed):
    """The key arrives before the deadline. Each step may be processed at any time, doubled, or never finished."""
    chance = random.Random(seed)
    ann, bob = floor.crew("Ann", "Bob")
    floor.set_policy(missed_call_grace_s=chance.choice([0, 60]))
    job = floor.started()
    ringing = floor.rings(ann)
    offer = floor.live_offer(job)
    call = Call.objects.get(purpose="offer", subject_id=offer.pk)
    ringing.answer().hears("press 1")
    token = floor.job(job).step_token

    def expire() -> None:
        clock.travel(max(0.0, (offer.expires_at - clock.now()).total_seconds() + 60))
        services.expire_offer(job.pk, floor.job(job).step_token)
        services.expire_offer(job.pk, token)

    steps: list[Callable] = [
        lambda: record_only_or_press(floor, call, chance),
        lambda: end(floor.sim, call),
        lambda: offers.call_changed(Call.objects.get(pk=call.pk)),
        services.audit,
        floor.work,
    ]
    chance.shuffle(steps)
    for step in steps:
        step()
        if chance.random() < 0.4:
            step()
    if chance.random() < 0.5:
        expire()
    apply_unhandled_keys()
    floor.work()
    assert floor.job(job).technician == ann, floor.story()
    assert Offer.objects.filter(job=job, status="accepted").count() == 1
    assert floor.kinds(job).count("job.assigned") == 1
    assert Technician.objects.get(pk=bob.pk).open_jobs == 0


def record_only_or_press(floor: Floor, call: Call, chance: random.Random) -> None:
    recorded = Call.objects.get(pk=call.pk).keys_pressed
    if recorded or chance.random() < 0.5:
        press(floor.sim, call, "1")
    else:
        record_only(floor.sim, call, "1")


def test_stored_late_yes_counts_when_the_deadline_is_processed_first(floor):
    ann, bob = floor.crew("Ann", "Bob")
    job, call = answered(floor, ann)
    clock.travel(400)  # nobody has noticed yet
    record_only(floor.sim, call, "1")
    services.expire_offer(job.pk, floor.job(job).step_token)
    assert floor.offers(job) == [("Ann", "accepted")]
    assert floor.calls_made(bob) == 0


def test_stored_late_yes_counts_although_the_next_phone_rings_meanwhile(floor):
    ann, bob = floor.crew("Ann", "Bob")
    job, call = answered(floor, ann)
    services.call_next_now(job.pk, actor=MARIA)
    record_only(floor.sim, call, "1")  # nobody's phone rings
    ringing = floor.rings(bob)
    apply_unhandled_keys()
    assert floor.offers(job) == [("Ann", "accepted"), ("Bob", "taken")]
    ringing.ended("canceled")


def test_repeated_key_that_came_too_late_does_not_take_the_job_later(floor):
    ann, bob = floor.crew("Ann", "Bob")
    job, call = answered(floor, ann)
    clock.travel(400)
    services.expire_offer(job.pk, floor.job(job).step_token)
    ringing = floor.rings(bob)
    press(floor.sim, call, "1")
    assert floor.offers(job) == [("Ann", "timed_out"), ("Bob", "pending")]
    ringing.decline()
    floor.until(lambda: floor.status(job) == "pending")
    press(floor.sim, call, "1")  # the provider repeats it
    assert floor.status(job) == "pending"


@pytest.mark.parametrize("decision", ["assign", "pause", "cancel"])
def test_stored_key_after_the_end_counts_before_a_decision(floor, decision):
    ann, bob = floor.crew("Ann", "Bob")
    job, call = answered(floor, ann)
    end(floor.sim, call)
    floor.rings(bob)
    record_only(floor.sim, call, "1")
    version = floor.job(job).version
    decide = {
        "assign": lambda: services.assign(job.pk, bob.pk, actor=MARIA, version=version),
        "pause": lambda: services.pause(job.pk, actor=MARIA, version=version),
        "cancel": lambda: services.cancel(job.pk, "a mistake", actor=MARIA, version=version),
    }[decision]
    with pytest.raises(actions.Conflict, match="Ann accepted the job"):
        decide()
    assert floor.job(job).technician == ann


def test_key_that_cannot_be_applied_does_not_stop_a_decision(floor, monkeypatch):
    (ann,) = floor.crew("Ann")
    job, call = answered(floor, ann)
    end(floor.sim, call)
    record_only(floor.sim, call, "1")

    def broken(*_args, **_kwargs):
        raise RuntimeError("it fails")

    monkeypatch.setattr("dispatch.jobs.channels.voice.answer_offer", broken)
    services.cancel(job.pk, "a mistake", actor=MARIA)
    assert floor.status(job) == "cancelled"
    assert CallEvent.objects.filter(next_action_at__isnull=False).count() == 1


def test_answer_that_was_only_stored_extends_the_deadline(floor):
    ann, _bob = floor.crew("Ann", "Bob")
    job = floor.started()
    floor.rings(ann)
    offer = floor.live_offer(job)
    clock.travel((offer.expires_at - clock.now()).total_seconds() - 2)
    Call.objects.filter(subject_id=offer.pk).update(status="answered", answered_at=clock.now())
    clock.travel(3)
    services.expire_offer(job.pk, floor.job(job).step_token)
    still = floor.live_offer(job)
    assert still.pk == offer.pk
    assert still.expires_at > offer.expires_at
