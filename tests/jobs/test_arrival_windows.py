"""A job with an arrival window calls technicians in time for it, and they hear and read the window."""

from __future__ import annotations

from datetime import UTC, date, datetime, time, timedelta
from zoneinfo import ZoneInfo

import pytest
from django.urls import reverse

from dispatch.core import clock
from dispatch.core.languages import override
from dispatch.jobs import services, timeline
from dispatch.jobs.models import DispatchPolicy, Job, Offer, TechnicianNotice
from dispatch.jobs.rules.arrival_window import ArrivalWindow, local_moment
from dispatch.jobs.rules.phrases import offer_text
from dispatch.jobs.services.sms import prompt_context
from dispatch.jobs.window_fields import window_of
from dispatch.technicians.models import Technician
from tests.jobs.test_quiet_hours import moves_on, travel_to
from tests.jobs.test_threads import MARIA, Desk
from tests.support import factories

PHOENIX = "America/Phoenix"
NOW = datetime(2027, 3, 3, 9, tzinfo=ZoneInfo(PHOENIX)).astimezone(UTC)
AFTERNOON = ArrivalWindow(NOW + timedelta(hours=5), NOW + timedelta(hours=7))  # 14:00 to 16:00
TOMORROW = ArrivalWindow(NOW + timedelta(hours=29), NOW + timedelta(hours=31))


def times_of(window: ArrivalWindow) -> dict:
    return {"window_start": window.start, "window_end": window.end}


def body_of(window: ArrivalWindow) -> dict:
    return {"start": window.start.isoformat(), "end": window.end.isoformat()}


@pytest.fixture
def desk(db) -> Desk:
    travel_to(NOW)
    return Desk()


# --- rules ------------------------------------------------------------------------------------------------------


def test_window_that_cannot_be_promised_says_why():
    hour = timedelta(hours=1)
    assert ArrivalWindow(NOW + hour, NOW).problem(NOW) == "The arrival window must end after it starts."
    assert "in the past" in ArrivalWindow(NOW - 2 * hour, NOW - hour).problem(NOW)
    assert "24 hours" in ArrivalWindow(NOW, NOW + 25 * hour).problem(NOW)
    assert "within a year" in ArrivalWindow(NOW + 400 * 24 * hour, NOW + 401 * 24 * hour).problem(NOW)
    assert not ArrivalWindow(NOW - hour, NOW + hour).problem(NOW)


@pytest.mark.parametrize(
    ("day", "begin", "end", "says"),
    [
        (date.max, time(10), time(9), "within a year"),
        (date.min, time(10), time(9), "in the past"),
        (date(2027, 3, 14), time(2, 30), time(3), "end after it starts"),  # the clocks skip 2:00 to 3:00
    ],
)
@pytest.mark.parametrize("zone", ["America/Denver", "Asia/Tokyo"])
def test_times_that_make_no_window_are_refused(day, begin, end, says, zone):
    if zone != "America/Denver" and day.year == 2027:
        assert not window_of(day, begin, end, zone).problem(NOW)
    else:
        assert says in window_of(day, begin, end, zone).problem(NOW)


def test_window_is_said_in_local_time_and_in_the_language():
    assert AFTERNOON.words(PHOENIX, NOW) == "between 2:00 PM and 4:00 PM"
    assert TOMORROW.words(PHOENIX, NOW) == "on Thursday, March 4 between 2:00 PM and 4:00 PM"
    assert AFTERNOON.short_words(PHOENIX, NOW) == "14:00–16:00"
    assert TOMORROW.short_words(PHOENIX, NOW) == "Thu, Mar 4, 14:00–16:00"
    with override("es"):
        assert TOMORROW.words(PHOENIX, NOW) == "el jueves 4 de marzo entre las 2:00 p.m. y las 4:00 p.m."


def test_moment_beyond_a_day_has_its_date():
    assert local_moment(NOW + timedelta(hours=3), PHOENIX, NOW) == "12:00"
    assert local_moment(NOW + timedelta(days=2), PHOENIX, NOW) == "Fri, Mar 5, 9:00"


# --- the cascade ------------------------------------------------------------------------------------------------


def test_technicians_are_called_two_hours_before_the_window(desk):
    job = desk.job(**times_of(AFTERNOON))
    assert (job.status, job.waiting_for) == ("dispatching", "window")
    assert job.next_action_at == NOW + timedelta(hours=3)
    said = [entry.text for entry in timeline.load_timeline(job)]
    assert "Dispatch is waiting until 12:00, in time for the arrival window" in said
    moves_on(job)
    assert job.waiting_for == "window", "woken too early"
    assert not Offer.objects.exists()
    clock.travel(3 * 3600)
    moves_on(job)
    assert Offer.objects.get().technician == desk.ann


def test_window_within_the_lead_is_called_for_at_once(desk):
    desk.job(window_start=NOW + timedelta(hours=1), window_end=NOW + timedelta(hours=2))
    assert Offer.objects.get().technician == desk.ann


def test_policy_says_how_early_technicians_are_called(desk):
    DispatchPolicy.objects.create(organization=desk.organization, window_lead_s=3600)
    assert desk.job(**times_of(AFTERNOON)).next_action_at == NOW + timedelta(hours=4)


def test_quiet_hours_still_hold_a_job_whose_window_is_near(desk):
    DispatchPolicy.objects.create(organization=desk.organization, quiet_for="normal", window_lead_s=6 * 3600)
    at_nine = NOW + timedelta(days=1)
    job = desk.job(window_start=at_nine, window_end=at_nine + timedelta(hours=2))
    travel_to(at_nine - timedelta(hours=6))
    moves_on(job)
    assert (job.waiting_for, Offer.objects.count()) == ("quiet_hours", 0)
    travel_to(at_nine - timedelta(hours=2))
    moves_on(job)
    assert Offer.objects.count() == 1


def test_dispatcher_may_call_before_the_time(desk):
    job = desk.job(**times_of(AFTERNOON))
    page = factories.browser(desk.maria).get(reverse("console:act", args=[job.pk, "call-next"])).content.decode()
    assert "Starts calling technicians now, without waiting for the arrival window." in page
    services.call_next_now(job.pk, actor=MARIA)
    job.refresh_from_db()
    services.offer_next(job.pk, job.step_token, place=False)
    assert Offer.objects.get().technician == desk.ann


def test_job_given_back_early_waits_for_its_window_again(desk):
    job = desk.assigned(**times_of(TOMORROW))
    services.cannot_make_it(job.pk, actor=MARIA)
    job.refresh_from_db()
    assert (job.status, job.waiting_for) == ("dispatching", "window")
    assert job.next_action_at == TOMORROW.start - timedelta(hours=2)


def test_dispatching_again_calls_now_after_an_earlier_decision_to_call_now(desk):
    Technician.objects.update(on_duty=False)
    job = desk.job(**times_of(TOMORROW))
    services.call_next_now(job.pk, actor=MARIA)
    job.refresh_from_db()
    assert job.status == "pending"
    Technician.objects.update(on_duty=True)
    services.dispatch_again(job.pk, actor=MARIA)
    job.refresh_from_db()
    services.offer_next(job.pk, job.step_token, place=False)
    assert Offer.objects.get().technician == desk.ann


def test_job_that_was_paused_while_it_waited_is_ranked_when_it_is_resumed(desk):
    Technician.objects.update(on_duty=False)
    job = desk.job(**times_of(TOMORROW))
    services.pause(job.pk, actor=MARIA)
    services.resume(job.pk, actor=MARIA)
    job.refresh_from_db()
    assert (job.status, job.waiting_for) == ("dispatching", "window")
    services.pause(job.pk, actor=MARIA)
    travel_to(TOMORROW.start - timedelta(hours=1))
    Technician.objects.update(on_duty=True)
    services.resume(job.pk, actor=MARIA)
    job.refresh_from_db()
    services.offer_next(job.pk, job.step_token, place=False)
    assert Offer.objects.get().technician == desk.ann


def test_job_not_started_within_its_window_needs_attention(desk):
    job = desk.assigned(**times_of(AFTERNOON))
    assert job.attention_at == AFTERNOON.end
    travel_to(AFTERNOON.end - timedelta(minutes=1))
    assert not Job.objects.needing_attention().exists()
    travel_to(AFTERNOON.end)
    assert Job.objects.needing_attention().get() == job


# --- corrections ------------------------------------------------------------------------------------------------


def test_moving_the_window_moves_the_calls(desk):
    job = desk.job()
    assert Offer.objects.get().status == "pending"
    answer = desk.api.post(f"jobs/{job.pk}/correct/", {"arrival_window": body_of(TOMORROW)})
    assert answer.status_code == 200, answer.content
    assert answer.json()["arrival_window"] == {"start": "2027-03-04T21:00:00Z", "end": "2027-03-04T23:00:00Z"}
    job.refresh_from_db()
    assert (job.status, job.waiting_for) == ("dispatching", "window")
    assert Offer.objects.get().status == "rescinded"
    said = [entry.text for entry in timeline.load_timeline(job)]
    assert "Maria Lopez corrected the arrival window: Thu, Mar 4, 14:00–16:00" in said
    answer = desk.api.post(f"jobs/{job.pk}/correct/", {"arrival_window": None})
    assert answer.json()["arrival_window"] is None
    job.refresh_from_db()
    assert job.waiting_for != "window"


def test_yes_to_an_offer_with_the_former_window_does_not_take_the_job(desk):
    offer = desk.offered()
    desk.api.post(f"jobs/{offer.job_id}/correct/", {"arrival_window": body_of(TOMORROW)})
    clock.travel(60)
    desk.texts("1")
    job = Job.objects.get()
    assert (job.status, job.waiting_for, job.technician) == ("dispatching", "window", None)


def test_notes_that_a_browser_sends_back_are_not_changed(desk):
    job = desk.job(notes="Gate code 4711\nRing twice\n")
    given = {
        "version": job.version, "customer_name": job.customer_name, "customer_phone": str(job.customer_phone),
        "address": job.address, "priority": str(job.priority), "notes": "Gate code 4711\r\nRing twice\r\n",
    }  # fmt: skip
    address = reverse("console:act", args=[job.pk, "correct"])
    browser = factories.browser(desk.maria)
    answer = browser.post(address, given, headers={"HX-Request": "true"})
    assert (answer.status_code, "Change at least one field." in answer.content.decode()) == (409, True)
    browser.post(address, given | {"notes": "Ring\r\nthrice"}, headers={"HX-Request": "true"})
    job.refresh_from_db()
    assert job.notes == "Ring\nthrice"


def test_assigned_technician_is_notified_of_a_new_window(desk):
    job = desk.assigned(**times_of(AFTERNOON))
    desk.api.post(f"jobs/{job.pk}/correct/", {"arrival_window": body_of(TOMORROW)})
    job.refresh_from_db()
    newest = TechnicianNotice.objects.order_by("-pk")[0]
    assert (newest.news, newest.status) == ("assigned", "sending"), "the first one has not been sent yet"
    assert TechnicianNotice.objects.count() == 2
    assert job.attention_at == TOMORROW.end


def test_name_notes_and_duration_are_corrected_without_a_notice(desk):
    job = desk.assigned()
    given = {"customer_name": "Dolores Umber", "notes": "Gate code 4711", "expected_minutes": 90}
    answer = desk.api.post(f"jobs/{job.pk}/correct/", given)
    assert answer.status_code == 200, answer.content
    job.refresh_from_db()
    assert {name: getattr(job, name) for name in given} == given
    said = [entry.text for entry in timeline.load_timeline(job)]
    assert "Maria Lopez corrected the customer's name, duration and notes" in said


@pytest.mark.parametrize(
    ("window", "field", "says"),
    [
        ({"start": "2027-03-03T14:00:00-07:00", "end": "2027-03-03T13:00:00-07:00"}, "end", "end after it starts"),
        ({"start": "2027-03-03T06:00:00-07:00", "end": "2027-03-03T07:00:00-07:00"}, "end", "in the past"),
        ({"start": "2029-03-03T06:00:00-07:00", "end": "2029-03-03T07:00:00-07:00"}, "start", "within a year"),
        ({"start": "tomorrow", "end": "2027-03-03T07:00:00-07:00"}, "start", "Datetime has wrong format"),
    ],
)
def test_impossible_window_is_refused_with_its_field(desk, window, field, says):
    body = factories.form(desk.service) | {"arrival_window": window}
    answer = desk.api.post("submissions/", body)
    assert answer.status_code == 400
    assert f"arrival_window.{field}" in str(answer.json()) or field in str(answer.json())
    assert says in str(answer.json())


def test_form_with_a_window_is_stored_with_it(desk):
    body = factories.form(desk.service) | {"arrival_window": body_of(AFTERNOON), "expected_minutes": 45}
    answer = desk.api.post("submissions/", body)
    assert answer.status_code == 202, answer.content
    stored = desk.api.get(f"submissions/{answer.json()['id']}/").json()
    assert stored["arrival_window"] == {"start": "2027-03-03T21:00:00Z", "end": "2027-03-03T23:00:00Z"}
    assert stored["expected_minutes"] == 45


# --- what people read and hear ----------------------------------------------------------------------------------


def test_technicians_hear_and_read_the_window(desk):
    job = desk.job(**times_of(AFTERNOON))
    assert prompt_context(job).arrival == "between 2:00 PM and 4:00 PM"
    assert " Arrive between 2:00 PM and 4:00 PM. " in offer_text(
        "Copper", prompt_context(job), "https://x.example"
    )
    with override("es"):
        said = offer_text("Copper", prompt_context(job), "https://x.example")
    assert " Llegue entre las 2:00 p.m. y las 4:00 p.m. " in said


def test_board_shows_the_window_and_when_calls_begin(desk):
    job = desk.job(**times_of(AFTERNOON))
    page = factories.browser(desk.maria).get(reverse("console:board") + f"?job={job.pk}").content.decode()
    assert "Calls at 12:00" in page
    assert page.count("14:00–16:00") == 2, "on the card and in the panel"


def test_dispatcher_enters_the_window_in_local_time(desk):
    browser = factories.browser(desk.maria)
    job = desk.job()
    given = {
        "version": job.version, "customer_name": job.customer_name, "customer_phone": str(job.customer_phone),
        "address": job.address, "priority": "3", "window_day": "2027-03-04", "window_from": "14:00",
        "window_until": "16:00",
    }  # fmt: skip
    address = reverse("console:act", args=[job.pk, "correct"])
    answer = browser.post(address, given | {"window_until": ""}, headers={"HX-Request": "true"})
    assert "Enter the day and both times, or leave all three empty." in answer.content.decode()
    answer = browser.post(address, given, headers={"HX-Request": "true"})
    job.refresh_from_db()
    assert job.arrival_window == TOMORROW
