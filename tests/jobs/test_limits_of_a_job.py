"""Check that a job that is dispatched, paused or reassigned without end costs no more than others."""

from __future__ import annotations

from django.db import connection
from django.test.utils import CaptureQueriesContext

from dispatch.core import clock
from dispatch.jobs import rules, services
from dispatch.jobs.models import Job, Offer, TechnicianNotice
from dispatch.jobs.timeline import MAX_ENTRIES
from dispatch.technicians.models import Technician
from tests.api.client import Api
from tests.harness.jobs import JOHN, MARIA
from tests.phones import busy
from tests.support import factories
from tests.support.plans import explain_rows_read


def end_offers(job: Job, technician: Technician, count: int) -> None:
    """Add offers as of a job that was paused and resumed each time as soon as the technician was called."""
    Offer.objects.bulk_create(
        Offer(
            organization=job.organization, job=job, technician=technician, attempt=attempt, status="rescinded",
            outcome="paused", expires_at=clock.now(), settled_at=clock.now(),
        )
        for attempt in range(2, count + 1)
    )  # fmt: skip


def pending_after(floor, technician: Technician) -> Job:
    floor.phone(technician).will(busy())
    job = floor.started()
    floor.until(lambda: floor.status(job) == "pending")
    return floor.job(job)


def test_nobody_is_called_after_very_many_offers(floor):
    (ann,) = floor.crew("Ann")
    job = pending_after(floor, ann)
    end_offers(job, ann, rules.MAX_OFFERS)
    services.dispatch_again(job.pk, actor=MARIA)
    floor.until(lambda: floor.status(job) == "pending")
    assert (floor.job(job).pending_reason, floor.calls_made(ann)) == ("exhausted", 1)
    assert services.assign(job.pk, ann.pk, actor=MARIA).assigned
    services.cannot_make_it(job.pk, actor=JOHN)
    floor.until(lambda: floor.status(job) == "pending")


def test_the_last_offer_before_the_limit_is_made(floor):
    (ann,) = floor.crew("Ann")
    job = pending_after(floor, ann)
    end_offers(job, ann, rules.MAX_OFFERS - 1)
    floor.phone(ann).will(busy())
    services.dispatch_again(job.pk, actor=MARIA)
    floor.until(lambda: floor.calls_made(ann) == 2)
    floor.until(lambda: floor.status(job) == "pending")
    assert floor.job(job).pending_reason == "exhausted"


def test_a_job_is_not_dispatched_after_very_many_rounds(floor):
    ann, bob = floor.crew("Ann", "Bob")
    Technician.objects.filter(pk=bob.pk).update(on_duty=False)
    job = pending_after(floor, ann)
    Job.objects.filter(pk=job.pk).update(round=rules.MAX_ROUNDS, first_round=rules.MAX_ROUNDS)
    Technician.objects.filter(pk=bob.pk).update(on_duty=True)
    again = services.dispatch_again(job.pk, actor=MARIA)
    assert (again.status, again.pending_reason, again.round) == ("pending", "exhausted", rules.MAX_ROUNDS)
    candidates = job.candidates.filter(verdict="in").values_list("technician__name", flat=True)
    assert set(candidates) == {"Ann", "Bob"}, "a dispatcher chooses among those who are on duty now"
    for _ in range(2):
        assert services.assign(job.pk, bob.pk, actor=MARIA, confirm_unfit=True).assigned
        services.cannot_make_it(job.pk, actor=JOHN)
    last = floor.job(job)
    assert (last.status, last.not_again, floor.calls_made(bob)) == ("pending", [bob.pk], 0)


def test_a_job_with_very_many_notices_is_shown_as_cheaply_as_others(floor):
    """An API key may assign and reassign a job 600 times a minute, and each time a technician is notified."""
    (ann,) = floor.crew("Ann")
    job = pending_after(floor, ann)
    TechnicianNotice.objects.bulk_create(
        TechnicianNotice(
            organization=job.organization, job=job, technician=ann, news="assigned", status=status,
            alert_at=clock.now(),
        )
        for status in (*["superseded"] * (3 * MAX_ENTRIES), "unreached")
    )  # fmt: skip
    with connection.cursor() as cursor:
        cursor.execute("ANALYZE jobs_techniciannotice")
    client = Api(factories.api_key(job.organization, "read"))
    with CaptureQueriesContext(connection) as captured:
        shown = client.get(f"jobs/{job.pk}/").json()
    assert "technician_told" in shown["actions"]
    about = [query["sql"] for query in captured if "jobs_techniciannotice" in query["sql"]]
    assert 0 < sum(explain_rows_read(sql, []) for sql in about) < 2 * MAX_ENTRIES
