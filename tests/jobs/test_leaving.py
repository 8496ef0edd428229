"""An organization that is switched off calls nobody; the jobs of a technician who leaves are never left alone."""

from __future__ import annotations

import pytest
from django.test import Client
from django.urls import reverse

from accounts.models import Organization
from dispatch.capacity.models import OutboundNumber
from dispatch.core import clock
from dispatch.jobs import services
from dispatch.jobs.models import Job
from dispatch.jobs.services import actions
from dispatch.technicians import services as technicians
from dispatch.technicians.models import Technician
from dispatch.telephony import loops
from dispatch.telephony.models import Call, Text
from tests.api.client import Api
from tests.harness.jobs import MARIA, Floor
from tests.jobs.test_actions import assigned_to
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
    form = {
        "name": "Bob", "phone": str(bob.phone), "on_duty": "on", "lat": bob.lat, "lng": bob.lng,
        "max_open_jobs": bob.max_open_jobs, "time_zone": "", "radius_m": "",
        "shifts-TOTAL_FORMS": 0, "shifts-INITIAL_FORMS": 0,
    }  # fmt: skip
    page = client.post(address, form)
    assert "Bob has 1 open job" in page.content.decode()
    saved = client.post(address, {**form, "open_jobs_then": "give_back"})
    assert saved.status_code == 302, saved.content.decode()[:3000]
    assert Technician.objects.get(pk=bob.pk).open_jobs == 0


def test_offer_to_a_technician_who_leaves_is_withdrawn(floor):
    ann, bob = floor.crew("Ann", "Bob")
    job = floor.started()
    call = floor.rings(ann)
    leave(ann, "")
    call.ended("canceled")
    floor.rings(bob)
    assert floor.offers(job) == [("Ann", "skipped"), ("Bob", "pending")]


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
