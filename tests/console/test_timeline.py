"""The timeline shows each technician's shifts and jobs by time, and the unassigned jobs."""

from __future__ import annotations

import re
from datetime import UTC, date, datetime, time, timedelta
from urllib.parse import urlencode
from zoneinfo import ZoneInfo

import pytest
from django.urls import reverse

from dispatch.console.timeline import plan
from dispatch.core import clock
from dispatch.jobs import services
from dispatch.jobs.models import Job, Offer
from dispatch.jobs.timeline import load_timeline
from dispatch.technicians.models import Shift, Technician
from tests.jobs.test_quiet_hours import travel_to
from tests.jobs.test_threads import MARIA, Desk
from tests.support import factories

PHOENIX, DENVER = "America/Phoenix", "America/Denver"
TODAY = date(2027, 3, 3)


def at(hour: int, minute: int = 0, day: date = TODAY) -> datetime:
    return datetime.combine(day, time(hour, minute), tzinfo=ZoneInfo(PHOENIX)).astimezone(UTC)


@pytest.fixture
def desk(db) -> Desk:
    travel_to(at(9))
    return Desk()


def today_of(desk: Desk, **options) -> plan.Day:
    return plan.load_days(desk.organization, TODAY, 1, **options)[0][0]


def only_bar(desk: Desk) -> plan.Bar:
    (bar,) = [bar for row in today_of(desk).rows for bar in row.bars]
    return bar


def shown(desk: Desk, query: str = "", **headers) -> str:
    answer = factories.browser(desk.maria).get(reverse("console:timeline") + query, headers=headers)
    assert answer.status_code == 200
    return answer.content.decode()


# --- bars -------------------------------------------------------------------------------------------------------


def test_assigned_job_is_planned_for_its_window(desk):
    job = desk.assigned(window_start=at(14), window_end=at(16), expected_minutes=90)
    bar = only_bar(desk)
    assert (bar.job, bar.start, bar.end, bar.is_planned) == (job, at(14), at(15, 30), True)


def test_job_without_a_time_is_planned_for_now_with_the_usual_duration(desk):
    desk.service.expected_minutes = 45
    desk.service.save()
    desk.assigned()
    clock.travel(600)
    asked = clock.now()
    bar = only_bar(desk)
    assert asked <= bar.start <= clock.now()
    assert bar.minutes == 45


def test_started_job_begins_at_its_start_and_ends_no_earlier_than_now(desk):
    job = desk.assigned(expected_minutes=30)
    services.mark_started(job.pk, actor=MARIA)
    clock.travel(3600)
    asked = clock.now()
    bar = only_bar(desk)
    assert (bar.start, bar.is_planned) == (Job.objects.get().started_at, False)
    assert asked <= bar.end <= clock.now()


def test_completed_job_shows_when_the_work_was_done(desk):
    job = desk.assigned()
    services.mark_started(job.pk, actor=MARIA)
    clock.travel(2 * 3600)
    services.complete(job.pk, actor=MARIA)
    bar = only_bar(desk)
    done = Job.objects.get()
    assert (bar.start, bar.end, bar.tone) == (done.started_at, done.ended_at, "off")
    yesterday = plan.load_days(desk.organization, TODAY - timedelta(days=1), 1)[0][0]
    assert not any(row.bars for row in yesterday.rows)


def test_trip_leads_to_the_expected_arrival(desk):
    job = desk.assigned()
    services.report_on_the_way(job.pk, actor=MARIA, eta_minutes=40)
    bar = only_bar(desk)
    assert bar.start == Job.objects.get().eta_at
    assert re.match(r"--l:[\d.]+%;--w:5\.556%", bar.travel), "40 minutes of the twelve hours shown"


def test_jobs_at_the_same_time_are_in_different_lanes(desk):
    for hour in (10, 10, 12):
        desk.assigned(window_start=at(hour), window_end=at(hour + 1))
    (row,) = today_of(desk).rows
    assert [bar.lane for bar in row.bars] == [0, 1, 0]
    assert row.lanes == 2


# --- shifts -----------------------------------------------------------------------------------------------------


def shift(desk: Desk, begin: int, end: int, day: date = TODAY) -> None:
    Shift.objects.create(
        organization=desk.organization,
        technician=desk.ann,
        weekday=day.weekday(),
        starts=time(begin),
        ends=time(end),
    )


def test_shifts_are_shown_in_local_time(desk):
    shift(desk, 8, 16)
    (row,) = today_of(desk).rows
    assert (row.hours, row.is_anytime) == ("08:00–16:00", False)
    Technician.objects.update(time_zone="America/New_York")
    assert today_of(desk).rows[0].hours == "06:00–14:00"


def test_night_shift_is_on_both_days(desk):
    shift(desk, 22, 6)
    days = plan.load_days(desk.organization, TODAY, 2)[0]
    assert [day.rows[0].hours for day in days] == ["22:00–00:00", "00:00–06:00"]


def test_day_without_work_shows_the_usual_hours(desk):
    day = today_of(desk)
    assert [label for label, _ in day.hours] == [f"{hour:02d}:00" for hour in range(7, 19)]
    assert day.is_today
    assert day.now_at


@pytest.mark.parametrize(("day", "hours"), [(date(2027, 3, 14), 23), (date(2027, 11, 7), 25)])
def test_day_of_a_clock_change_has_as_many_hours_as_it_has(desk, day, hours):
    desk.organization.time_zone = DENVER
    desk.organization.save()
    Shift.objects.create(
        organization=desk.organization, technician=desk.ann, weekday=day.weekday(), starts=time(0), ends=time(0)
    )
    assert len(plan.load_days(desk.organization, day, 1)[0][0].hours) == hours


# --- the page ---------------------------------------------------------------------------------------------------


def test_unassigned_jobs_are_listed_on_the_day_of_their_window(desk):
    Technician.objects.update(on_duty=False)
    now = desk.job()
    tomorrow = desk.job(window_start=at(10) + timedelta(days=1), window_end=at(12) + timedelta(days=1))
    urgent = desk.job(priority=1)
    waiting = plan.load_unassigned(desk.organization, TODAY, TODAY + timedelta(days=1))
    assert [item.job for item in waiting.items] == [urgent, now]
    waiting = plan.load_unassigned(desk.organization, TODAY + timedelta(days=1), TODAY + timedelta(days=2))
    assert [item.job for item in waiting.items] == [tomorrow]


def test_an_empty_list_says_for_which_days_no_job_is_unassigned(desk):
    assert "Every job for today has a technician." in shown(desk)
    assert "Every job for this week has a technician." in shown(desk, "?days=7")
    Technician.objects.update(on_duty=False)
    desk.job()
    assert "has a technician" not in shown(desk)
    for day in (TODAY + timedelta(days=1), TODAY - timedelta(days=1)):
        page = shown(desk, f"?day={day}")
        assert "No unassigned job has an arrival window on this day." in page
        assert "has a technician" not in page
    page = shown(desk, f"?day={TODAY + timedelta(days=7)}&days=7")
    assert "No unassigned job has an arrival window in this week." in page


def test_unassigned_job_shows_that_a_phone_rings_for_it(desk):
    desk.job()
    Offer.objects.update(ringing_since=clock.now())
    (item,) = plan.load_unassigned(desk.organization, TODAY, TODAY + timedelta(days=1)).items
    assert (item.tone, item.state) == ("calling", "Ringing")


def test_deactivated_technician_is_shown_while_they_have_jobs(desk):
    job = desk.assigned()
    Technician.objects.update(is_active=False)
    assert only_bar(desk).state == "Assigned to a technician who left"
    page = shown(desk)
    assert "Deactivated" in page
    assert f'data-open="{job.pk}"' in page
    services.cancel(job.pk, "test", actor=MARIA)
    assert not today_of(desk).rows


def test_page_shows_a_day_a_week_or_only_the_chart(desk):
    job = desk.assigned(window_start=at(14), window_end=at(16))
    page = shown(desk)
    assert "Wed, Mar 3" in page
    assert f'data-open="{job.pk}"' in page
    assert "14:00–15:00" in page
    week = shown(desk, "?days=7")
    assert "Tue, Mar 9" in week
    assert "<html" not in shown(desk, **{"HX-Request": "true"})
    assert 'id="drawer-title"' in shown(desk, f"?job={job.pk}")


def test_job_that_began_on_an_earlier_day_shows_the_date_instead_of_a_time(desk):
    desk.assigned()
    yesterday = TODAY - timedelta(days=1)
    Job.objects.update(started_at=at(23, 43, day=yesterday))
    week = shown(desk, f"?days=7&day={yesterday}")
    assert re.findall(r'<a class="chip[^>]*><span class="figure">([^<]+)</span>', week) == ["23:43", "Mar 2"]
    assert re.findall(r'</b> <span class="figure">([^<]+)</span>', shown(desk)) == ["Mar 2"]


@pytest.mark.parametrize("day", ["never", "0001-01-01", "9999-12-31", "2027-02-30", ""])
def test_impossible_day_is_today(desk, day):
    assert "Wed, Mar 3" in shown(desk, f"?day={day}")


def test_technicians_are_found_by_name(desk):
    factories.technician(desk.organization, "Bob")
    assert [row.technician.name for row in today_of(desk, who="bo").rows] == ["Bob"]


def test_nobody_sees_another_organization(desk):
    other = Desk()
    job = other.assigned()
    assert f'data-open="{job.pk}"' not in shown(desk)
    browser = factories.browser(desk.maria)
    assert browser.get(reverse("console:timeline_drop", args=[job.pk])).status_code == 404
    assert browser.get(reverse("console:timeline") + f"?job={job.pk}").status_code == 404


def test_drop_is_checked_against_every_technician(desk):
    off = factories.technician(desk.organization, "Bob", on_duty=False)
    job = desk.job()
    services.cancel(job.pk, "test", actor=MARIA)
    services.dispatch_again(job.pk, actor=MARIA)
    answer = factories.browser(desk.maria).get(reverse("console:timeline_drop", args=[job.pk])).json()
    assert answer["warnings"][str(desk.ann.pk)] == ""
    assert answer["warnings"][str(off.pk)]
    assert answer["others"].startswith("more than ")


def test_queries_do_not_grow_with_the_jobs(desk, django_assert_max_num_queries):
    for nth in range(3):
        desk.assigned(window_start=at(10 + nth), window_end=at(11 + nth))
    with django_assert_max_num_queries(8):
        today_of(desk)
        plan.load_unassigned(desk.organization, TODAY, TODAY + timedelta(days=1))
    assert Job.objects.filter(status="assigned").count() == 3


# --- a drop sets the arrival window ------------------------------------------------------------------------------


def dropped(desk: Desk, job: Job, begin: str, end: str, **more: str):
    """Confirm the form that a drop on Ann at this time of today opens."""
    at_time = {"window_day": str(TODAY), "window_from": begin, "window_until": end}
    client, address = factories.browser(desk.maria), reverse("console:act", args=[job.pk, "assign"])
    query = urlencode({"technician": desk.ann.pk, **at_time})
    form = client.get(f"{address}?{query}", headers={"HX-Request": "true"}).content.decode()
    assert f'name="window_from" value="{begin}"' in form
    assert re.search(rf'value="{desk.ann.pk}" required checked', form)
    job.refresh_from_db()
    sent = {"version": str(job.version), "technician": str(desk.ann.pk), **at_time, **more}
    return client.post(address, sent, headers={"HX-Request": "true"})


def test_job_dropped_at_a_time_gets_that_window(desk):
    job = desk.job()
    assert dropped(desk, job, "14:00", "15:30").status_code == 200
    job.refresh_from_db()
    assert (job.status, job.technician, job.window_start, job.window_end) == (
        "assigned",
        desk.ann,
        at(14),
        at(15, 30),
    )
    bar = only_bar(desk)
    assert bar.start == at(14)
    said = [entry.did for entry in load_timeline(job) if entry.kind == "job.corrected"]
    assert said == ["corrected the arrival window: 14:00–15:30"]
    assert job.attention_at == at(15, 30), "a job that is not started in its window needs attention"


def test_window_that_the_drop_keeps_is_no_correction(desk):
    job = desk.job(window_start=at(14), window_end=at(16))
    dropped(desk, job, "14:00", "16:00")
    job.refresh_from_db()
    assert (job.status, job.window_start) == ("assigned", at(14))
    assert not [entry for entry in load_timeline(job) if entry.kind == "job.corrected"]


def test_drop_in_the_past_changes_nothing(desk):
    job = desk.job()
    answer = dropped(desk, job, "07:00", "08:00")
    assert answer.status_code == 422
    assert "The arrival window is in the past." in answer.content.decode()
    job.refresh_from_db()
    assert (job.status, job.window_start) == ("dispatching", None)


def test_window_is_set_only_with_the_assignment(desk):
    services.cancel(desk.assigned().pk, "mistake", actor=MARIA)
    Technician.objects.filter(pk=desk.ann.pk).update(on_duty=False)
    job = desk.job()
    assert "Assign anyway" in dropped(desk, job, "14:00", "15:00").content.decode()
    job.refresh_from_db()
    assert (job.technician, job.window_start) == (None, None)
    assert dropped(desk, job, "14:00", "15:00", confirm_unfit="on").status_code == 200
    job.refresh_from_db()
    assert (job.technician, job.window_start) == (desk.ann, at(14))


def test_assigning_without_a_time_keeps_the_window(desk):
    job = desk.job(window_start=at(14), window_end=at(16))
    client, address = factories.browser(desk.maria), reverse("console:act", args=[job.pk, "assign"])
    assert "window_from" not in client.get(address, headers={"HX-Request": "true"}).content.decode()
    client.post(address, {"version": str(job.version), "technician": str(desk.ann.pk)})
    job.refresh_from_db()
    assert (job.technician, job.window_start, job.window_end) == (desk.ann, at(14), at(16))
