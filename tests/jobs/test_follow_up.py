"""Completed jobs can be reopened; paused jobs and jobs that were not started have clocks."""

from __future__ import annotations

import pytest
import requests
from django.test import Client
from django.urls import reverse

from dispatch.core import clock
from dispatch.core.models import Event
from dispatch.jobs import services, signed_links
from dispatch.jobs.models import Job, TechnicianNotice
from dispatch.jobs.services import IllegalTransition
from dispatch.technicians.models import Technician
from notifications import rules as notification_rules
from tests.harness.jobs import JOHN, MARIA
from tests.jobs.test_actions import assigned_to
from tests.support import factories
from tests.support.waiting import PATIENCE


def reminders(job: Job) -> list[str]:
    kinds = ("job.pause_overdue", "job.not_started", "job.not_completed")
    return list(
        Event.objects.filter(kind__in=kinds, subject_id=job.pk).order_by("id").values_list("kind", flat=True)
    )


def later(seconds: float) -> None:
    clock.travel(seconds)
    services.remind_due_jobs()


def test_reopened_job_belongs_to_its_technician_again(floor):
    (ann,) = floor.crew("Ann")
    job = assigned_to(floor, ann)
    with pytest.raises(IllegalTransition):
        services.reopen(job.pk, actor=MARIA)
    services.complete(job.pk, actor=JOHN)
    services.reopen(job.pk, actor=MARIA, note="wrong tap")
    now = floor.job(job)
    assert (now.status, now.technician, now.ended_at) == ("assigned", ann, None)
    assert Technician.objects.get(pk=ann.pk).open_jobs == 1
    assert TechnicianNotice.objects.get().news == "reopened"
    assert "job.reopened" in floor.kinds(job)
    services.complete(job.pk, actor=MARIA)
    assert Technician.objects.get(pk=ann.pk).open_jobs == 0


@pytest.mark.parametrize(("hours", "is_on_the_way"), [(0.1, True), (26, False)])
def test_trip_of_a_reopened_job_is_kept_until_its_arrival(floor, hours, is_on_the_way):
    (ann,) = floor.crew("Ann")
    job = assigned_to(floor, ann)
    services.report_on_the_way(job.pk, actor=JOHN, eta_minutes=20)
    services.complete(job.pk, actor=JOHN)
    clock.travel(hours * 3600)
    services.reopen(job.pk, actor=MARIA)
    now = floor.job(job)
    assert (now.on_the_way_at is not None, now.eta_at is not None) == (is_on_the_way, is_on_the_way)


def test_board_reopens_a_completed_job(floor):
    (ann,) = floor.crew("Ann")
    job = assigned_to(floor, ann)
    services.complete(job.pk, actor=MARIA)
    client = Client()
    user = factories.dispatcher(floor.organization)
    client.force_login(user, backend="django.contrib.auth.backends.ModelBackend")
    address = reverse("console:act", args=[job.pk, "reopen"])
    assert "Undoes the completion" in client.get(address).content.decode()
    client.post(address, {"version": floor.job(job).version, "note": ""})
    assert floor.status(job) == "assigned"


def test_paused_job_alerts_once_after_its_time(floor):
    (ann,) = floor.crew("Ann")
    job = floor.started()
    floor.rings(ann)
    services.pause(job.pk, actor=MARIA)
    later(3500)
    assert reminders(job) == []
    later(200)
    later(4000)
    assert reminders(job) == ["job.pause_overdue"]
    event = Event.objects.get(kind="job.pause_overdue")
    rule = notification_rules.BY_KIND["job.pause_overdue"]
    assert notification_rules.message_of(rule, {"id": job.pk, **event.data}).title == (
        f"Job {job.pk} has been paused for 61 minutes"
    )
    services.resume(job.pk, actor=MARIA)
    services.pause(job.pk, actor=MARIA)
    later(3700)
    assert reminders(job) == ["job.pause_overdue"] * 2


def test_pause_without_a_limit_reminds_nobody(floor):
    floor.set_policy(pause_reminder_s=0)
    (ann,) = floor.crew("Ann")
    job = floor.started()
    floor.rings(ann)
    services.pause(job.pk, actor=MARIA)
    later(100_000)
    assert reminders(job) == []


def test_resumed_job_is_not_reminded_of(floor):
    (ann,) = floor.crew("Ann")
    job = floor.started()
    floor.rings(ann)
    services.pause(job.pk, actor=MARIA)
    services.resume(job.pk, actor=MARIA)
    assert floor.job(job).attention_at is None


def test_assigned_job_that_is_not_started_needs_attention(floor):
    floor.set_policy(start_within_s=7200)
    (ann,) = floor.crew("Ann")
    job = assigned_to(floor, ann)
    later(7000)
    assert not Job.objects.needing_attention().exists()
    later(300)
    later(300)
    assert reminders(job) == ["job.not_started"]
    assert list(Job.objects.needing_attention()) == [job]
    services.mark_started(job.pk, actor=MARIA)
    assert not Job.objects.needing_attention().exists()
    with pytest.raises(IllegalTransition, match="already been started"):
        services.mark_started(job.pk, actor=MARIA)


def test_started_job_that_is_not_completed_needs_attention(floor):
    floor.set_policy(finish_within_s=7200)
    (ann,) = floor.crew("Ann")
    job = assigned_to(floor, ann)
    later(8000)
    assert reminders(job) == [], "it has not begun"
    services.mark_started(job.pk, actor=MARIA)
    later(7000)
    assert not Job.objects.needing_attention().exists()
    later(300)
    later(300)
    assert reminders(job) == ["job.not_completed"]
    assert list(Job.objects.needing_attention()) == [job]
    event = Event.objects.get(kind="job.not_completed")
    rule = notification_rules.BY_KIND["job.not_completed"]
    assert notification_rules.message_of(rule, {"id": job.pk, **event.data}).title == (
        f"Job {job.pk}: Ann started 121 minutes ago and has not completed it"
    )
    services.complete(job.pk, actor=MARIA)
    assert not Job.objects.needing_attention().exists()
    services.reopen(job.pk, actor=MARIA)
    assert floor.job(job).attention_at > clock.now()


def test_assigned_job_without_a_target_has_no_clock(floor):
    (ann,) = floor.crew("Ann")
    job = assigned_to(floor, ann)
    assert floor.job(job).attention_at is None


def test_technician_starts_the_job_on_their_page(floor):
    floor.set_policy(start_within_s=7200)
    (ann,) = floor.crew("Ann")
    job = assigned_to(floor, ann)
    url = signed_links.technician_url(Technician.objects.get(pk=ann.pk))
    said = requests.post(url, data={"do": "start", "job": job.pk}, timeout=PATIENCE).text
    assert "The job is marked as started" in said
    assert "Started at" in said
    now = floor.job(job)
    assert now.started_at is not None
    assert now.attention_at is None


def test_job_given_to_another_technician_starts_a_new_clock(floor):
    floor.set_policy(start_within_s=7200)
    ann, bob = floor.crew("Ann", "Bob")
    job = assigned_to(floor, ann)
    services.mark_started(job.pk, actor=MARIA)
    services.assign(job.pk, bob.pk, actor=MARIA)
    now = floor.job(job)
    assert now.started_at is None
    assert now.attention_at > clock.now()
