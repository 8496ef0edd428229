"""A technician who reports on a job knows that they have it: nobody calls them about it, or alerts dispatchers."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from dispatch.core.events import Actor
from dispatch.jobs import services
from dispatch.jobs.models import Job
from dispatch.jobs.services import Correction
from dispatch.technicians.models import Technician
from dispatch.telephony.models import Call, Text
from notifications.models import Alert
from tests.harness.jobs import MARIA, Floor
from tests.jobs.test_technician_notices import (  # noqa: F401
    assigned_to,
    deliver,
    notice,
    notify,
    open_alerts,
    texting,
    unreached,
)
from tests.phones import busy
from tests.support import factories

Report = Callable[[Job, Actor], object]


def on_the_way(job: Job, actor: Actor) -> None:
    services.report_on_the_way(job.pk, actor=actor)


def late(job: Job, actor: Actor) -> None:
    services.report_late(job.pk, 20, actor=actor)


def started(job: Job, actor: Actor) -> None:
    services.mark_started(job.pk, actor=actor)


def completed(job: Job, actor: Actor) -> None:
    services.complete(job.pk, actor=actor)


@pytest.fixture(params=[on_the_way, late, started, completed])
def report(request: pytest.FixtureRequest) -> Report:
    chosen: Report = request.param
    return chosen


def actor_of(technician: Technician) -> Actor:
    return Actor("technician", technician.pk, technician.name)


def reassigned_to_busy_bob(floor: Floor) -> tuple[Job, Technician]:
    """A job that a dispatcher gave to Bob, whose phone is busy. Ann, who had it, knows."""
    ann, bob = floor.crew("Ann", "Bob")
    factories.dispatcher(floor.organization)
    job = assigned_to(floor, ann)
    floor.phone(bob).will(*[busy()] * 12)
    assert services.assign(job.pk, bob.pk, actor=MARIA, confirm_unfit=True).assigned
    job.notices.filter(technician=ann).update(status="reached", next_action_at=None)
    deliver(floor)
    floor.until(lambda: calls_to(bob) and not Call.objects.filter(ended_at=None).exists())
    return floor.job(job), bob


def calls_to(technician: Technician) -> int:
    return Call.objects.filter(purpose="job_news", to_phone=technician.phone).count()


def test_report_ends_the_calls_about_the_assignment(floor: Floor, report: Report) -> None:
    job, bob = reassigned_to_busy_bob(floor)
    report(job, actor_of(bob))
    for _ in range(3):
        deliver(floor, 150)
    notify()
    assert (calls_to(bob), unreached(job), open_alerts()) == (1, [], [])


def test_report_ends_the_alert_about_the_assignment(floor: Floor, report: Report) -> None:
    job, bob = reassigned_to_busy_bob(floor)
    deliver(floor, 301)
    notify()
    assert open_alerts() == [f"Job {job.pk}: call Bob, who doesn't know that the job was assigned to them"]
    report(job, actor_of(bob))
    notify()
    assert open_alerts() == []
    assert Alert.objects.get().settled_how.endswith("no longer needs to notify the technician")


def test_report_hangs_up_a_call_that_rings(floor: Floor, report: Report) -> None:
    ann, bob = floor.crew("Ann", "Bob")
    job = assigned_to(floor, ann)
    assert services.assign(job.pk, bob.pk, actor=MARIA, confirm_unfit=True).assigned
    deliver(floor)
    call = floor.rings(bob)
    report(job, actor_of(bob))
    call.ended("canceled")


@pytest.mark.parametrize("dispatcher_report", [on_the_way, late, started])
def test_report_of_a_dispatcher_does_not_mean_that_the_technician_knows(
    floor: Floor, dispatcher_report: Report
) -> None:
    job, bob = reassigned_to_busy_bob(floor)
    dispatcher_report(job, MARIA)
    deliver(floor, 301)
    assert unreached(job) == [bob.name]


def test_nobody_is_called_about_a_job_that_a_dispatcher_completed(floor: Floor) -> None:
    job, bob = reassigned_to_busy_bob(floor)
    completed(job, MARIA)
    deliver(floor, 301)
    assert (calls_to(bob), unreached(job)) == (1, [])


def test_report_ends_no_notice_of_a_correction(floor: Floor) -> None:
    (ann,) = floor.crew("Ann")
    job = assigned_to(floor, ann)
    services.correct(job.pk, actor=MARIA, correction=Correction(), customer_phone="+16025550199")
    on_the_way(job, actor_of(ann))
    deliver(floor)
    floor.rings(ann).answer().hears("has changed").press("1").hears("Thank you")
    assert notice(job).status == "reached"


def test_address_is_still_texted_after_a_report(texting: Floor) -> None:  # noqa: F811
    ann, bob = texting.crew("Ann", "Bob")
    job = assigned_to(texting, ann)
    services.assign(job.pk, bob.pk, actor=MARIA, confirm_unfit=True)
    on_the_way(job, actor_of(bob))
    texting.send_texts()
    texting.until(lambda: Text.objects.get(purpose="job", to_phone=bob.phone).status == "delivered")
    assert notice(job).status == "reached"


def test_address_of_a_completed_job_is_not_texted(texting: Floor) -> None:  # noqa: F811
    ann, bob = texting.crew("Ann", "Bob")
    job = assigned_to(texting, ann)
    services.assign(job.pk, bob.pk, actor=MARIA, confirm_unfit=True)
    completed(job, actor_of(bob))
    texting.send_texts()
    assert Text.objects.get(purpose="job", to_phone=bob.phone).status == "canceled"
