"""A dispatcher records that they told a technician whom no text or call reached, which ends the alert."""

from __future__ import annotations

import pytest
from django.core.exceptions import ValidationError
from django.test import Client
from django.urls import reverse

from dispatch.capacity.models import OutboundNumber
from dispatch.core.models import Event
from dispatch.jobs import services, timeline
from dispatch.jobs.models import Job, TechnicianNotice
from dispatch.jobs.services import IllegalTransition
from dispatch.jobs.services.notice_delivery import advance_notice
from dispatch.technicians.models import Technician
from dispatch.telephony.models import Call, Text
from tests.api.client import Api
from tests.harness.jobs import MARIA, Floor
from tests.jobs.test_technician_notices import assigned_to, deliver, notify, open_alerts
from tests.support import factories


@pytest.fixture
def missed(floor: Floor) -> tuple[Job, Technician, Technician]:
    """A job that went from Ann to Bob, of which neither could be notified."""
    ann, bob = floor.crew("Ann", "Bob")
    factories.dispatcher(floor.organization, "Maria Lopez")
    job = assigned_to(floor, ann)
    OutboundNumber.objects.update(is_paused=True)
    services.assign(job.pk, bob.pk, actor=MARIA, confirm_unfit=True)
    deliver(floor)
    deliver(floor, 301)
    notify()
    assert statuses(job) == {"Ann": "unreached", "Bob": "unreached"}
    return floor.job(job), ann, bob


def statuses(job: Job) -> dict[str, str]:
    return dict(TechnicianNotice.objects.filter(job=job).values_list("technician__name", "status"))


def story(job: Job) -> list[str]:
    return [entry.text for entry in timeline.load_timeline(job)]


def browser(floor: Floor) -> Client:
    return factories.browser(factories.dispatcher(floor.organization, "Zoe"))


def test_telling_everyone_ends_the_alert_and_changes_no_job(missed) -> None:
    job, _ann, _bob = missed
    assert open_alerts() != []
    services.mark_technician_told(job.pk, actor=MARIA, note="by radio")
    notify()
    assert open_alerts() == []
    assert statuses(job) == {"Ann": "reached", "Bob": "reached"}
    assert set(TechnicianNotice.objects.values_list("reached_by", flat=True)) == {"dispatcher"}
    assert Job.objects.get(pk=job.pk).version == job.version
    assert "Maria Lopez told Bob that the job was assigned to them (“by radio”)" in story(job)


def test_telling_one_leaves_the_alert_about_the_other(missed) -> None:
    job, ann, _bob = missed
    services.mark_technician_told(job.pk, ann.pk, actor=MARIA)
    notify()
    assert statuses(job) == {"Ann": "reached", "Bob": "unreached"}
    assert open_alerts() == [f"Job {job.pk}: call Bob, who doesn't know that the job was assigned to them"]


def test_telling_twice_or_somebody_else_is_refused(missed) -> None:
    job, ann, _bob = missed
    services.mark_technician_told(job.pk, ann.pk, actor=MARIA)
    with pytest.raises(ValidationError, match="does not have to be notified"):
        services.mark_technician_told(job.pk, ann.pk, actor=MARIA)
    services.mark_technician_told(job.pk, actor=MARIA)
    with pytest.raises(IllegalTransition, match="No technician still has to be notified"):
        services.mark_technician_told(job.pk, actor=MARIA)
    assert Event.objects.filter(kind="job.technician_told").count() == 2


def test_late_delivery_after_the_technician_was_told_says_nothing_new(missed, floor: Floor) -> None:
    job, ann, _bob = missed
    services.mark_technician_told(job.pk, actor=MARIA)
    text = Text.objects.create(
        organization=floor.organization, purpose="job_news", subject_id=1, account=floor.number.account,
        number=floor.number, to_phone=ann.phone, from_phone="1", body="x", status="delivered",
        not_after=job.created_at,
    )  # fmt: skip
    row = TechnicianNotice.objects.get(job=job, technician=ann)
    TechnicianNotice.objects.filter(pk=row.pk).update(text_id=text.pk)
    advance_notice(row.pk)
    assert not Event.objects.filter(kind="job.technician_notified").exists()
    assert not Call.objects.filter(purpose="job_news", ended_at=None).exists()


def test_api_offers_and_performs_the_action(missed, floor: Floor) -> None:
    job, ann, _bob = missed
    api = Api(user=factories.dispatcher(floor.organization, "Zoe"))
    assert "technician_told" in api.get(f"jobs/{job.pk}/").json()["actions"]
    answer = api.post(f"jobs/{job.pk}/technician-told/", {"technician": ann.pk, "version": job.version})
    assert answer.status_code == 200, answer.content
    assert "technician_told" in answer.json()["actions"], "Bob does not know yet"
    answer = api.post(f"jobs/{job.pk}/technician-told/", {})
    assert "technician_told" not in answer.json()["actions"]
    assert api.post(f"jobs/{job.pk}/technician-told/", {}).status_code == 409


def test_nobody_tells_technicians_of_another_organization(missed) -> None:
    job, _ann, _bob = missed
    outsider = Api(user=factories.dispatcher(factories.organization("Elsewhere")))
    assert outsider.post(f"jobs/{job.pk}/technician-told/", {}).status_code == 404
    assert statuses(job) == {"Ann": "unreached", "Bob": "unreached"}


def test_board_offers_the_action_only_while_somebody_was_not_reached(missed, floor: Floor) -> None:
    job, ann, _bob = missed
    client = browser(floor)
    panel = reverse("console:job", args=[job.pk])
    address = reverse("console:act", args=[job.pk, "technician-told"])
    assert "I told them" in client.get(panel, headers={"HX-Request": "true"}).content.decode()
    page = client.get(address).content.decode()
    assert "Ann knows that the job was reassigned" in page
    assert "All of them" in page
    assert client.post(address, {"version": job.version, "who_knows": ann.pk}).status_code == 302
    assert statuses(job) == {"Ann": "reached", "Bob": "unreached"}
    assert "All of them" not in client.get(address).content.decode()
    assert client.post(address, {"version": job.version}).status_code == 302
    assert statuses(job) == {"Ann": "reached", "Bob": "reached"}
    assert "I told them" not in client.get(panel, headers={"HX-Request": "true"}).content.decode()
    assert client.post(address, {"version": job.version}).status_code == 409


def test_admin_page_of_a_job_offers_the_action(missed, floor: Floor) -> None:
    job, _ann, _bob = missed
    client = factories.browser(factories.admin(floor.organization))
    page = client.get(reverse("admin:jobs_job_change", args=[job.pk])).content.decode()
    assert "I told them" in page
    address = reverse("admin:jobs_job_act", args=[job.pk, "technician-told"])
    assert client.post(address, {"version": job.version, "note": "by radio"}).status_code == 302
    assert statuses(job) == {"Ann": "reached", "Bob": "reached"}
