"""A customer who moves a request again and again: technicians are called twice, then a dispatcher decides."""

from __future__ import annotations

import re
from datetime import datetime, time, timedelta
from zoneinfo import ZoneInfo

import pytest

from dispatch.core import clock
from dispatch.core.models import Event
from dispatch.jobs import services
from dispatch.jobs.models import DispatchPolicy, Job, Offer
from notifications.models import Alert
from tests.harness.customer_texts import ALL, Shop, story
from tests.harness.jobs import MARIA
from tests.jobs.test_customer_page import Page, correction
from tests.support import factories

pytestmark = pytest.mark.django_db

PLACES = [factories.TEMPE.address, factories.PHOENIX.address]


@pytest.fixture
def shop() -> Shop:
    return Shop(**ALL)


def move(job: Job, times: int) -> str:
    """Let the customer move the request, and the cascade call after each move. Return what the page says."""
    for n in range(times):
        page = Page(job)
        now = page.now()
        done = correction(page, address=next(place for place in PLACES if place != now.address))
        assert done.status_code == 303, n
        now = page.now()
        if now.status == "dispatching":
            services.offer_next(now.pk, now.step_token, place=False)
    return page.browser.get(done["Location"]).content.decode()


def calls(job: Job) -> int:
    return Offer.objects.filter(job=job).count()


def test_two_moves_call_technicians_again_and_the_third_asks_a_dispatcher(shop):
    job = shop.job()
    assert "No technician is called until then" not in move(job, 2)
    before = calls(job)
    assert Offer.objects.filter(job=job, status="pending").exists()
    said = move(job, 1)
    now = Job.objects.get(pk=job.pk)
    assert (now.status, now.pending_reason) == ("pending", "moved_often")
    assert now.address == PLACES[0], "the address is what the customer said last"
    assert calls(job) == before
    assert not Offer.objects.filter(job=job, status="pending").exists(), "nobody goes to the former address"
    assert "so a dispatcher will check it and call you" in said.replace("&#x27;", "'")
    assert "A dispatcher is handling your request" in said
    shop.notified("job.pending")
    assert (
        Alert.objects.get(kind="job.pending").title
        == f"Job {job.pk} needs a dispatcher: Address changed repeatedly"
    )
    assert "Dispatch handed the job to dispatchers: Address changed repeatedly" in story(job)


def test_late_yes_to_the_former_address_does_not_take_the_job(shop):
    job = shop.job()
    offer = Offer.objects.get(job=job)
    move(job, 3)
    answer = services.answer_offer(offer.pk, None, "1", by=services.AnswerChannel.TEXT)
    assert answer is services.Answer.NO_LONGER
    assert Job.objects.get(pk=job.pk).status == "pending"


def test_dispatcher_sees_who_is_near_the_last_address(shop):
    job = shop.job()
    move(job, 3)
    near = {row.technician.name: row.distance_m for row in job.candidates.all()}
    assert set(near) == {"Ann Lee", "Bob Marsh"}
    Job.objects.filter(pk=job.pk).update(lat=None, lng=None)
    services.dispatch_again(job.pk, actor=MARIA)
    again = {row.technician.name: row.distance_m for row in job.candidates.all()}
    assert near == again, "the distances are those from the last address"


def test_moves_after_the_decision_ask_the_dispatcher_again(shop):
    job = shop.job()
    move(job, 3)
    services.dispatch_again(job.pk, actor=MARIA)
    assert Job.objects.get(pk=job.pk).status == "dispatching"
    move(job, 1)
    assert Job.objects.get(pk=job.pk).pending_reason == "moved_often"


def test_moves_of_an_hour_ago_do_not_count(shop):
    job = shop.job()
    move(job, 2)
    clock.travel(3601)
    move(job, 2)
    assert Job.objects.get(pk=job.pk).status == "dispatching"


def test_dispatchers_and_corrected_phones_do_not_count(shop):
    job = shop.job()
    for address in PLACES * 2:
        services.correct(job.pk, actor=MARIA, correction=services.Correction(address=address))
    for n in range(3):
        assert correction(Page(job), phone=f"602-555-019{n}").status_code == 303
    move(job, 2)
    assert Job.objects.get(pk=job.pk).status == "dispatching"


@pytest.mark.parametrize(
    "spelling", ["200 W Washington St\nPhoenix, AZ 85003", "200 W  Washington St, Phoenix, AZ 85003"]
)
def test_phone_only_does_not_move_a_request_with_an_address_of_two_lines(shop, spelling):
    job = shop.job(address=spelling, lat=33.45, lng=-112.07)
    offer = Offer.objects.get(job=job)
    page = Page(job)
    entered = spelling.replace("\n", "\r\n")  # as browsers send it
    assert correction(page, address=entered, phone="602-555-0199").status_code == 303
    now = page.now()
    assert (now.address, now.lat, now.lng, now.position_source) == (spelling, 33.45, -112.07, "form")
    assert Offer.objects.get(job=job, status="pending") == offer
    assert Event.objects.get(kind="job.corrected").data["changed"] == ["phone"]


def test_customer_without_an_address_corrects_only_the_phone(shop):
    page = Page(shop.job(address="", lat=33.45, lng=-112.07))
    assert correction(page, phone="602-555-0199").status_code == 303
    now = page.now()
    assert (str(now.customer_phone), now.address, now.lat, now.lng) == ("+16025550199", "", 33.45, -112.07)
    page = Page(now)
    assert "Change the address or the phone number." in correction(page).content.decode()
    assert correction(page, address=factories.TEMPE.address).status_code == 303
    assert page.now().address == factories.TEMPE.address


def test_phone_of_an_old_page_keeps_the_address_that_a_dispatcher_corrected(shop):
    job = shop.job()
    page = Page(job)
    (shown,) = re.findall(r'name="shown_address" value="([^"]*)"', page.says())
    services.correct(job.pk, correction=services.Correction(address=factories.TEMPE.address), actor=MARIA)
    assert correction(page, address=shown, shown_address=shown, phone="602-555-0199").status_code == 303
    assert (page.now().address, str(page.now().customer_phone)) == (factories.TEMPE.address, "+16025550199")


def test_limit_is_a_setting(shop, settings):
    settings.CUSTOMER_MOVE_RATE = "1/hour"
    job = shop.job()
    move(job, 2)
    assert Job.objects.get(pk=job.pk).pending_reason == "moved_often"


def test_request_that_waits_for_quiet_hours_may_be_moved(shop):
    zone = ZoneInfo(shop.organization.time_zone)
    local = clock.now().astimezone(zone)
    night = datetime(local.year, local.month, local.day, 23, tzinfo=zone) + timedelta(days=1)
    clock.travel((night - clock.now()).total_seconds())
    DispatchPolicy.objects.create(
        organization=shop.organization, quiet_for="normal", quiet_from=time(22), quiet_until=time(7)
    )
    job = shop.job()
    assert job.waiting_for == "quiet_hours"
    move(job, 4)
    now = Job.objects.get(pk=job.pk)
    assert (now.status, now.waiting_for, calls(job)) == ("dispatching", "quiet_hours", 0)


def test_assigned_technician_is_informed_of_every_move(shop):
    job = shop.assign(shop.job())
    move(job, 3)
    now = Job.objects.get(pk=job.pk)
    assert (now.status, now.technician, now.address) == ("assigned", shop.ann, PLACES[0])
    assert Event.objects.filter(kind="job.corrected").count() == 3
