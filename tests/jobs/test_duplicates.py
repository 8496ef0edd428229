"""Probable duplicates: flagged before two technicians are sent, merged or dismissed by a dispatcher."""

from __future__ import annotations

import html
import threading

import pytest
from django.db import transaction
from django.urls import reverse

from dispatch.core import clock
from dispatch.core.api.problems import Conflict
from dispatch.core.events import Actor
from dispatch.jobs import services, timeline
from dispatch.jobs.models import DispatchPolicy, Job, Offer
from dispatch.jobs.public.status import describe_status
from dispatch.jobs.rules.duplicates import address_key
from notifications.models import Notification
from tests.core.threads import Elsewhere
from tests.harness.customer_texts import Shop, texts
from tests.harness.jobs import Floor
from tests.jobs.test_threads import MARIA, Desk
from tests.support import factories

PHONE, OTHER_PHONE = "+16025550123", "+16025550199"
TEMPE = factories.TEMPE.address
NOOR = Actor("user", 8, "Noor")


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("200 W Washington St, Phoenix, AZ 85003", "200 West Washington Street, Phoenix 85003", True),
        ("200 W. Washington St., Phoenix, AZ 85003-1234", "200 w washington st phoenix az 85003", True),
        ("12 Cañon Road, Tempe", "12 Canon Rd, Tempe", True),
        ("200 W Washington St Apt 4, Phoenix", "200 W Washington St Apt 5, Phoenix", False),
        ("200 W Washington St, Phoenix", "202 W Washington St, Phoenix", False),
    ],
)
def test_same_address_in_different_spellings(one, other, same):
    assert (address_key(one) == address_key(other)) == same
    assert address_key(one)


@pytest.mark.parametrize("vague", ["", "Phoenix", "85003", "AZ 85003", "Phoenix, AZ 85003", "85003-1234"])
def test_address_without_a_house_has_no_key(vague):
    assert address_key(vague) == ""


@pytest.fixture
def desk(db) -> Desk:
    return Desk()


@pytest.mark.parametrize(
    ("fields", "flagged"),
    [
        ({"customer_phone": PHONE, "address": TEMPE}, True),
        ({"customer_phone": OTHER_PHONE}, True),
        ({"customer_phone": OTHER_PHONE, "address": "200 West Washington Street, Phoenix 85003"}, True),
        ({"customer_phone": OTHER_PHONE, "address": TEMPE}, False),
    ],
)
def test_same_phone_or_address_is_flagged_and_the_cascade_goes_on(desk, fields, flagged):
    factories.technician(desk.organization, "Bob")
    first = desk.job()
    second = desk.job(**fields)
    assert (second.duplicate_of, second.duplicate_state) == ((first, "possible") if flagged else (None, ""))
    assert Offer.objects.filter(job=second, status="pending").exists(), "it is not held back"
    body = desk.api.get(f"jobs/{second.pk}/").json()
    assert (body["duplicate_of"], body["duplicate_state"]) == ((first.pk, "possible") if flagged else (None, ""))
    assert ("merge_duplicate" in body["actions"]) == flagged
    desk.notify()
    told = Notification.objects.filter(kind="job.possible_duplicate")
    assert [row.title for row in told] == (
        [f"Job {second.pk} may be a duplicate of job {first.pk}"] if flagged else []
    )


def test_corrected_address_is_compared_with_later_jobs(desk):
    first = desk.assigned()
    services.correct(first.pk, actor=MARIA, correction=services.Correction(address=TEMPE, lat=33.4, lng=-111.9))
    assert desk.job(customer_phone=OTHER_PHONE, address=TEMPE).duplicate_of == first
    assert desk.job(customer_phone="+16025550177").duplicate_of is None, "nobody is at the old address"


def test_old_ended_and_foreign_jobs_are_no_duplicates(desk):
    ended = desk.job()
    services.cancel(ended.pk, "done otherwise", actor=MARIA)
    assert desk.job().duplicate_state == ""
    clock.travel(24 * 3600 + 1)
    third = desk.job()
    assert third.duplicate_state == ""
    other = Desk()
    assert other.job().duplicate_state == ""


def test_hours_are_a_policy_and_zero_is_off(desk):
    policy = DispatchPolicy.objects.create(organization=desk.organization, duplicate_hours=2)
    desk.job()
    clock.travel(3 * 3600)
    assert desk.job().duplicate_state == ""
    assert desk.job().duplicate_state == "possible"
    policy.duplicate_hours = 0
    policy.save()
    assert desk.job().duplicate_state == ""


def test_merge_cancels_the_job_with_a_link(desk):
    first, second = desk.job(), desk.job(notes="The dog bites.")
    answer = desk.api.post(f"jobs/{second.pk}/merge-duplicate/", {"version": second.version})
    assert answer.status_code == 200, answer.content
    assert (answer.json()["status"], answer.json()["duplicate_state"]) == ("cancelled", "merged")
    second.refresh_from_db()
    assert second.duplicate_of == first
    said = [entry.text for entry in timeline.load_timeline(second)]
    assert f"Maria Lopez canceled the job: duplicate of job {first.pk}" in said
    said = [entry.text for entry in timeline.load_timeline(first)]
    assert f"Maria Lopez merged job {second.pk} into this one (“The dog bites.”)" in said
    assert describe_status(second.submission).title == "We combined this with your other request"
    assert desk.api.post(f"jobs/{second.pk}/merge-duplicate/", {}).status_code == 409


def test_merged_job_that_is_called_again_is_no_longer_merged(db):
    shop = Shop(sends_cancelled=True)
    first, second = shop.job(), shop.job()
    services.merge_duplicate(second.pk, actor=MARIA)
    again = services.dispatch_again(second.pk, actor=MARIA)
    assert (again.duplicate_state, again.duplicate_of, again.is_possible_duplicate) == ("dismissed", first, False)
    second.refresh_from_db()
    assert (second.status, second.duplicate_state) == ("dispatching", "dismissed")
    services.cancel(second.pk, "by the customer", actor=MARIA)
    assert texts(second) == [("cancelled", "created")]
    assert describe_status(Job.objects.get(pk=second.pk).submission).title == "This request was canceled"


def test_dismissed_flag_stays_away(desk):
    first, second = desk.job(), desk.job()
    answer = desk.api.post(f"jobs/{second.pk}/not-a-duplicate/", {})
    assert (answer.json()["duplicate_state"], answer.json()["duplicate_of"]) == ("dismissed", first.pk)
    assert "merge_duplicate" not in answer.json()["actions"]
    with pytest.raises(Conflict):
        services.merge_duplicate(second.pk, actor=MARIA)


def test_flag_ends_with_the_other_job(desk):
    first, second = desk.job(), desk.job()
    services.cancel(first.pk, "a mistake", actor=MARIA)
    assert "merge_duplicate" not in desk.api.get(f"jobs/{second.pk}/").json()["actions"]
    reason = rf"^Job {first.pk} is canceled, so .* no longer flagged as its duplicate\."
    ended = rf"{reason} At [^,]+, Maria Lopez canceled"
    for action in (services.merge_duplicate, services.dismiss_duplicate):
        with pytest.raises(Conflict, match=ended):
            action(second.pk, actor=MARIA)


@pytest.mark.parametrize("where", ["console:act", "admin:jobs_job_act"])
@pytest.mark.parametrize("action", ["merge-duplicate", "not-a-duplicate"])
def test_refusal_names_the_end_of_the_other_job(desk, where, action):
    first, second = desk.assigned(), desk.job()
    services.complete(first.pk, actor=NOOR)
    client = factories.browser(factories.admin(desk.organization))
    answer = client.post(reverse(where, args=[second.pk, action]), {"version": str(second.version)})
    assert answer.status_code == 409
    said = html.unescape(answer.content.decode())
    assert f"Job {first.pk} is completed, so this job is no longer flagged as its duplicate. " in said
    assert ", Noor completed the job.<" in said
    assert "Nothing was changed." in said
    assert "confirm again" not in said


def test_two_submissions_at_once_are_flagged(floor: Floor):
    submissions = [floor.submit(), floor.submit()]
    ready = threading.Barrier(2)

    def start(pk: int) -> None:
        from django.db import connection

        ready.wait()
        services.start_job(pk, place=False)
        connection.close()

    both = [threading.Thread(target=start, args=(one.pk,)) for one in submissions]
    for one in both:
        one.start()
    for one in both:
        one.join()
    assert sorted(Job.objects.values_list("duplicate_state", flat=True)) == ["", "possible"]


def test_job_is_not_merged_into_one_that_is_cancelled_at_the_same_time(floor: Floor):
    first, second = floor.started(), floor.started()
    with transaction.atomic():
        services.cancel(first.pk, "a duplicate", actor=MARIA)
        merge = Elsewhere(lambda: services.merge_duplicate(second.pk, actor=MARIA))
        merge.wait_for_lock()
    with pytest.raises(Conflict):
        merge.finish()
    assert (floor.status(first), floor.status(second)) == ("cancelled", "pending")


def test_other_job_is_not_cancelled_by_a_person_who_did_not_see_the_merge(desk):
    first, second = desk.job(), desk.job()
    seen = first.version
    services.merge_duplicate(second.pk, actor=MARIA)
    with pytest.raises(Conflict, match=f"merged job {second.pk} into this one"):
        services.cancel(first.pk, "a duplicate", actor=MARIA, version=seen)
