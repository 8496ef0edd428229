"""After links are revoked or a phone changes, nothing in the former phone reaches the technician's jobs."""

from __future__ import annotations

import re
from urllib.parse import urlsplit

from django.test import Client

from dispatch.core import clock
from dispatch.core.models import Event
from dispatch.jobs import services, signed_links
from dispatch.jobs.models import Job, Offer
from dispatch.jobs.services import notice_delivery, threads
from dispatch.technicians import services as technicians
from dispatch.technicians.models import Technician
from dispatch.telephony.models import Call, Text
from tests.harness.jobs import MARIA, Floor
from tests.harness.lost_phones import Loss, change_phone
from tests.jobs.test_technician_notices import assigned_to, deliver, notice, texting  # noqa: F401


def path_of_offer(offer: Offer) -> str:
    """Return the path of the offer's page as the technician's phone has it now."""
    return urlsplit(signed_links.offer_url(Offer.objects.get(pk=offer.pk))).path


def earlier_path_of(offer: Offer) -> str:
    """Return the path of the offer's page in a text of a release whose links name no version."""
    token = signed_links.sign_token("offer", [offer.pk, offer.technician_id], signed_links.OFFER_LINK)
    return f"/o/{token}/"


# --- Links of offers ---------------------------------------------------------------------------------------------
def test_link_of_an_accepted_offer_opens_nothing_in_a_lost_phone(floor: Floor, lose_phone: Loss) -> None:
    (ann,) = floor.crew("Ann")
    assigned_to(floor, ann)
    path = path_of_offer(Offer.objects.get())
    page = Client().get(path).content.decode()
    assert "Dana Whitfield" in page
    (own_page,) = re.findall(r"/t/[^\"]+", page)
    assert Client().get(own_page).status_code == 200
    lose_phone(ann)
    gone = Client().get(path)
    assert gone.status_code == 404
    assert "Dana" not in gone.content.decode()
    assert Client().get(path_of_offer(Offer.objects.get())).status_code == 200, "a link of now is valid"


def test_lost_phone_answers_no_offer(floor: Floor, lose_phone: Loss) -> None:
    (ann,) = floor.crew("Ann")
    job = floor.started()
    path = path_of_offer(floor.live_offer(job))
    lose_phone(ann)
    assert Client().post(path, {"answer": "accept"}).status_code == 404
    assert floor.status(job) == "dispatching"


def test_link_of_an_earlier_release_is_valid_until_the_first_revocation(floor: Floor, lose_phone: Loss) -> None:
    (ann,) = floor.crew("Ann")
    job = floor.started()
    path = earlier_path_of(floor.live_offer(job))
    assert Client().get(path).status_code == 200
    lose_phone(ann)
    assert Client().get(path).status_code == 404


def test_links_of_offers_still_expire_after_a_day(floor: Floor) -> None:
    floor.crew("Ann")
    offer = floor.live_offer(floor.started())
    paths = [path_of_offer(offer), earlier_path_of(offer)]
    clock.travel(25 * 3600)
    assert [Client().get(path).status_code for path in paths] == [410, 410]


# --- Texts that wait ---------------------------------------------------------------------------------------------
def assigned_by_hand(floor: Floor, technician: Technician) -> Job:
    """A job that a dispatcher has assigned to the technician. Its text waits."""
    job = floor.started()
    assert services.assign(job.pk, technician.pk, actor=MARIA, confirm_unfit=True).assigned
    floor.until(lambda: not Call.objects.filter(ended_at=None).exists())
    return floor.job(job)


def texts_to(floor: Floor, phone: str) -> list[str]:
    return [text["body"] for text in floor.sim.messages(to=phone)]


def test_assignment_is_not_texted_to_a_former_phone_but_called(texting: Floor) -> None:  # noqa: F811
    (ann,) = texting.crew("Ann")
    former = str(ann.phone)
    job = assigned_by_hand(texting, ann)
    change_phone(ann)
    ann.refresh_from_db()
    deliver(texting)
    texting.until(lambda: Text.objects.get(purpose="job").status == "canceled")
    deliver(texting)
    texting.rings(ann).answer().hears("You have a new job").press("1").hears("Thank you")
    assert (notice(job).status, notice(job).reached_by) == ("reached", "call")
    assert texts_to(texting, former) == []


def test_text_that_arrives_at_a_former_phone_informs_nobody(texting: Floor) -> None:  # noqa: F811
    (ann,) = texting.crew("Ann")
    job = assigned_by_hand(texting, ann)
    Text.objects.filter(purpose="job").update(status="sent")
    change_phone(ann)
    ann.refresh_from_db()
    Text.objects.filter(purpose="job").update(status="delivered", ended_at=clock.now())
    notice_delivery.advance_notice(notice(job).pk)
    assert notice(job).status == "sending"
    deliver(texting)
    texting.rings(ann).answer().press("1").hears("Thank you")
    assert (notice(job).status, notice(job).reached_by) == ("reached", "call")


def test_alert_about_the_technician_stays_when_a_former_phone_gets_the_text(texting: Floor) -> None:  # noqa: F811
    (ann,) = texting.crew("Ann")
    job = assigned_by_hand(texting, ann)
    Text.objects.filter(purpose="job").update(status="sent")
    change_phone(ann)
    clock.travel(301)
    services.advance_due_notices()
    assert notice(job).status == "unreached"
    Text.objects.filter(purpose="job").update(status="delivered", ended_at=clock.now())
    notice_delivery.advance_notice(notice(job).pk)
    assert notice(job).status == "unreached"


def test_address_of_an_accepted_job_is_texted_to_the_present_phone(texting: Floor) -> None:  # noqa: F811
    (ann,) = texting.crew("Ann")
    former = str(ann.phone)
    assigned_to(texting, ann)
    change_phone(ann)
    ann.refresh_from_db()
    texting.send_texts()
    texting.until(lambda: texts_to(texting, str(ann.phone)))
    assert texts_to(texting, former) == []
    (sent,) = texts_to(texting, str(ann.phone))
    assert "the job is yours" in sent
    (own_page,) = re.findall(r"/t/\S+", sent)
    assert Client().get(own_page).status_code == 200


def test_address_follows_the_phone_once_and_only_while_the_job_is_theirs(texting: Floor) -> None:  # noqa: F811
    ann, bob = texting.crew("Ann", "Bob")
    job = assigned_to(texting, ann)
    change_phone(ann)
    assert services.assign(job.pk, bob.pk, actor=MARIA, confirm_unfit=True).assigned
    (first, to_bob) = Text.objects.filter(purpose="job").order_by("pk")
    assert (first.status, str(to_bob.to_phone)) == ("canceled", str(bob.phone))
    notice_delivery.send_canceled_address(first)
    change_phone(bob)
    notice_delivery.send_canceled_address(to_bob)  # the notice calls
    job.notices.filter(technician=bob).update(status="reached")
    for _ in range(2):
        notice_delivery.send_canceled_address(to_bob)
    bob.refresh_from_db()
    newer = Text.objects.filter(purpose="job", pk__gt=to_bob.pk)
    assert [str(text.to_phone) for text in newer] == [str(bob.phone)]


def test_offer_is_not_texted_to_a_former_phone(texting: Floor) -> None:  # noqa: F811
    texting.set_policy(offer_by_text=True)
    (ann,) = texting.crew("Ann")
    texting.started()
    change_phone(ann)
    texting.send_texts()
    assert Text.objects.get(purpose="offer").status == "canceled"


def test_dispatchers_learn_that_their_text_did_not_go_to_a_former_phone(texting: Floor) -> None:  # noqa: F811
    (ann,) = texting.crew("Ann")
    job = assigned_to(texting, ann)
    threads.send(job.pk, "The gate code is 4711", actor=MARIA)
    change_phone(ann)
    texting.send_texts()
    assert Text.objects.get(purpose="thread").status == "canceled"
    failed = Event.objects.filter(kind="job.text_failed", subject_id=job.pk)
    texting.until(failed.exists)
    ann.refresh_from_db()
    told = failed.get().data
    assert (told["reason"], told["phone"]) == ("their phone number has changed", ann.phone.as_national)


def test_other_changes_of_a_technician_stop_no_text(texting: Floor) -> None:  # noqa: F811
    (ann,) = texting.crew("Ann")
    job = assigned_by_hand(texting, ann)
    technicians.change_technician(ann.pk, {"name": "Anna", "phone": str(ann.phone)}, actor=MARIA)
    technicians.void_links(ann.pk, actor=MARIA)
    deliver(texting)
    texting.until(lambda: notice(job).status == "reached")
    assert notice(job).reached_by == "text"
