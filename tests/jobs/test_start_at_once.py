"""A worker creates a job and makes its first offer in one transaction; else it goes step by step."""

from __future__ import annotations

import pytest
from django.db import connection

from dispatch.core import clock
from dispatch.core.models import Event
from dispatch.jobs import tasks
from dispatch.jobs.models import Job, Offer
from dispatch.jobs.models.jobs import Priority
from tests.conftest import forget_redis
from tests.harness.jobs import Floor
from tests.jobs.test_auditor import dies
from tests.support import factories
from tests.support.row_locks import ends_while_held

CREATED, OFFERED = "job.created", "offer.made"
WITHOUT_POSITION = {"lat": None, "lng": None}


def transactions(job: Job) -> set[int]:
    """The transactions that wrote the creation of the job and its first offer."""
    events = Event.objects.filter(organization_id=job.organization_id, kind__in=[CREATED, OFFERED])
    assert sorted(events.values_list("kind", flat=True)) == [CREATED, OFFERED]
    return set(events.values_list("xid", flat=True))


@pytest.fixture
def offers_fail(db):
    """The database refuses every offer, until the returned function is called."""

    def repair() -> None:
        with connection.cursor() as cursor:
            cursor.execute("DROP FUNCTION IF EXISTS refuse_offer CASCADE")

    with connection.cursor() as cursor:
        cursor.execute("""
            CREATE FUNCTION refuse_offer() RETURNS trigger LANGUAGE plpgsql AS
                $$ BEGIN RAISE EXCEPTION 'refused by the test'; END $$;
            CREATE TRIGGER refuse_offer BEFORE INSERT ON jobs_offer FOR EACH ROW EXECUTE FUNCTION refuse_offer()
        """)
    yield repair
    repair()


def test_first_offer_is_made_in_the_transaction_that_creates_the_job(floor: Floor) -> None:
    (ann,) = floor.crew("Ann")
    job = floor.started()
    floor.rings(ann)
    assert len(transactions(job)) == 1
    assert job.submission.starts == 1


def test_job_whose_place_must_be_looked_up_goes_step_by_step(floor: Floor) -> None:
    (ann,) = floor.crew("Ann")
    job = floor.started(**WITHOUT_POSITION)
    floor.rings(ann)
    assert len(transactions(job)) == 2
    assert job.position_source == "zip"


def test_a_process_that_dies_in_that_transaction_has_changed_nothing(floor: Floor) -> None:
    floor.crew("Ann")
    submission = floor.submit()
    dies("jobs.start.claimed", lambda: tasks.start_job(submission.pk))
    submission.refresh_from_db()
    assert (submission.status, submission.starts) == ("received", 0)
    assert not Job.objects.exists()
    tasks.start_job(submission.pk)
    assert floor.offers(floor.job(submission)) == [("Ann", "pending")]


def test_a_technician_whose_row_is_locked_is_passed_over(floor: Floor) -> None:
    ann, _bob = floor.crew("Ann", "Bob")
    submission = floor.submit()
    ends_while_held([ann], lambda: tasks.start_job(submission.pk), within=15)
    assert floor.offers(floor.job(submission)) == [("Bob", "pending")]


def test_a_technician_who_is_on_another_call_is_passed_over(floor: Floor) -> None:
    ann, bob = floor.crew("Ann", "Bob")
    first = floor.started()
    floor.rings(ann)
    second = floor.started()
    floor.rings(bob)
    assert (floor.offers(first), floor.offers(second)) == ([("Ann", "pending")], [("Bob", "pending")])


def test_several_technicians_are_called_at_once_after_the_first_offer(floor: Floor) -> None:
    floor.set_policy(offers_at_once_for_emergencies=2)
    crew = floor.crew("Ann", "Bob", "Cid")
    job = floor.started(priority=Priority.EMERGENCY)
    floor.rings(crew[0])
    floor.rings(crew[1])
    assert floor.offers(job) == [("Ann", "pending"), ("Bob", "pending")]


def test_a_first_offer_that_fails_does_not_undo_the_job(floor: Floor, offers_fail) -> None:
    (ann,) = floor.crew("Ann")
    job = floor.started()
    assert job.status == "dispatching"
    assert not Offer.objects.exists()
    offers_fail()
    forget_redis()
    clock.travel(31)
    floor.audit()
    floor.rings(ann)
    assert floor.offers(job) == [("Ann", "pending")]


def test_job_of_an_organization_without_technicians_turns_pending(floor: Floor) -> None:
    job = floor.started()
    assert (job.status, job.pending_reason) == ("pending", "nobody_near")
    factories.technician(floor.organization, "Ann")
    assert not Offer.objects.exists()
