"""Two technicians say yes to one job: the earlier yes counts, in whatever order both are processed."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from accounts.models import Organization
from dispatch.core import clock
from dispatch.core.runtime.loops import find_loop
from dispatch.jobs import services
from dispatch.jobs.models import Job
from dispatch.jobs.services import Answer, AnswerChannel, answer_offer
from dispatch.jobs.services.auditor import MAX_FAILURES
from dispatch.telephony.models import Call
from tests.harness.jobs import Floor
from tests.harness.provider import end, press, record_only
from tests.phones import manual


def apply_unhandled_keys() -> None:
    clock.travel(6)
    find_loop("calls_keys").step()


def second_is_called(floor: Floor) -> tuple[Job, Call, Call]:
    """A job whose first technician has hung up, and whose second one's phone rings. Return it and both calls."""
    ann, bob = floor.crew("Ann", "Bob")
    for technician in (ann, bob):
        floor.phone(technician).will(manual())
    job = floor.started()
    floor.rings(ann).answer().hears("press 1")
    first = Call.objects.get(purpose="offer")
    end(floor.sim, first)
    floor.rings(bob).answer().hears("press 1")
    return job, first, Call.objects.exclude(pk=first.pk).get(purpose="offer")


def test_earlier_yes_that_is_only_recorded_counts_before_a_later_one(floor: Floor) -> None:
    job, first, second = second_is_called(floor)
    record_only(floor.sim, first, "1")
    heard = press(floor.sim, second, "1")
    assert floor.offers(job) == [("Ann", "accepted"), ("Bob", "taken")]
    assert "already been taken" in heard.text
    apply_unhandled_keys()
    assert floor.kinds(job).count("job.assigned") == 1


def test_star_before_the_yes_does_not_make_it_the_earlier_one(floor: Floor) -> None:
    job, first, second = second_is_called(floor)
    press(floor.sim, second, "*")
    clock.travel(1)
    record_only(floor.sim, first, "1")
    clock.travel(1)
    assert "already been taken" in press(floor.sim, second, "1").text
    assert floor.offers(job) == [("Ann", "accepted"), ("Bob", "taken")]


def test_earlier_yes_that_is_only_recorded_counts_before_a_later_one_by_text(floor: Floor) -> None:
    job, first, second = second_is_called(floor)
    record_only(floor.sim, first, "1")
    assert answer_offer(second.subject_id, None, "1", by=AnswerChannel.TEXT) is Answer.TAKEN
    assert floor.offers(job) == [("Ann", "accepted"), ("Bob", "taken")]


def test_later_yes_that_is_only_recorded_does_not_count_before_an_earlier_one(floor: Floor) -> None:
    job, first, second = second_is_called(floor)
    record_only(floor.sim, second, "1")
    clock.travel(1)
    press(floor.sim, first, "1")
    assert floor.offers(job) == [("Ann", "hangup"), ("Bob", "accepted")]


def test_late_yes_while_another_phone_rang_is_judged_by_its_arrival(floor: Floor) -> None:
    ann, bob = floor.crew("Ann", "Bob")
    for technician in (ann, bob):
        floor.phone(technician).will(manual())
    job = floor.started()
    floor.rings(ann).answer().hears("press 1")
    first = Call.objects.get(purpose="offer")
    clock.travel(400)
    services.expire_offer(job.pk, floor.job(job).step_token)
    ringing = floor.rings(bob)
    record_only(floor.sim, first, "1")
    clock.travel(1)
    ringing.decline()
    floor.until(lambda: floor.status(job) == "pending")
    apply_unhandled_keys()
    assert floor.status(job) == "pending", "a webhook that is processed at once is refused, too"
    assert floor.offers(job) == [("Ann", "timed_out"), ("Bob", "busy")]


@pytest.mark.parametrize("is_applied", [True, False])
def test_late_yes_takes_the_job_after_a_no_that_is_applied_later(floor: Floor, is_applied: bool) -> None:
    ann, bob = floor.crew("Ann", "Bob")
    for technician in (ann, bob):
        floor.phone(technician).will(manual())
    job = floor.started()
    floor.rings(ann).answer().hears("press 1")
    first = Call.objects.get(purpose="offer")
    clock.travel(400)
    services.expire_offer(job.pk, floor.job(job).step_token)
    floor.rings(bob).answer().hears("press 1")
    second = Call.objects.exclude(pk=first.pk).get(purpose="offer")
    if is_applied:
        press(floor.sim, second, "2")
    else:
        record_only(floor.sim, second, "2")
    clock.travel(1)
    press(floor.sim, first, "1")
    assert floor.offers(job) == [("Ann", "accepted"), ("Bob", "declined")]


def expire(floor: Floor, job: Job) -> None:
    services.expire_offer(job.pk, floor.job(job).step_token)


def hand_over(floor: Floor, job: Job) -> None:
    Job.objects.filter(pk=job.pk).update(failed_steps=MAX_FAILURES)
    services.audit()


def switch_off(floor: Floor, job: Job) -> None:
    Organization.objects.filter(pk=floor.organization.pk).update(is_active=False)
    services.withdraw_inactive_offers()


@pytest.mark.parametrize("close", [expire, hand_over, switch_off])
def test_earlier_yes_counts_when_the_offer_of_the_later_one_is_closed(
    floor: Floor, close: Callable[[Floor, Job], None]
) -> None:
    job, first, second = second_is_called(floor)
    record_only(floor.sim, first, "1")
    clock.travel(1)
    record_only(floor.sim, second, "1")
    clock.travel(400)
    close(floor, job)
    assert floor.offers(job) == [("Ann", "accepted"), ("Bob", "taken")]
    assert floor.kinds(job).count("job.assigned") == 1
