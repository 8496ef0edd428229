"""A technician whose job changes is informed: by text, else by a call, else dispatchers are alerted."""

from __future__ import annotations

import pytest
from django.core.exceptions import ValidationError
from django.db import transaction
from django.test import Client
from django.urls import reverse

from dispatch.capacity.models import OutboundNumber
from dispatch.core import clock
from dispatch.core.models import Event
from dispatch.jobs import services
from dispatch.jobs.models import Job, TechnicianNotice
from dispatch.jobs.services import Correction
from dispatch.technicians.models import Technician
from dispatch.telephony.models import Call, OptOut, Text
from notifications import rules as notification_rules
from notifications.models import Alert, Claim
from notifications.services import ownership
from notifications.services.notifications import handle
from tests.api.client import Api
from tests.harness.jobs import MARIA, Floor
from tests.jobs.test_answer_channels import tell_provider
from tests.phones import answer, busy, manual
from tests.support import factories


@pytest.fixture
def texting(floor: Floor) -> Floor:
    """The floor, whose number may text."""
    OutboundNumber.objects.filter(pk=floor.number.pk).update(sends_texts=True, texts_per_second=1000)
    floor.number.refresh_from_db()
    tell_provider(floor)
    return floor


def assigned_to(floor: Floor, technician: Technician) -> Job:
    """A job that the technician has accepted by phone. What their phone does afterwards is up to the test."""
    floor.phone(technician).will(answer(press="1"), manual())
    job = floor.started()
    floor.rings(technician)
    floor.until(lambda: floor.status(job) == "assigned")
    floor.until(lambda: not Call.objects.filter(ended_at=None).exists())
    return floor.job(job)


def notice(job: Job) -> TechnicianNotice:
    return TechnicianNotice.objects.filter(job=job).latest("pk")


def deliver(floor: Floor, seconds: float = 0) -> None:
    """Run the loops that send notices and texts, once."""
    clock.travel(seconds)
    services.advance_due_notices()
    floor.send_texts()
    floor.tick()


def unreached(job: Job) -> list[str]:
    found = Event.objects.filter(kind="job.technician_unreached", subject_id=job.pk).order_by("id")
    return [event.data["technician"] for event in found]


def test_cancelled_job_is_texted_to_its_technician(texting):
    (ann,) = texting.crew("Ann")
    job = assigned_to(texting, ann)
    services.cancel(job.pk, "customer fixed it", actor=MARIA)
    deliver(texting)
    body = texting.phone(ann).gets_text("Your job was canceled".lower())["body"]
    assert "You don't need to go there" in body
    texting.until(lambda: notice(job).status == "reached")
    deliver(texting, 400)
    assert (notice(job).reached_by, unreached(job)) == ("text", [])
    assert not Call.objects.filter(purpose="job_news").exists()
    assert "job.technician_notified" in texting.kinds(job)


def test_cancelled_job_is_called_when_no_text_is_possible(floor):
    (ann,) = floor.crew("Ann")
    job = assigned_to(floor, ann)
    services.cancel(job.pk, "customer fixed it", actor=MARIA)
    deliver(floor)
    call = floor.rings(ann).answer().hears("Your job was canceled")
    call.press("1").hears("Thank you")
    assert (notice(job).status, notice(job).reached_by) == ("reached", "call")
    deliver(floor, 400)
    assert unreached(job) == []
    assert Call.objects.filter(purpose="job_news").count() == 1


@pytest.mark.parametrize("trouble", ["opted out", "undelivered", "never reported"])
def test_technician_is_called_when_the_text_does_not_arrive(texting, trouble):
    (ann,) = texting.crew("Ann")
    job = assigned_to(texting, ann)
    if trouble == "opted out":
        OptOut.objects.create(organization=texting.organization, phone=ann.phone)
    services.cancel(job.pk, "customer fixed it", actor=MARIA)
    if trouble != "opted out":
        text = Text.objects.get(purpose="job_news")
        status = "undelivered" if trouble == "undelivered" else "sent"
        ended = clock.now() if trouble == "undelivered" else None
        Text.objects.filter(pk=text.pk).update(status=status, ended_at=ended)
        services.advance_due_notices()
        assert not Call.objects.filter(purpose="job_news").exists()
    deliver(texting, 91)
    texting.rings(ann).answer().hears("was canceled").press("1").hears("Thank you")
    assert notice(job).status == "reached"


def test_dispatchers_are_alerted_when_nothing_reaches_the_technician(floor):
    (ann,) = floor.crew("Ann")
    job = assigned_to(floor, ann)
    floor.phone(ann).will(busy())
    services.cancel(job.pk, "customer fixed it", actor=MARIA)
    deliver(floor)
    floor.until(lambda: Call.objects.filter(purpose="job_news", status="busy").exists())
    deliver(floor, 301)
    assert unreached(job) == ["Ann"]
    assert notice(job).status == "unreached"
    rule = notification_rules.BY_KIND["job.technician_unreached"]
    event = Event.objects.get(kind="job.technician_unreached")
    said = notification_rules.message_of(rule, {"id": job.pk, **event.data})
    assert (rule.level, said.title) == (
        "critical",
        f"Job {job.pk}: call Ann, who doesn't know that the job was canceled",
    )
    deliver(floor, 400)
    assert unreached(job) == ["Ann"]


def test_second_call_is_made_when_the_first_is_not_confirmed(floor):
    (ann,) = floor.crew("Ann")
    job = assigned_to(floor, ann)
    floor.phone(ann).will(busy())
    services.cancel(job.pk, "customer fixed it", actor=MARIA)
    deliver(floor)
    floor.until(lambda: Call.objects.filter(purpose="job_news", status="busy").exists())
    floor.phone(ann).will(answer(press="1"))
    deliver(floor, 35)
    floor.until(lambda: notice(job).status == "reached")
    assert list(Call.objects.filter(purpose="job_news").values_list("attempt", flat=True).order_by("pk")) == [1, 2]


def test_reassigned_job_informs_both_technicians(floor):
    ann, bob = floor.crew("Ann", "Bob")
    job = assigned_to(floor, ann)
    services.assign(job.pk, bob.pk, actor=MARIA)
    deliver(floor)
    floor.rings(ann).answer().hears("given to another technician").press("1").hears("Thank you")
    heard = floor.rings(bob).answer().hears("You have a new job").hears("Dana Whitfield")
    heard.press("1").hears("Thank you")
    assert set(TechnicianNotice.objects.values_list("technician__name", "news", "status")) == {
        ("Ann", "reassigned", "reached"),
        ("Bob", "assigned", "reached"),
    }


def test_manual_assignment_counts_the_address_text_as_its_notice(texting):
    ann, bob = texting.crew("Ann", "Bob")
    job = assigned_to(texting, ann)
    services.assign(job.pk, bob.pk, actor=MARIA)
    assert notice(job).text_id == Text.objects.get(purpose="job", to_phone=bob.phone).pk
    texting.until(lambda: deliver(texting) or notice(job).status == "reached")  # one text a second
    assert not Call.objects.filter(purpose="job_news").exists()


def test_corrected_job_informs_its_technician(texting):
    (ann,) = texting.crew("Ann")
    job = assigned_to(texting, ann)
    with pytest.raises(ValidationError, match="Change at least one field"):
        services.correct(job.pk, actor=MARIA, correction=Correction())
    services.correct(job.pk, actor=MARIA, correction=Correction(address="85281"), customer_phone="+16025550199")
    now = texting.job(job)
    assert (now.address, str(now.customer_phone), round(now.lat, 1)) == ("85281", "+16025550199", 33.4)
    deliver(texting)
    body = texting.phone(ann).gets_text("your job has changed")["body"]
    assert "(602) 555-0199" in body
    assert "85281" in body
    assert "corrected the address and phone" in str([e.did for e in services_timeline(now)])


def services_timeline(job: Job) -> list:
    from dispatch.jobs.timeline import load_timeline

    return load_timeline(job)


def test_newer_news_replace_older_ones(floor):
    (ann,) = floor.crew("Ann")
    job = assigned_to(floor, ann)
    services.correct(job.pk, actor=MARIA, correction=Correction(), customer_phone="+16025550199")
    services.cancel(job.pk, "customer fixed it", actor=MARIA)
    found = TechnicianNotice.objects.order_by("pk").values_list("news", "status")
    assert list(found) == [("changed", "superseded"), ("cancelled", "sending")]
    floor.phone(ann).will(answer(press="1"))
    services.dispatch_again(job.pk, actor=MARIA)
    floor.until(lambda: floor.status(job) == "assigned")
    assert notice(job).status == "superseded"


def test_job_given_back_by_its_technician_needs_no_notice(floor):
    ann, _bob = floor.crew("Ann", "Bob")
    job = assigned_to(floor, ann)
    services.cannot_make_it(job.pk, actor=MARIA)
    assert not TechnicianNotice.objects.exists()


def test_assigning_somebody_who_cannot_be_reached_says_so_before_and_after(floor):
    ann, bob = floor.crew("Ann", "Bob")
    job = assigned_to(floor, ann)
    Technician.objects.filter(pk=bob.pk).update(phone="+4930901820")
    warning = "Bob can be neither texted nor called. Notify them yourself."
    user = factories.dispatcher(floor.organization)
    client = Client()
    client.force_login(user, backend="django.contrib.auth.backends.ModelBackend")
    page = client.get(reverse("console:act", args=[job.pk, "assign"]))
    assert "texted or called" in page.content.decode()

    api = Api(user=user)
    refused = api.post(f"jobs/{job.pk}/assign/", {"technician": bob.pk})
    assert (refused.status_code, refused.json()["conflict"]["warnings"]) == (409, [warning])
    done = api.post(f"jobs/{job.pk}/assign/", {"technician": bob.pk, "confirm_unfit": True})
    assert (done.status_code, done.json()["warnings"]) == (200, [warning])
    services.advance_due_notices()
    assert unreached(job) == ["Bob"]


def test_late_confirmation_ends_the_alert_of_that_technician_only(floor):
    ann, bob = floor.crew("Ann", "Bob")
    job = assigned_to(floor, ann)
    OutboundNumber.objects.update(is_paused=True)
    services.assign(job.pk, bob.pk, actor=MARIA, confirm_unfit=True)
    deliver(floor)
    deliver(floor, 301)
    assert sorted(unreached(job)) == ["Ann", "Bob"]
    text = Text.objects.create(
        organization=floor.organization, purpose="job_news", subject_id=1, account=floor.number.account,
        number=floor.number, to_phone=ann.phone, from_phone="1", body="x", status="delivered",
        not_after=clock.now(),
    )  # fmt: skip
    TechnicianNotice.objects.filter(technician=ann).update(text_id=text.pk)
    from dispatch.telephony.handlers import text_handler_for

    text_handler_for("job_news").on_status_change(text)
    kinds = [kind for kind in floor.kinds(job) if kind.startswith("job.technician_")]
    assert kinds[-2:] == ["job.technician_notified", "job.technician_unreached"]
    assert unreached(job)[-1] == "Bob"


def notify() -> None:
    with transaction.atomic():
        handle(list(Event.objects.order_by("pk")))


def open_alerts() -> list[str]:
    found = Alert.objects.filter(kind="job.technician_unreached").exclude(status="settled")
    return list(found.order_by("pk").values_list("title", flat=True))


def test_reached_technician_does_not_end_the_alert_about_another(floor):
    ann, bob = floor.crew("Ann", "Bob")
    factories.dispatcher(floor.organization)
    job = assigned_to(floor, ann)
    Technician.objects.filter(pk=bob.pk).update(phone="+4930901820")
    services.assign(job.pk, bob.pk, actor=MARIA, confirm_unfit=True)
    deliver(floor)
    assert unreached(job) == ["Bob"]
    floor.rings(ann).answer().hears("another technician").press("1").hears("Thank you")
    notify()
    assert open_alerts() == [f"Job {job.pk}: call Bob, who doesn't know that the job was assigned to them"]


def test_alert_about_old_news_ends_when_the_technician_takes_the_job(floor):
    (ann,) = floor.crew("Ann")
    factories.dispatcher(floor.organization)
    job = assigned_to(floor, ann)
    OutboundNumber.objects.update(is_paused=True)
    services.cancel(job.pk, "a mistake", actor=MARIA)
    deliver(floor, 301)
    notify()
    assert len(open_alerts()) == 1
    OutboundNumber.objects.update(is_paused=False)
    floor.phone(ann).will(answer(press="1"))
    services.dispatch_again(job.pk, actor=MARIA)
    floor.until(lambda: floor.status(job) == "assigned")
    notify()
    assert open_alerts() == []


def test_corrected_job_unknown_to_its_technician_is_announced_as_new(floor):
    ann, bob = floor.crew("Ann", "Bob")
    job = assigned_to(floor, ann)
    services.assign(job.pk, bob.pk, actor=MARIA)
    services.correct(job.pk, actor=MARIA, correction=Correction(), customer_phone="+16025550199")
    assert (notice(job).technician, notice(job).news) == (bob, "assigned")
    deliver(floor)
    heard = floor.rings(bob).answer().hears("You have a new job")
    heard.press("1").hears("Thank you")


def test_notice_to_a_former_technician_keeps_the_claim_on_a_pending_job(floor):
    (ann,) = floor.crew("Ann")
    maria = factories.dispatcher(floor.organization, "Maria Lopez")
    job = assigned_to(floor, ann)
    services.cancel(job.pk, "a mistake", actor=MARIA)
    Technician.objects.filter(pk=ann.pk).update(on_duty=False)
    services.dispatch_again(job.pk, actor=MARIA)
    assert floor.status(job) == "pending"
    notify()
    ownership.claim(floor.organization, "job", job.pk, user=maria, actor=MARIA)
    deliver(floor)
    floor.rings(ann).answer().hears("was canceled").press("1").hears("Thank you")
    notify()
    assert Claim.objects.filter(subject_id=job.pk, user=maria).exists()
    services.assign(job.pk, ann.pk, actor=MARIA, confirm_unfit=True)
    notify()
    assert not Claim.objects.exists()
