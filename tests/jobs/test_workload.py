"""The limit of open jobs means jobs at the same time: a job planned for later takes no place now."""

from __future__ import annotations

import threading
from datetime import UTC, date, datetime, time, timedelta
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from django.db import connection, transaction
from django.urls import reverse

from dispatch.core import clock
from dispatch.jobs import services, sql
from dispatch.jobs.models import Candidate, Job, Offer
from dispatch.jobs.rules.arrival_window import ArrivalWindow
from dispatch.jobs.rules.workload import job_time
from dispatch.jobs.services import auditor
from dispatch.jobs.window_fields import window_of
from dispatch.technicians import search
from dispatch.technicians import services as technicians
from dispatch.technicians.models import Technician
from tests.jobs.test_arrival_windows import AFTERNOON, NOW, TOMORROW, times_of
from tests.jobs.test_quiet_hours import travel_to
from tests.jobs.test_races import at_once
from tests.jobs.test_threads import MARIA, Desk
from tests.support import factories
from tests.support.waiting import PATIENCE, wait_until

HOUR = timedelta(hours=1)


@pytest.fixture
def desk(db) -> Desk:
    travel_to(NOW)
    desk = Desk()
    Technician.objects.filter(pk=desk.ann.pk).update(max_open_jobs=1)
    return desk


def reason(desk: Desk, job: Job) -> str:
    return str(Candidate.objects.get(job=job, technician=desk.ann).reason)


def planned(technician: Technician) -> list[tuple[datetime, datetime]]:
    row = Technician.objects.get(pk=technician.pk)
    return [(span.lower, span.upper) for span in row.planned_times or ()]


# --- rules ------------------------------------------------------------------------------------------------------


def test_job_takes_from_earliest_arrival_until_latest_one_is_done():
    assert job_time(AFTERNOON, 90, NOW) == (AFTERNOON.start, AFTERNOON.end + 1.5 * HOUR, True)
    assert job_time(None, None, NOW) == (NOW, NOW + HOUR, False)
    late = AFTERNOON.end + HOUR
    assert job_time(AFTERNOON, 30, late) == (late, late + HOUR / 2, False)


# --- the cascade ------------------------------------------------------------------------------------------------


def test_job_tomorrow_leaves_the_place_free_today(desk):
    desk.assigned(**times_of(TOMORROW))
    job = desk.job()
    assert reason(desk, job).startswith("0.0 mi")
    assert Offer.objects.get(job=job, status="pending").technician == desk.ann


def test_job_without_a_window_takes_the_place_as_before(desk):
    desk.assigned()
    assert reason(desk, desk.job()) == "1 of 1 open job"


def test_window_that_overlaps_with_drive_and_duration_takes_the_place(desk):
    desk.assigned(**times_of(AFTERNOON))  # 14:00 to 16:00, done by 17:00
    travel_to(AFTERNOON.start - HOUR / 2)
    assert reason(desk, desk.job()) == "1 of 1 open job"
    evening = ArrivalWindow(AFTERNOON.end + HOUR / 2, AFTERNOON.end + 2 * HOUR)
    assert reason(desk, desk.job(**times_of(evening))) == "1 of 1 open job at that time"
    night = ArrivalWindow(AFTERNOON.end + 1.2 * HOUR, AFTERNOON.end + 2 * HOUR)
    assert reason(desk, desk.job(**times_of(night))).startswith("0.0 mi")
    far = desk.job(**times_of(night), lat=factories.MESA.lat, lng=factories.MESA.lng)  # 23 km are 35 minutes
    assert reason(desk, far) == "1 of 1 open job at that time"


def test_duration_of_the_service_type_counts(desk):
    desk.assigned(**times_of(AFTERNOON))
    night = ArrivalWindow(AFTERNOON.end + 1.2 * HOUR, AFTERNOON.end + 2 * HOUR)
    desk.service.expected_minutes = 180
    desk.service.save()
    assert auditor.repair_technicians() == 1
    assert planned(desk.ann) == [(AFTERNOON.start, AFTERNOON.end + 3 * HOUR)]
    assert reason(desk, desk.job(**times_of(night))) == "1 of 1 open job at that time"


def test_overdue_job_takes_the_place_until_it_is_completed(desk):
    job = desk.assigned(**times_of(AFTERNOON))
    travel_to(AFTERNOON.end + 5 * HOUR)
    waiting = desk.job()
    assert reason(desk, waiting) == "1 of 1 open job"
    services.complete(job.pk, actor=MARIA)
    services.cancel(waiting.pk, "test", actor=MARIA)
    assert reason(desk, desk.job()).startswith("0.0 mi")


def test_job_begun_before_its_window_takes_the_place(desk):
    job = desk.assigned(**times_of(TOMORROW))
    services.report_on_the_way(job.pk, actor=MARIA)
    (span,) = planned(desk.ann)
    assert span[0] - NOW < HOUR / 60
    assert reason(desk, desk.job()) == "1 of 1 open job"


@pytest.mark.parametrize("zone", ["America/Denver", "Europe/Berlin", "Asia/Kolkata"])
def test_window_across_midnight_and_change_of_clocks(desk, zone):
    """In Denver the clocks change on March 14, 2027 at 2:00, in Berlin on March 28."""
    day = {"America/Denver": date(2027, 3, 13), "Europe/Berlin": date(2027, 3, 27)}.get(zone, date(2027, 3, 13))
    desk.organization.time_zone = zone
    desk.organization.save()
    night = window_of(day, time(23, 30), time(4), zone)
    length = timedelta(hours=4.5 if zone == "Asia/Kolkata" else 3.5)
    assert night.end - night.start == length
    desk.assigned(**times_of(night))
    assert planned(desk.ann) == [(night.start, night.end + HOUR)]
    local = ZoneInfo(zone)
    at_five = datetime.combine(day + timedelta(days=1), time(5, 1), tzinfo=local).astimezone(UTC)
    at_four = datetime.combine(day + timedelta(days=1), time(4, 1), tzinfo=local).astimezone(UTC)
    before = datetime.combine(day, time(21), tzinfo=local).astimezone(UTC)
    assert reason(desk, desk.job(**times_of(ArrivalWindow(at_five, at_five + HOUR)))).startswith("0.0 mi")
    assert "at that time" in reason(desk, desk.job(**times_of(ArrivalWindow(at_four, at_four + HOUR))))
    assert reason(desk, desk.job(**times_of(ArrivalWindow(before, before + HOUR)))).startswith("0.0 mi")


# --- what is derived --------------------------------------------------------------------------------------------


def test_planned_times_follow_every_change_of_a_job(desk):
    bob = factories.technician(desk.organization, "Bob")
    job = desk.assigned(**times_of(TOMORROW))
    assert planned(desk.ann) == [(TOMORROW.start, TOMORROW.end + HOUR)]
    later = ArrivalWindow(TOMORROW.start + HOUR, TOMORROW.end + HOUR)
    details = services.Details(window=later, expected_minutes=30)
    services.correct(job.pk, actor=MARIA, correction=services.Correction(), details=details)
    assert planned(desk.ann) == [(later.start, later.end + HOUR / 2)]
    services.assign(job.pk, bob.pk, actor=MARIA, confirm_unfit=True)
    assert (planned(desk.ann), len(planned(bob))) == ([], 1)
    services.complete(job.pk, actor=MARIA)
    assert planned(bob) == []
    services.reopen(job.pk, actor=MARIA)
    assert len(planned(bob)) == 1
    services.cannot_make_it(job.pk, actor=MARIA)
    assert planned(bob) == []
    assert sql.drifted_technicians(10, but=()) == []


def test_planned_times_that_differ_are_repaired(desk):
    desk.assigned(**times_of(TOMORROW))
    bob = factories.technician(desk.organization, "Bob")
    right = planned(desk.ann)
    Technician.objects.filter(pk=desk.ann.pk).update(planned_times=None)
    Technician.objects.filter(pk=bob.pk).update(planned_times=[(NOW, NOW + HOUR)])
    assert auditor.repair_technicians() == 2
    assert (planned(desk.ann), planned(bob)) == (right, [])
    assert auditor.repair_technicians() == 0


def test_jobs_of_another_organization_change_nothing(desk):
    other = Desk()
    other.assigned(**times_of(TOMORROW))
    assert planned(desk.ann) == []


# --- the same everywhere ----------------------------------------------------------------------------------------


def test_pages_show_the_jobs_at_the_time(desk):
    desk.assigned(**times_of(TOMORROW))
    job = desk.job()
    services.cancel(job.pk, "test", actor=MARIA)
    services.dispatch_again(job.pk, actor=MARIA)
    browser = factories.browser(desk.maria)
    form = browser.get(reverse("console:act", args=[job.pk, "assign"])).content.decode()
    assert "0 of 1" in form
    drop = browser.get(reverse("console:timeline_drop", args=[job.pk])).json()
    assert drop["warnings"][str(desk.ann.pk)] == ""
    workload = drop["limits"][str(desk.ann.pk)]
    assert (workload["open"], workload["max"]) == (1, 1)
    assert workload["planned"] == [[int(TOMORROW.start.timestamp()), int((TOMORROW.end + HOUR).timestamp())]]
    counts, _ = search.load_activities(desk.organization, 10)
    assert "on_job" not in counts
    assert Technician.objects.get(pk=desk.ann.pk).workload_words == "0 of 1, 1 later"
    travel_to(TOMORROW.start + HOUR)
    counts, rows = search.load_activities(desk.organization, 10)
    assert (counts["on_job"], rows[0].open_jobs) == (1, 1)


def test_assignment_for_another_time_is_judged_by_that_time(desk):
    desk.assigned()  # now
    desk.assigned(**times_of(TOMORROW))
    Technician.objects.filter(pk=desk.ann.pk).update(max_open_jobs=2)
    job = desk.job(lat=factories.TUCSON.lat, lng=factories.TUCSON.lng)
    Job.objects.filter(pk=job.pk).update(lat=factories.PHOENIX.lat, lng=factories.PHOENIX.lng)
    clashes = services.assign(job.pk, desk.ann.pk, actor=MARIA, window=TOMORROW)
    assert (clashes.assigned, clashes.warnings) == (False, ("Ann: 2 of 2 open jobs at that time.",))
    after = ArrivalWindow(TOMORROW.start + 24 * HOUR, TOMORROW.end + 24 * HOUR)
    assert services.assign(job.pk, desk.ann.pk, actor=MARIA, window=after).assigned


# --- races ------------------------------------------------------------------------------------------------------


def fitness(technician: Technician, window: ArrivalWindow | None) -> search.Nearby:
    at = factories.PHOENIX
    during = job_time(window, None, clock.now())
    return technicians.check_fitness(
        technician.pk, at.lat, at.lng, radius_m=50_000, skill_ids=[], lock=True, during=during
    )


@pytest.mark.django_db(transaction=True)
def test_check_that_waited_for_an_assignment_counts_its_window():
    """The check locks the technician, and counts what the session that had the lock has changed."""
    travel_to(NOW)
    desk = Desk()
    Technician.objects.filter(pk=desk.ann.pk).update(max_open_jobs=1)
    job = desk.job(**times_of(TOMORROW))
    results: dict[str, Any] = {}

    def check(name: str, window: ArrivalWindow | None) -> None:
        with transaction.atomic():
            results[name] = fitness(desk.ann, window).code
        connection.close()

    with transaction.atomic():
        services.assign(job.pk, desk.ann.pk, actor=MARIA, confirm_unfit=True)
        threads = [threading.Thread(target=check, args=case) for case in (("same", TOMORROW), ("now", None))]
        for thread in threads:
            thread.start()
        wait_until(lambda: waiting_for_locks() == 2)
    for thread in threads:
        thread.join(PATIENCE)
    assert results == {"same": "at_limit", "now": "fit"}


def waiting_for_locks() -> int:
    with connection.cursor() as cursor:
        cursor.execute("SELECT count(DISTINCT pid) FROM pg_locks WHERE NOT granted")
        return int(cursor.fetchone()[0])


@pytest.mark.django_db(transaction=True)
def test_changes_at_once_lose_no_planned_time():
    travel_to(NOW)
    desk = Desk()
    Technician.objects.filter(pk=desk.ann.pk).update(max_open_jobs=1)
    jobs = [desk.job(**times_of(TOMORROW)) for _ in range(4)]
    moved, gone, *others = jobs
    for job in (moved, gone):
        services.assign(job.pk, desk.ann.pk, actor=MARIA, confirm_unfit=True)
    later = ArrivalWindow(TOMORROW.start + 24 * HOUR, TOMORROW.end + 24 * HOUR)
    results = at_once(
        lambda: services.correct(
            moved.pk, actor=MARIA, correction=services.Correction(), details=services.Details(window=later)
        ),
        lambda: services.complete(gone.pk, actor=MARIA),
        *[lambda job=job: services.assign(job.pk, desk.ann.pk, actor=MARIA, confirm_unfit=True) for job in others],
    )
    assert not [result for result in results if isinstance(result, Exception)]
    expected = [(TOMORROW.start, TOMORROW.end + HOUR)] * 2 + [(later.start, later.end + HOUR)]
    assert planned(desk.ann) == expected
    assert sql.drifted_technicians(10, but=()) == []


@pytest.mark.parametrize("gap", [0, 48])
def test_two_jobs_at_once_are_accepted_only_if_they_do_not_overlap(floor, gap):
    ann = floor.technician("Ann", max_open_jobs=1)
    first = ArrivalWindow(clock.now() + 5 * HOUR, clock.now() + 6 * HOUR)
    second = ArrivalWindow(first.start + gap * HOUR, first.end + gap * HOUR)
    jobs = [floor.started(**times_of(window)) for window in (first, second)]
    at_once(*[lambda job=job: services.call_next_now(job.pk, actor=MARIA) for job in jobs])
    floor.work()
    floor.rings(ann).answer().press("1")
    floor.until(lambda: Job.objects.filter(status="assigned").count() == 1)
    (other,) = Job.objects.exclude(status="assigned")

    def is_decided() -> bool:
        floor.audit()
        return floor.status(other) == "pending" or other.offers.exists()

    floor.until(is_decided)
    if gap:
        floor.rings(ann).answer().press("1")
        floor.until(lambda: floor.status(other) == "assigned")
    else:
        assert floor.status(other) == "pending"
        assert Candidate.objects.get(job=other).reason == "1 of 1 open job at that time"
