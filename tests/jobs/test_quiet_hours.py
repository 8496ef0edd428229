"""A job that can wait calls nobody in quiet hours; an emergency always does."""

from __future__ import annotations

import random
from datetime import UTC, datetime, time, timedelta
from itertools import pairwise
from zoneinfo import ZoneInfo

import pytest
from django.test import Client
from django.urls import reverse

from dispatch.core import clock
from dispatch.jobs import services, timeline
from dispatch.jobs.models import DispatchPolicy, Job, Offer
from dispatch.jobs.rules.quiet_hours import QuietHours
from dispatch.technicians.models import Technician
from tests.api.client import Api
from tests.jobs.test_threads import MARIA, Desk
from tests.support import factories

PHOENIX = "America/Phoenix"
NIGHT = QuietHours("normal", time(22), time(7))


def at(zone: str, *when: int, fold: int = 0) -> datetime:
    return datetime(*when, fold=fold, tzinfo=ZoneInfo(zone)).astimezone(UTC)


@pytest.mark.parametrize(
    ("priority", "quiet_for", "hour", "waits"),
    [
        (3, "normal", 3, True),
        (3, "normal", 22, True),
        (3, "normal", 7, False),
        (3, "normal", 21, False),
        (2, "normal", 3, False),
        (2, "urgent", 3, True),
        (3, "urgent", 3, True),
        (1, "urgent", 3, False),
        (3, "off", 3, False),
    ],
)
def test_quiet_hours_hold_back_what_can_wait(priority, quiet_for, hour, waits):
    quiet = QuietHours(quiet_for, time(22), time(7))
    end = quiet.end_for(priority, at(PHOENIX, 2026, 3, 3, hour), PHOENIX)
    assert (end is not None) == waits
    if end is not None:
        assert end == at(PHOENIX, 2026, 3, 3 if hour < 7 else 4, 7)


def test_quiet_hours_within_one_day():
    noon = QuietHours("normal", time(12), time(13, 30))
    assert noon.end_for(3, at(PHOENIX, 2026, 3, 3, 12), PHOENIX) == at(PHOENIX, 2026, 3, 3, 13, 30)
    assert noon.end_for(3, at(PHOENIX, 2026, 3, 3, 13, 30), PHOENIX) is None


def test_quiet_hours_began_on_the_day_of_their_end_or_before():
    assert NIGHT.start_of(at(PHOENIX, 2026, 3, 4, 7), PHOENIX) == at(PHOENIX, 2026, 3, 3, 22)
    noon = QuietHours("normal", time(12), time(13, 30))
    assert noon.start_of(at(PHOENIX, 2026, 3, 3, 13, 30), PHOENIX) == at(PHOENIX, 2026, 3, 3, 12)


def test_quiet_hours_end_right_across_daylight_saving():
    zone = "America/Denver"
    spring, fall = (2026, 3, 8), (2026, 11, 1)
    assert NIGHT.end_for(3, at(zone, *spring, 1), zone) == datetime(2026, 3, 8, 13, tzinfo=UTC)
    assert NIGHT.end_for(3, at(zone, *fall, 0, 30), zone) == datetime(2026, 11, 1, 14, tzinfo=UTC)
    # an end that the clocks skip: over as soon as they have jumped
    gap = QuietHours("normal", time(22), time(2, 30))
    assert gap.end_for(3, at(zone, *spring, 1), zone) == at(zone, *spring, 3)
    # an end that comes twice: quiet again in the repeated hour
    twice = QuietHours("normal", time(22), time(1, 30))
    assert twice.end_for(3, at(zone, *fall, 1, 15), zone) == at(zone, *fall, 1, 30)
    assert twice.end_for(3, at(zone, *fall, 1, 15, fold=1), zone) == at(zone, *fall, 1, 30, fold=1)


def test_policies_fall_back_field_by_field():
    service = {"quiet_for": None, "quiet_from": time(20), "quiet_until": None}
    organization = {"quiet_for": "urgent", "quiet_from": time(23), "quiet_until": time(6)}
    assert QuietHours.of([service, organization]) == QuietHours("urgent", time(20), time(6))
    assert QuietHours.of([{"quiet_for": "off"}, organization]).quiet_for == "off"
    assert QuietHours.of([]) == QuietHours()


def travel_to(moment: datetime) -> None:
    clock.travel((moment - clock.now()).total_seconds())


# --- the cascade ------------------------------------------------------------------------------------------------


@pytest.fixture
def desk(db) -> Desk:
    made = Desk()
    DispatchPolicy.objects.create(
        organization=made.organization, quiet_for="normal", quiet_from=time(22), quiet_until=time(7)
    )
    travel_to(at(PHOENIX, 2027, 3, 3, 3))
    return made


def moves_on(job: Job) -> Job:
    """The timer of the job's step."""
    job.refresh_from_db()
    services.expire_offer(job.pk, job.step_token, place=False)
    job.refresh_from_db()
    return job


def test_normal_job_waits_until_the_end_of_quiet_hours(desk):
    job = desk.job()
    assert (job.status, job.waiting_for) == ("dispatching", "quiet_hours")
    assert job.next_action_at == at(PHOENIX, 2027, 3, 3, 7)
    assert not Offer.objects.exists()
    said = [entry.text for entry in timeline.load_timeline(job)]
    assert "Dispatch is waiting until 7:00, when the quiet hours end" in said
    moves_on(job)
    assert job.waiting_for == "quiet_hours", "woken too early"
    travel_to(at(PHOENIX, 2027, 3, 3, 7))
    moves_on(job)
    assert Offer.objects.get().technician == desk.ann


def test_who_comes_on_duty_in_the_morning_is_ranked_then(desk):
    Technician.objects.update(on_duty=False)
    job = desk.job()
    assert job.waiting_for == "quiet_hours", "nobody near is no reason to wake a dispatcher"
    Technician.objects.update(on_duty=True)
    travel_to(at(PHOENIX, 2027, 3, 3, 7))
    moves_on(job)
    assert Offer.objects.get().technician == desk.ann


def test_nobody_in_the_morning_is_pending_then(desk):
    Technician.objects.update(on_duty=False)
    job = desk.job()
    travel_to(at(PHOENIX, 2027, 3, 3, 7))
    moves_on(job)
    assert (job.status, job.pending_reason) == ("pending", "nobody_near")


@pytest.mark.parametrize("priority", [1, 2])
def test_emergency_and_urgent_ring_at_night(desk, priority):
    desk.job(priority=priority)
    assert Offer.objects.get().technician == desk.ann


def test_running_cascade_stops_at_the_beginning_of_quiet_hours(desk):
    travel_to(at(PHOENIX, 2027, 3, 3, 21, 59))
    factories.technician(desk.organization, "Bob")
    job = desk.job()
    assert Offer.objects.get().status == "pending"
    clock.travel(600)
    moves_on(job)
    assert (job.waiting_for, Offer.objects.count()) == ("quiet_hours", 1)
    assert job.next_action_at == at(PHOENIX, 2027, 3, 4, 7)
    travel_to(at(PHOENIX, 2027, 3, 4, 7))
    moves_on(job)
    assert [offer.technician.name for offer in Offer.objects.order_by("pk")] == ["Ann", "Bob"]


def test_dispatcher_calls_now(desk):
    job = desk.job()
    body = desk.api.get(f"jobs/{job.pk}/").json()
    assert (body["waiting_for"], body["next_action_at"]) == ("quiet_hours", "2027-03-03T14:00:00Z")
    assert "call_next" in body["actions"]
    answer = desk.api.post(f"jobs/{job.pk}/call-next/", {"version": job.version})
    assert answer.status_code == 200, answer.content
    job.refresh_from_db()
    services.offer_next(job.pk, job.step_token, place=False)
    assert Offer.objects.get().technician == desk.ann
    said = [entry.text for entry in timeline.load_timeline(job)]
    assert "Maria Lopez called technicians now, despite quiet hours" in said


def test_dispatch_again_by_a_person_calls_at_night(desk):
    job = desk.job()
    services.cancel(job.pk, "a mistake", actor=MARIA)
    services.dispatch_again(job.pk, actor=MARIA)
    job.refresh_from_db()
    services.offer_next(job.pk, job.step_token, place=False)
    assert Offer.objects.get().technician == desk.ann


def test_job_given_back_at_night_waits_for_the_end_of_quiet_hours(desk):
    factories.technician(desk.organization, "Bob")
    job = desk.assigned()
    services.cannot_make_it(job.pk, actor=MARIA)
    job.refresh_from_db()
    assert (job.status, job.waiting_for) == ("dispatching", "quiet_hours")
    assert job.next_action_at == at(PHOENIX, 2027, 3, 3, 7)
    travel_to(at(PHOENIX, 2027, 3, 3, 7))
    moves_on(job)
    assert Offer.objects.get(status="pending").technician.name == "Bob"


@pytest.mark.parametrize(
    ("hour", "says"),
    [
        (3, "Removes Ann from this job. Technicians are called from 7:00, when quiet hours end."),
        (12, "Removes Ann from this job and calls the technicians available now."),
    ],
)
def test_confirmation_says_when_technicians_are_called(desk, hour, says):
    job = desk.assigned()
    travel_to(at(PHOENIX, 2027, 3, 4, hour))
    client = Client()
    client.force_login(desk.maria, backend="django.contrib.auth.backends.ModelBackend")
    page = client.get(reverse("console:act", args=[job.pk, "cannot-make-it"])).content.decode()
    assert says in page


def test_changed_quiet_hours_apply_to_waiting_jobs(desk):
    job = desk.job()
    api = Api(user=factories.admin(desk.organization))
    policy = DispatchPolicy.objects.get()
    answer = api.patch(f"policies/{policy.pk}/", {"quiet_for": "off"})
    assert answer.status_code == 200, answer.content
    assert answer.json()["effective"]["quiet_for"] == "off"
    job.refresh_from_db()
    assert job.next_action_at <= clock.now()
    moves_on(job)
    assert Offer.objects.exists()


def test_removed_quiet_hours_apply_to_waiting_jobs(desk):
    job = desk.job()
    api = Api(user=factories.admin(desk.organization))
    assert api.delete(f"policies/{DispatchPolicy.objects.get().pk}/").status_code == 204
    job.refresh_from_db()
    assert job.next_action_at <= clock.now()
    moves_on(job)
    assert Offer.objects.exists()


@pytest.mark.parametrize("given", [{"quiet_until": "05:00"}, {"quiet_from": "01:00", "quiet_until": "05:00"}])
def test_changed_times_of_quiet_hours_apply_to_waiting_jobs(desk, given):
    job = desk.job()
    api = Api(user=factories.admin(desk.organization))
    answer = api.patch(f"policies/{DispatchPolicy.objects.get().pk}/", given)
    assert answer.status_code == 200, answer.content
    job.refresh_from_db()
    assert job.next_action_at <= clock.now()
    moves_on(job)
    assert (job.waiting_for, job.next_action_at) == ("quiet_hours", at(PHOENIX, 2027, 3, 3, 5))


def change_time_zone_with_the_api(desk: Desk, zone: str) -> None:
    answer = Api(user=factories.admin(desk.organization)).patch("organization/", {"time_zone": zone})
    assert answer.status_code == 200, answer.content


def change_time_zone_in_the_admin(desk: Desk, zone: str) -> None:
    client = Client()
    client.force_login(factories.admin(desk.organization), backend="django.contrib.auth.backends.ModelBackend")
    address = reverse("admin:accounts_organization_change", args=[desk.organization.pk])
    fields = {
        "name": "Copper",
        "default_region": "US",
        "distance_unit": "mi",
        "allowed_countries": "US",
        "language": "en",
        "voice": "Polly.Joanna-Neural",
    }
    assert client.post(address, {**fields, "time_zone": zone}).status_code == 302


@pytest.mark.parametrize("change", [change_time_zone_with_the_api, change_time_zone_in_the_admin])
def test_changed_time_zone_applies_to_waiting_jobs(desk, change):
    job = desk.job()
    elsewhere = Desk()
    DispatchPolicy.objects.create(
        organization=elsewhere.organization, quiet_for="normal", quiet_from=time(22), quiet_until=time(7)
    )
    other = elsewhere.job()
    assert other.waiting_for == "quiet_hours"
    others = (other.step_token, other.next_action_at)
    change(desk, "America/Chicago")
    job.refresh_from_db()
    assert job.next_action_at <= clock.now()
    moves_on(job)
    assert job.next_action_at == at("America/Chicago", 2027, 3, 3, 7), "an hour earlier than in Phoenix"
    other.refresh_from_db()
    assert (other.step_token, other.next_action_at) == others
    change(desk, "Europe/London")
    moves_on(job)
    assert Offer.objects.get(job=job).technician == desk.ann, "it is 10:00 there"


def test_job_that_waits_keeps_its_time_when_other_settings_change(desk):
    job = desk.job()
    answer = Api(user=factories.admin(desk.organization)).patch(
        "organization/", {"distance_unit": "km", "time_zone": PHOENIX}
    )
    assert answer.status_code == 200, answer.content
    job.refresh_from_db()
    assert job.next_action_at == at(PHOENIX, 2027, 3, 3, 7)


@pytest.mark.parametrize(
    ("given", "field"),
    [({"quiet_from": "07:00", "quiet_until": "07:00"}, "quiet_until"), ({"quiet_for": "x"}, "quiet_for")],
)
def test_contradictions_are_refused(desk, given, field):
    api = Api(user=factories.admin(desk.organization))
    answer = api.patch(f"policies/{DispatchPolicy.objects.get().pk}/", given)
    assert answer.status_code == 400
    assert answer.json()["errors"][0]["field"] == field


ZONES = [
    "America/Phoenix", "America/New_York", "America/St_Johns", "America/Santiago", "America/Havana",
    "Australia/Lord_Howe", "Africa/Cairo", "Asia/Kathmandu", "Pacific/Chatham", "Europe/London",
]  # fmt: skip
_HALF_HOURS = [time(hour, minute) for hour in range(24) for minute in (0, 30)]


def transitions_of(zone: str) -> list[datetime]:
    """The changes of the clocks in a year, to the hour."""
    hours = [datetime(2026, 1, 1, tzinfo=UTC) + timedelta(hours=hour) for hour in range(365 * 24)]
    offsets = [hour.astimezone(ZoneInfo(zone)).utcoffset() for hour in hours]
    return [after for after, (one, two) in zip(hours[1:], pairwise(offsets), strict=True) if one != two]


@pytest.mark.parametrize("zone", ZONES)
def test_quiet_hours_end_at_the_right_minute_around_clock_changes(zone):
    chance = random.Random(zone)
    for change in [*transitions_of(zone), datetime(2026, 6, 1, tzinfo=UTC)]:
        for _ in range(25):
            quiet = QuietHours("normal", chance.choice(_HALF_HOURS), chance.choice(_HALF_HOURS))
            now = change + timedelta(minutes=chance.randint(-26 * 60, 4 * 60))
            minute = now
            while quiet._contains(minute, zone):
                minute += timedelta(minutes=1)
            expected = None if minute == now else minute
            assert quiet.end_for(3, now, zone) == expected, (quiet, now, zone)
