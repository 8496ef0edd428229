"""An organization that is switched off calls nobody; the jobs of a technician who leaves are never left alone."""

from __future__ import annotations

from typing import Any

import pytest
from django.db import transaction
from django.test import Client
from django.urls import reverse

from accounts.models import Organization
from dispatch.capacity.models import OutboundNumber
from dispatch.core import clock
from dispatch.core.models import Event
from dispatch.core.runtime.loops import find_loop
from dispatch.jobs import services
from dispatch.jobs.models import Job, Offer
from dispatch.jobs.services import actions
from dispatch.technicians import services as technicians
from dispatch.technicians.models import Technician
from dispatch.telephony import loops
from dispatch.telephony.models import Call, Text
from tests.api.client import Api
from tests.core.threads import Elsewhere
from tests.harness.jobs import MARIA, Floor
from tests.harness.provider import record_only
from tests.jobs.test_actions import assigned_to
from tests.phones import manual
from tests.support import factories


def switch_off(floor: Floor) -> None:
    Organization.objects.filter(pk=floor.organization.pk).update(is_active=False)


def test_organization_switched_off_places_no_call_that_was_waiting(floor):
    (ann,) = floor.crew("Ann")
    job = services.start_job(floor.submit().pk, place=False)
    assert job is not None
    assert Call.objects.get().status == "created"
    switch_off(floor)
    for _ in range(3):
        floor.tick()
    assert floor.calls_made(ann) == 0
    Organization.objects.update(is_active=True)
    floor.tick()
    floor.rings(ann)


def test_organization_switched_off_offers_no_job(floor):
    (ann,) = floor.crew("Ann")
    switch_off(floor)
    job = floor.started()
    assert (floor.job(job).waiting_for, floor.offers(job), floor.calls_made(ann)) == ("line", [], 0)


def test_organization_switched_off_sends_no_text(floor):
    ann, bob = floor.crew("Ann", "Bob")
    OutboundNumber.objects.update(sends_texts=True, texts_per_second=1000)
    job = assigned_to(floor, ann)
    services.assign(job.pk, bob.pk, actor=MARIA)
    switch_off(floor)
    loops.send_due()
    waiting = Text.objects.exclude(status="canceled")
    assert set(waiting.values_list("status", flat=True)) == {"created"}
    Organization.objects.update(is_active=True)
    for _ in range(2):  # the number's pace may hold back the second text for a moment
        clock.travel(3)
        loops.send_due()
    assert not waiting.filter(status="created").exists()


def leave(technician: Technician, choice: str) -> None:
    technicians.change_technician(technician.pk, {"is_active": False}, open_jobs=choice, actor=MARIA)


def test_deactivating_a_technician_with_open_jobs_asks(floor):
    (ann,) = floor.crew("Ann")
    assigned_to(floor, ann)
    with pytest.raises(technicians.OpenJobs, match="Ann has 1 open job"):
        leave(ann, "")
    assert Technician.objects.get(pk=ann.pk).is_active


def test_open_jobs_are_given_back_to_other_technicians(floor):
    ann, bob = floor.crew("Ann", "Bob")
    job = assigned_to(floor, ann)
    leave(ann, "give_back")
    row = Technician.objects.get(pk=ann.pk)
    assert (row.is_active, row.open_jobs) == (False, 0)
    floor.rings(bob)
    assert floor.offers(job)[0] == ("Ann", "cannot_make_it")


def deactivate_in_admin(floor: Floor, technician: Technician) -> Any:
    address = reverse("admin:technicians_technician_change", args=[technician.pk])
    return factories.browser(factories.admin(floor.organization)).post(
        address, {**admin_form(technician), "open_jobs_then": "give_back"}
    )


def deactivate_with_etag(floor: Floor, technician: Technician) -> Any:
    api = Api(user=factories.admin(floor.organization))
    etag = api.get(f"technicians/{technician.pk}/")["ETag"]
    body = {"is_active": False, "when_deactivated": "give_back"}
    return api.patch(f"technicians/{technician.pk}/", body, If_Match=etag)


@pytest.mark.parametrize("deactivate", [deactivate_in_admin, deactivate_with_etag])
def test_technician_completes_a_job_while_all_are_given_back(floor, deactivate):
    ann = floor.technician("Ann", max_open_jobs=2)
    given_back, completed = assigned_to(floor, ann), assigned_to(floor, ann)
    bob = floor.technician("Bob")
    with transaction.atomic():
        Job.objects.select_for_update(no_key=True).get(pk=completed.pk)
        leaving = Elsewhere(lambda: deactivate(floor, ann))
        leaving.wait_for_lock()
        services.complete(completed.pk, actor=MARIA)
    leaving.finish()
    row = Technician.objects.get(pk=ann.pk)
    assert (row.is_active, row.open_jobs, floor.status(completed)) == (False, 0, "completed")
    floor.rings(bob)
    assert floor.offers(given_back)[0] == ("Ann", "cannot_make_it")


def test_kept_job_of_a_technician_who_left_needs_attention(floor):
    (ann,) = floor.crew("Ann")
    job = assigned_to(floor, ann)
    assert not Job.objects.needing_attention().exists()
    leave(ann, "keep")
    assert list(Job.objects.needing_attention()) == [job]
    client = Client()
    user = factories.dispatcher(floor.organization)
    client.force_login(user, backend="django.contrib.auth.backends.ModelBackend")
    assert "Assigned to a technician who left" in client.get(reverse("console:board")).content.decode()


def admin_form(technician: Technician) -> dict[str, Any]:
    """The form of the admin that deactivates the technician, without the choice about open jobs."""
    return {
        "name": technician.name, "phone": str(technician.phone), "on_duty": "on", "lat": technician.lat,
        "lng": technician.lng, "max_open_jobs": technician.max_open_jobs, "time_zone": "", "radius_m": "",
        "shifts-TOTAL_FORMS": 0, "shifts-INITIAL_FORMS": 0,
    }  # fmt: skip


def test_api_and_admin_ask_what_happens_to_open_jobs(floor):
    ann, bob = floor.crew("Ann", "Bob")
    assigned_to(floor, ann)
    assigned_to(floor, bob)
    admin = factories.admin(floor.organization)
    api = Api(user=admin)
    refused = api.patch(f"technicians/{ann.pk}/", {"is_active": False})
    assert (refused.status_code, refused.json()["type"]) == (409, "urn:dispatch:problem:open_jobs")
    kept = api.patch(f"technicians/{ann.pk}/", {"is_active": False, "when_deactivated": "keep"})
    assert (kept.status_code, kept.json()["is_active"], kept.json()["open_jobs"]) == (200, False, 1)

    client = Client()
    client.force_login(admin, backend="django.contrib.auth.backends.ModelBackend")
    address = reverse("admin:technicians_technician_change", args=[bob.pk])
    form = admin_form(bob)
    page = client.post(address, form)
    assert "Bob has 1 open job" in page.content.decode()
    saved = client.post(address, {**form, "open_jobs_then": "give_back"})
    assert saved.status_code == 302, saved.content.decode()[:3000]
    assert Technician.objects.get(pk=bob.pk).open_jobs == 0


# --- while an offer rings


def test_offer_of_a_deactivated_technician_is_withdrawn_at_once(floor):
    ann, bob = floor.crew("Ann", "Bob")
    job = floor.started()
    call = floor.rings(ann)
    leave(ann, "")
    assert floor.offers(job) == [("Ann", "deactivated")]
    call.ended("canceled")
    floor.rings(bob)
    offer = Offer.objects.get(technician=ann)
    assert (offer.status, offer.reason) == ("rescinded", "Ann was deactivated")
    assert Event.objects.get(kind="offer.rescinded").actor_label == "Maria Lopez"
    row = Technician.objects.get(pk=ann.pk)
    assert (row.is_active, row.live_offer_id, row.misses_in_a_row) == (False, None, 0)


def has_a_job(floor: Floor, technician: Technician) -> None:
    """The technician has a job, and from now on answers only when the test says so."""
    assigned_to(floor, technician)
    floor.phone(technician).rings()
    floor.phone(technician).will(manual())


def test_offer_in_progress_is_withdrawn_whatever_happens_to_the_open_jobs(floor):
    floor.set_policy(rounds=1)
    ann = floor.technician("Ann", max_open_jobs=2)
    for choice in ("keep", "give_back"):
        Technician.objects.update(is_active=True)
        has_a_job(floor, ann)
        job = floor.started()
        call = floor.rings(ann).answer().hears("press 1")
        leave(ann, choice)
        assert floor.offers(job) == [("Ann", "deactivated")]
        call.ended("completed")
        floor.until(lambda job=job: floor.status(job) == "pending")
        for open_job in Job.objects.exclude(status__in=("completed", "cancelled")):
            services.cancel(open_job.pk, "tidy up", actor=MARIA)


def test_refused_deactivation_leaves_the_offer_ringing(floor):
    ann = floor.technician("Ann", max_open_jobs=2)
    has_a_job(floor, ann)
    job = floor.started()
    call = floor.rings(ann)
    with pytest.raises(technicians.OpenJobs):
        leave(ann, "")
    assert floor.offers(job) == [("Ann", "pending")]
    call.answer().press("1").hears("the job is yours")


def pressed_but_not_applied(floor: Floor, technician: Technician) -> Job:
    """A job whose offer's key 1 is stored, and whose process died before it acted on the key."""
    job = floor.started()
    floor.rings(technician).answer().hears("press 1")
    call = Call.objects.get(purpose="offer", subject_id=floor.live_offer(job).pk)
    record_only(floor.sim, call, "1")
    return job


def test_key_pressed_before_the_deactivation_counts(floor):
    (ann,) = floor.crew("Ann")
    job = pressed_but_not_applied(floor, ann)
    with pytest.raises(technicians.OpenJobs, match="Ann has 1 open job"):
        leave(ann, "")
    assert floor.offers(job) == [("Ann", "accepted")]
    leave(ann, "keep")
    assert (floor.job(job).technician, floor.status(job)) == (ann, "assigned")


def test_job_taken_by_that_key_is_given_back_if_asked_for(floor):
    ann, bob = floor.crew("Ann", "Bob")
    job = pressed_but_not_applied(floor, ann)
    leave(ann, "give_back")
    floor.rings(bob)
    assert floor.kinds(job).count("job.assigned") == 1
    assert floor.offers(job) == [("Ann", "cannot_make_it"), ("Bob", "pending")]


def test_loop_withdraws_offers_of_technicians_deactivated_otherwise(floor):
    """As after a process that died between the deactivation and the withdrawal."""
    ann, bob = floor.crew("Ann", "Bob")
    job = floor.started()
    call = floor.rings(ann)
    Technician.objects.filter(pk=ann.pk).update(is_active=False)
    find_loop("jobs_waiting").step()
    call.ended("canceled")
    floor.rings(bob)
    assert floor.offers(job) == [("Ann", "deactivated"), ("Bob", "pending")]


def test_organization_switched_off_stops_ringing_within_a_second(floor):
    ann, bob = floor.crew("Ann", "Bob")
    job = floor.started()
    call = floor.rings(ann)
    switch_off(floor)
    waiting = find_loop("jobs_waiting")
    assert waiting.interval_s <= 1.0
    waiting.step()
    call.ended("canceled")
    floor.work()
    floor.tick()
    assert floor.offers(job) == [("Ann", "deactivated")]
    assert Offer.objects.get().reason == "the organization was deactivated"
    assert (floor.job(job).waiting_for, floor.calls_made(bob)) == ("line", 0)
    Organization.objects.update(is_active=True)
    clock.travel(15)  # the longest pause of a job that waits for a line
    floor.tick()
    floor.rings(ann)


def test_key_pressed_before_the_organization_was_switched_off_counts(floor):
    (ann,) = floor.crew("Ann")
    job = pressed_but_not_applied(floor, ann)
    switch_off(floor)
    find_loop("jobs_waiting").step()
    assert (floor.job(job).technician, floor.status(job)) == (ann, "assigned")


def test_key_of_a_technician_who_left_takes_no_job(floor):
    (ann,) = floor.crew("Ann")
    job = floor.started()
    floor.rings(ann)
    Technician.objects.filter(pk=ann.pk).update(is_active=False)  # and the process died
    offer = floor.live_offer(job)
    call = Call.objects.get(subject_id=offer.pk)
    assert services.answer_offer(offer.pk, call.pk, "1") is services.Answer.NO_LONGER
    floor.later(301)
    floor.until(lambda: floor.status(job) == "pending")


def test_job_reassigned_while_its_technician_leaves_stays_with_the_other(floor, monkeypatch):
    ann, bob = floor.crew("Ann", "Bob")
    job = assigned_to(floor, ann)
    real = actions.locked_for_action

    def after_a_reassignment(*args):
        monkeypatch.setattr(actions, "locked_for_action", real)
        services.assign(job.pk, bob.pk, actor=MARIA)
        return real(*args)

    monkeypatch.setattr(actions, "locked_for_action", after_a_reassignment)
    leave(ann, "give_back")
    assert (floor.status(job), floor.job(job).technician) == ("assigned", bob)
    assert floor.job(job).not_again == []
