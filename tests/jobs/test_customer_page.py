"""The customer's page: what it says, canceling and correcting, and what a wrong link gives away."""

from __future__ import annotations

from typing import Any

import pytest
from django.core.signing import Signer
from django.test import Client

from dispatch.core import clock
from dispatch.core.models import Event
from dispatch.jobs import services, signed_links, timeline
from dispatch.jobs.models import CustomerTextPolicy, Job, Offer, TechnicianNotice
from dispatch.jobs.services import Answer, CustomerRefusal
from dispatch.technicians.models import Technician
from dispatch.telephony.models import Call
from tests.harness.customer_texts import ALL, Shop, story, texts
from tests.harness.jobs import MARIA
from tests.jobs.test_races import at_once
from tests.support import factories

pytestmark = pytest.mark.django_db


@pytest.fixture
def shop() -> Shop:
    return Shop(**ALL, contact_phone="+16025550100")


class Page:
    """The page of a job in a browser without a session."""

    def __init__(self, job: Job) -> None:
        self.job = job
        self.path = signed_links.status_path(job.submission_id)
        self.browser = Client(enforce_csrf_checks=True)

    def says(self) -> str:
        return self.browser.get(self.path).content.decode()

    def send(self, do: str, **entered: Any) -> Any:
        return self.browser.post(self.path, {"do": do, **entered})

    def now(self) -> Job:
        return Job.objects.get(pk=self.job.pk)


# --- what it says -----------------------------------------------------------------------------------------------


def test_page_names_the_technician_and_the_arrival_in_plain_words(shop):
    job = shop.assign(shop.job())
    page = Page(job)
    assert "Ann is coming" in page.says()
    services.report_on_the_way(job.pk, actor=MARIA, eta_minutes=20)
    said = page.says()
    assert "Ann is on the way" in said
    assert "Expected at about" in said
    assert "Ann Lee" not in said, "the first name is enough"
    assert str(shop.ann.phone) not in said
    clock.travel(3600)
    assert "any moment" in page.says()
    services.mark_started(job.pk, actor=MARIA)
    said = page.says()
    assert "Ann is working on your request" in said
    assert "Yes, cancel request" not in said
    assert "call Copper State Plumbing at (602) 555-0100" in said
    services.complete(job.pk, actor=MARIA)
    assert "The work is done" in page.says()


def test_page_shows_the_corrected_address_and_never_the_phone(shop):
    job = shop.assign(shop.job())
    Job.objects.filter(pk=job.pk).update(address="31 E 5th St, Tempe, AZ 85281")
    said = Page(job).says()
    assert "31 E 5th St" in said
    assert "602-555-0123" not in said
    assert "6025550123" not in said
    assert "ends in 23" in said


# --- canceling -------------------------------------------------------------------------------------------------


def test_customer_cancels_and_everybody_knows(shop):
    job = shop.assign(shop.job())
    page = Page(job)
    assert "Cancel this request?" in page.says()
    done = page.send("cancel", reason="It stopped leaking")
    assert done.status_code == 303
    assert page.now().status == "cancelled"
    assert "The customer canceled the job: It stopped leaking" in story(job)
    event = Event.objects.get(kind="job.cancelled")
    assert (event.actor_type, event.actor_label) == ("customer", "The customer")
    assert shop.notified("job.cancelled") == [f"The customer canceled job {job.pk}"]
    assert TechnicianNotice.objects.get(technician=shop.ann, status="sending").news == "cancelled"
    assert Technician.objects.get(pk=shop.ann.pk).open_jobs == 0
    assert texts(job)[-1] == ("cancelled", "created")
    assert "Your request is canceled." in page.browser.get(done["Location"]).content.decode()
    assert page.send("cancel").status_code == 303, "a second time changes nothing"
    assert Event.objects.filter(kind="job.cancelled").count() == 1


def test_cancellation_by_a_dispatcher_notifies_nobody_of_it(shop):
    job = shop.job()
    services.cancel(job.pk, "mistake", actor=MARIA)
    assert shop.notified("job.cancelled") == []


def test_customer_cancels_while_a_phone_rings(shop):
    job = shop.job()
    assert Offer.objects.get(job=job).status == "pending"
    Page(job).send("cancel")
    assert Offer.objects.get(job=job).status == "rescinded"
    assert not Call.objects.filter(purpose="offer", ended_at=None, status="created").exists()
    assert "The customer canceled the job: by the customer" in story(job)


@pytest.mark.parametrize("change", ["started", "completed"])
def test_customer_cannot_cancel_after_the_work_has_started(shop, change):
    job = shop.assign(shop.job())
    services.mark_started(job.pk, actor=MARIA)
    if change == "completed":
        services.complete(job.pk, actor=MARIA)
    answer = Page(job).send("cancel")
    assert answer.status_code == 409
    said = answer.content.decode()
    assert "call Copper State Plumbing at (602) 555-0100" in said
    assert "Maria" not in said, "customers don't learn who works here"
    assert Page(job).now().status in ("assigned", "completed")


def test_page_without_a_contact_phone_names_the_organization(shop):
    CustomerTextPolicy.objects.all().delete()
    job = shop.assign(shop.job())
    services.mark_started(job.pk, actor=MARIA)
    assert "call Copper State Plumbing." in Page(job).send("cancel").content.decode()


@pytest.mark.django_db(transaction=True)
def test_two_cancellations_at_once_cancel_once(shop):
    job = shop.assign(shop.job())
    results = at_once(*[lambda: services.cancel_request(job.pk)] * 3)
    assert [result.status for result in results] == ["cancelled"] * 3
    assert Event.objects.filter(kind="job.cancelled").count() == 1
    assert [kind for kind, _ in texts(job)].count("cancelled") == 1
    assert TechnicianNotice.objects.filter(technician=shop.ann, news="cancelled").count() == 1


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("again", range(3))
def test_canceling_and_accepting_at_once_ends_cancelled(shop, again):
    job = shop.job()
    offer = Offer.objects.select_related("technician").get(job=job, status="pending")
    call = Call.objects.get(purpose="offer", subject_id=offer.pk)
    Call.objects.filter(pk=call.pk).update(status="answered")
    cancelled, answered = at_once(
        lambda: services.cancel_request(job.pk), lambda: services.answer_offer(offer.pk, call.pk, "1")
    )
    assert not isinstance(cancelled, Exception), cancelled
    assert answered in (Answer.ACCEPTED, Answer.NO_LONGER)
    now = Job.objects.get(pk=job.pk)
    assert (now.status, now.technician) == ("cancelled", None)
    assert Technician.objects.get(pk=offer.technician_id).open_jobs == 0
    news = TechnicianNotice.objects.filter(technician=offer.technician, news="cancelled", status="sending")
    assert news.exists() == (answered is Answer.ACCEPTED), "who accepted is informed"
    assert ("assigned", "created") not in texts(job), "nobody is announced any longer"


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("again", range(3))
def test_canceling_and_starting_at_once_has_one_winner(shop, again):
    job = shop.assign(shop.job())
    cancelled, started = at_once(
        lambda: services.cancel_request(job.pk), lambda: services.mark_started(job.pk, actor=MARIA)
    )
    now = Job.objects.get(pk=job.pk)
    if isinstance(cancelled, CustomerRefusal):
        assert (now.status, now.started_at is not None) == ("assigned", True)
    else:
        assert now.status == "cancelled"
        assert isinstance(started, Exception)


# --- correcting -------------------------------------------------------------------------------------------------


def correction(page: Page, **entered: str) -> Any:
    return page.send("correct", **{"address": page.now().address, "phone": "", **entered})


def test_customer_corrects_the_address_and_the_technician_is_notified(shop):
    job = shop.assign(shop.job())
    TechnicianNotice.objects.update(status="reached")
    page = Page(job)
    assert correction(page, address=factories.TEMPE.address).status_code == 303
    now = page.now()
    assert (now.address, now.status, round(now.lat, 1)) == (factories.TEMPE.address, "assigned", 33.4)
    assert "The customer corrected the address" in story(job)
    assert shop.notified("job.corrected") == [f"The customer corrected the address of job {job.pk}"]
    assert TechnicianNotice.objects.get(technician=shop.ann, status="sending").news == "changed"


def test_address_on_two_lines_is_stored_on_one(shop):
    job = shop.assign(shop.job())
    street, _, city = factories.TEMPE.address.partition(" Tempe")
    assert correction(Page(job), address=f"{street}\r\n  Tempe{city}").status_code == 303
    assert Job.objects.get(pk=job.pk).address == factories.TEMPE.address


def test_customer_corrects_the_phone(shop):
    job = shop.assign(shop.job())
    page = Page(job)
    assert correction(page, phone="602-555-0199").status_code == 303
    assert str(page.now().customer_phone) == "+16025550199"
    assert page.now().address == factories.PHOENIX.address
    assert "The customer corrected the phone" in story(job)


def test_new_address_of_a_job_being_offered_calls_the_technicians_near_it(shop):
    job = shop.job()
    near = factories.technician(shop.organization, "Cid", at=factories.TUCSON)
    page = Page(job)
    assert correction(page, address=factories.TUCSON.address).status_code == 303
    now = page.now()
    assert (now.status, now.address) == ("dispatching", factories.TUCSON.address)
    assert [row.technician for row in now.candidates.all()] == [near]
    offer = Offer.objects.get(job=job)
    assert (offer.status, offer.reason) == ("rescinded", "the address was corrected")
    services.offer_next(job.pk, now.step_token, place=False)
    assert Offer.objects.get(job=job, status="pending").technician == near


def test_new_address_with_nobody_near_goes_to_a_dispatcher(shop):
    job = shop.job()
    correction(Page(job), address=factories.TUCSON.address)
    now = Job.objects.get(pk=job.pk)
    assert (now.status, now.pending_reason) == ("pending", "nobody_near")


@pytest.mark.parametrize(
    ("entered", "said"),
    [
        ({"address": "nowhere at all"}, "find this address"),
        ({"address": ""}, "Enter the address."),
        ({"phone": "12"}, "Enter a valid phone number, such as (201) 555-0123,"),
        ({}, "Change the address or the phone number."),
    ],
)
def test_wrong_corrections_are_explained_and_change_nothing(shop, entered, said):
    job = shop.assign(shop.job())
    page = Page(job)
    answer = correction(page, **entered)
    assert answer.status_code == 400
    assert said in answer.content.decode().replace("&#x27;", "'")
    assert (page.now().version, page.now().address) == (job.version, job.address)


def test_paused_job_is_corrected_by_phone_only(shop):
    job = shop.job()
    services.pause(job.pk, actor=MARIA)
    page = Page(job)
    assert "Save changes" not in page.says()
    assert correction(page, address=factories.TEMPE.address).status_code == 409
    assert page.now().address == factories.PHOENIX.address


def test_changes_are_limited(shop, settings):
    settings.CUSTOMER_CHANGE_RATE = "2/hour"
    job = shop.assign(shop.job())
    page = Page(job)
    for _ in range(2):
        assert correction(page).status_code == 400
    refused = page.send("cancel")
    assert refused.status_code == 429
    assert int(refused["Retry-After"]) > 0
    assert page.now().status == "assigned"


def test_unknown_actions_and_requests_without_a_job_change_nothing(shop):
    job = shop.assign(shop.job())
    assert Page(job).send("complete").status_code == 400
    form = {"customer_name": "Zoe", "customer_phone": "+16025550177", "service_type": shop.service}
    waiting = services.accept_submission(shop.organization, form, raw={}, actor=MARIA)
    path = signed_links.status_path(waiting.pk)
    browser = Client()
    assert "Cancel this request" not in browser.get(path).content.decode()
    assert browser.post(path, {"do": "cancel"}).status_code == 400


# --- links ------------------------------------------------------------------------------------------------------


def test_link_ends_some_days_after_the_job_and_not_before(shop, settings):
    settings.CUSTOMER_LINK_DAYS = 5
    job = shop.job()
    page = Page(job)
    clock.travel(100 * 86_400)
    assert "Copper State Plumbing" in page.says(), "an open request keeps its link"
    services.cancel(job.pk, "mistake", actor=MARIA)
    clock.travel(4 * 86_400)
    assert page.browser.get(page.path).status_code == 200
    clock.travel(2 * 86_400)
    gone = page.browser.get(page.path)
    assert gone.status_code == 410
    assert "This link has expired" in gone.content.decode()
    assert page.send("cancel").status_code == 410


def tampered(token: str) -> list[str]:
    ids, _, signature = token.partition(".")
    number, _, until = ids.partition("-")
    other_kind = Signer(salt="dispatch.jobs.offer", sep=".").sign(ids)
    return [f"{int(number) + 1}-{until}.{signature}", token[:-2] + "xx", other_kind, f"{number}.{signature}", "1"]


def test_tampered_links_say_so_and_leak_nothing(shop):
    job = shop.assign(shop.job())
    token = signed_links.status_path(job.submission_id).rstrip("/").rsplit("/", 1)[-1]
    for wrong in tampered(token):
        for open_page in (Client().get, lambda path: Client().post(path, {"do": "cancel"})):
            answer = open_page(f"/s/{wrong}/")
            assert answer.status_code == 404, wrong
            said = answer.content.decode()
            assert "This link doesn't work" in said
            for secret in ("Copper State", "Dana", "Washington", "Ann", "Water heater"):
                assert secret not in said
    assert Job.objects.get(pk=job.pk).status == "assigned"


def test_link_of_one_request_is_not_one_of_another(shop):
    first, second = shop.assign(shop.job()), shop.job()
    Page(first).send("cancel")
    assert Job.objects.get(pk=second.pk).status == "dispatching"


def test_link_ends_with_the_organization_and_with_erasure(shop):
    job = shop.job()
    page = Page(job)
    type(job.submission).objects.filter(pk=job.submission_id).update(customer_phone="")
    assert page.browser.get(page.path).status_code == 410
    shop.organization.is_active = False
    shop.organization.save()
    assert page.browser.get(page.path).status_code == 404


def test_headers_let_a_browser_submit_and_keep_the_link_private(shop):
    job = shop.job()
    answer = Client().get(Page(job).path)
    assert answer["Referrer-Policy"] == "same-origin"
    assert "no-store" in answer["Cache-Control"]
    assert "form-action 'self'" in answer["Content-Security-Policy"]
    assert answer["X-Frame-Options"] == "DENY"


@pytest.mark.parametrize("act", ["cancel", "correct"])
def test_history_names_the_customer_as_the_actor(shop, act):
    job = shop.assign(shop.job())
    page = Page(job)
    if act == "cancel":
        page.send("cancel")
    else:
        correction(page, phone="602-555-0199")
    entry = timeline.last_change(page.now())
    assert entry is not None
    assert (entry.actor_type, entry.actor_label) == ("customer", "The customer")
