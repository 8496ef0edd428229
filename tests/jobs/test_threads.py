"""Texts between technicians and dispatchers about a job: recorded, answered, never lost or misread."""

from __future__ import annotations

import itertools
from datetime import timedelta

import pytest

from dispatch.core import clock
from dispatch.core.api.problems import Conflict
from dispatch.core.models import Event
from dispatch.jobs import services, timeline
from dispatch.jobs.models import Job, JobText, Offer
from dispatch.jobs.services import threads
from dispatch.telephony.models import OptOut, Text
from dispatch.telephony.providers.base import IncomingWebhook
from dispatch.telephony.services import inbound
from notifications.models import Alert, Notification
from notifications.services.notifications import handle
from tests.api.client import Api
from tests.harness.jobs import MARIA, started_job
from tests.support import factories

pytestmark = pytest.mark.django_db

_sids = itertools.count(1)


class Desk:
    """An organization whose number may text, with a dispatcher and two technicians."""

    def __init__(self) -> None:
        self.organization = factories.organization("Copper State Plumbing")
        self.number = factories.number(self.organization, sends_texts=True)
        self.service = factories.service_type(self.organization, "water-heater", name="Water heater repair")
        self.maria = factories.dispatcher(self.organization, "Maria Lopez")
        self.api = Api(user=self.maria)
        self.ann = factories.technician(self.organization, "Ann", max_open_jobs=5)

    def job(self, **fields) -> Job:
        return started_job(self.organization, self.service, **fields)

    def assigned(self, **fields) -> Job:
        job = self.job(**fields)
        services.assign(job.pk, self.ann.pk, actor=MARIA, confirm_unfit=True)
        return Job.objects.get(pk=job.pk)

    def offered(self, **fields) -> Offer:
        """An offer to Ann that was also sent by text."""
        offer = Offer.objects.get(job=self.job(**fields), status="pending")
        Text.objects.create(
            organization=self.organization, purpose="offer", subject_id=offer.pk, account=self.number.account,
            number=self.number, to_phone=self.ann.phone, from_phone=str(self.number.phone), body="A job",
            status="delivered", not_after=clock.now(), requested_at=clock.now(), context={"job_id": offer.job_id},
        )  # fmt: skip
        return offer

    def sent(self) -> None:
        """The texts that wait have left."""
        Text.objects.filter(direction="out", status="created").update(status="delivered", requested_at=clock.now())

    def texts(self, body: str, who=None) -> Text:
        said = IncomingWebhook(
            f"SM{next(_sids)}", self.number.account.account_sid, str(self.number.phone),
            str((who or self.ann).phone), body=body,
        )  # fmt: skip
        return inbound.receive_text(self.number, said)

    def replies(self) -> list[str]:
        return list(Text.objects.filter(purpose="reply").order_by("pk").values_list("body", flat=True))

    def notify(self) -> None:
        handle(list(Event.objects.order_by("pk")))


@pytest.fixture
def desk() -> Desk:
    return Desk()


def thread(job: Job) -> list[tuple[str, str]]:
    rows = JobText.objects.filter(job=job).select_related("text").order_by("pk")
    return [(row.text.direction, row.text.body) for row in rows]


def test_text_from_assigned_technician_reaches_dispatchers(desk):
    job = desk.assigned()
    desk.texts("My truck broke down, I can't make it")
    assert thread(job) == [("in", "My truck broke down, I can't make it")]
    assert job in Job.objects.needing_attention()
    said = [entry.text for entry in timeline.load_timeline(job)]
    assert "Ann texted: “My truck broke down, I can't make it”" in said
    desk.notify()
    told = Notification.objects.get(kind="job.text_received")
    assert (told.user, told.level, told.subject_id) == (desk.maria, "toast", job.pk)
    assert told.title == f"Ann texted about job {job.pk}"
    assert told.body.startswith("“My truck broke down, I can't make it”")
    assert desk.replies() == ["Thank you. Your dispatcher has received your text."]
    desk.texts("Hello?")
    assert len(desk.replies()) == 1, "one confirmation an hour"


def test_text_from_a_technician_with_only_an_open_offer_reaches_dispatchers(desk):
    offer = desk.offered()
    desk.texts("Which gate do I use?")
    assert thread(offer.job) == [("in", "Which gate do I use?")]
    assert offer.job in Job.objects.needing_attention()
    desk.notify()
    told = Notification.objects.get(kind="job.text_received")
    assert (told.user, told.subject_id) == (desk.maria, offer.job_id)
    assert threads.recipients(offer.job) == [desk.ann], "they can be answered"
    assert Offer.objects.get(pk=offer.pk).status == "pending"


def test_repeated_processing_records_text_once(desk):
    job = desk.assigned()
    text = desk.texts("Running late")
    Text.objects.filter(pk=text.pk).update(handled_at=None)
    inbound.process_text(text.pk)
    assert thread(job) == [("in", "Running late")]
    assert Event.objects.filter(kind="job.text_received").count() == 1


def test_text_with_several_jobs_is_on_each_and_notifies_once(desk):
    first, second = desk.assigned(), desk.assigned()
    desk.sent()
    desk.texts("I can't find the place")
    assert thread(first) == thread(second) == [("in", "I can't find the place")]
    desk.notify()
    told = Notification.objects.get(kind="job.text_received")
    assert told.subject_id == second.pk, "the job that was texted last"
    assert f"Also on job {first.pk}" in told.body


def test_text_from_technician_without_jobs_is_no_thread(desk):
    desk.texts("Hello")
    assert not JobText.objects.exists()
    desk.texts("1")
    assert desk.replies() == ["You have no job offer to answer."]


def test_dispatcher_answers_by_text_and_attention_ends(desk):
    job = desk.assigned()
    desk.texts("Which door?")
    answer = desk.api.post(f"jobs/{job.pk}/texts/", {"body": "The blue one in the back."})
    assert answer.status_code == 201, answer.content
    assert answer.json()["direction"] == "out"
    assert answer.json()["technician"]["name"] == "Ann"
    text = Text.objects.get(purpose="thread")
    assert (text.body, str(text.to_phone)) == ("The blue one in the back.", str(desk.ann.phone))
    assert job not in Job.objects.needing_attention()
    said = [entry.text for entry in timeline.load_timeline(job)]
    assert "Maria Lopez texted Ann: “The blue one in the back.”" in said
    listed = desk.api.get(f"jobs/{job.pk}/texts/").json()
    assert [(row["direction"], row["body"]) for row in listed] == [
        ("in", "Which door?"), ("out", "The blue one in the back."),
    ]  # fmt: skip
    threads.send(job.pk, "And ring twice.", actor=MARIA)
    assert Text.objects.filter(purpose="thread").count() == 2


def test_list_of_very_many_texts_is_that_of_the_last_ones(desk):
    job = desk.assigned()
    texts = Text.objects.bulk_create(
        Text(
            organization=desk.organization, direction="in", account=desk.number.account, number=desk.number,
            to_phone=str(desk.number.phone), from_phone=str(desk.ann.phone), body=f"Text {number}",
            status="received", sid=f"SM-many-{number}", not_after=clock.now(),
        )
        for number in range(timeline.MAX_ENTRIES + 5)
    )  # fmt: skip
    JobText.objects.bulk_create(
        JobText(organization=desk.organization, job=job, text=text, technician=desk.ann) for text in texts
    )
    listed = desk.api.get(f"jobs/{job.pk}/texts/").json()
    assert (len(listed), listed[0]["body"]) == (timeline.MAX_ENTRIES, "Text 5")


def test_text_can_be_marked_as_needing_no_reply(desk):
    job = desk.assigned()
    desk.texts("Almost there")
    assert desk.api.post(f"jobs/{job.pk}/texts/handled/", {}).json() == {"handled": 1}
    assert job not in Job.objects.needing_attention()
    assert desk.api.post(f"jobs/{job.pk}/texts/handled/", {}).json() == {"handled": 0}


def test_composing_to_an_opted_out_phone_is_refused(desk):
    job = desk.assigned()
    OptOut.objects.create(organization=desk.organization, phone=desk.ann.phone)
    answer = desk.api.post(f"jobs/{job.pk}/texts/", {"body": "Where are you?"})
    assert answer.status_code == 409
    assert "Ann has opted out of texts. Call (602) " in answer.json()["errors"][0]["detail"]
    with pytest.raises(Conflict):
        threads.send(job.pk, "Where are you?", actor=MARIA)
    assert not Text.objects.filter(purpose="thread").exists()
    assert desk.api.post(f"jobs/{job.pk}/texts/", {"body": " "}).status_code == 400


def test_composing_needs_a_number_and_somebody_to_text(desk):
    job = desk.assigned()
    desk.number.sends_texts = False
    desk.number.save()
    with pytest.raises(Conflict, match="No number may send texts"):
        threads.send(job.pk, "Hello", actor=MARIA)
    lonely = factories.technician(desk.organization, "Zoe", is_active=False)
    with pytest.raises(Conflict, match="You can't text this technician here"):
        threads.send(job.pk, "Hello", technician_id=lonely.pk, actor=MARIA)


def test_undelivered_answer_is_reported(desk):
    job = desk.assigned()
    row = threads.send(job.pk, "Where are you?", actor=MARIA)
    text = row.text
    Text.objects.filter(pk=text.pk).update(status="undelivered", error_code="30003", ended_at=clock.now())
    text.refresh_from_db()
    for _ in range(2):
        threads.report_delivery(text)
    assert Event.objects.filter(kind="job.text_failed").count() == 1
    desk.notify()
    told = Notification.objects.get(kind="job.text_failed")
    assert told.title == f"Your text to Ann about job {job.pk} was not delivered"


@pytest.mark.parametrize("word", ["Cancel", "STOP", "end", "Quit."])
def test_stop_words_opt_out_and_alert_dispatchers(desk, word):
    job = desk.assigned()
    text = desk.texts(word)
    assert OptOut.objects.filter(phone=desk.ann.phone).exists()
    desk.notify()
    alert = Alert.objects.get(kind="technician.may_not_come")
    assert alert.title == f"Ann texted “{word}”, opted out of texts, and may not come"
    assert f"Job {job.pk}: Water heater repair" in alert.body
    assert desk.ann.phone.as_national in alert.body
    assert thread(job) == [("in", word)]
    Text.objects.filter(pk=text.pk).update(handled_at=None)
    inbound.process_text(text.pk)
    assert Event.objects.filter(kind="technician.may_not_come").count() == 1


def test_stop_from_technician_without_jobs_is_a_toast(desk):
    desk.texts("STOP")
    desk.notify()
    assert not Alert.objects.exists()
    assert Notification.objects.get(kind="technician.opted_out").title == "Ann opted out of texts"


def test_ok_for_one_job_does_not_accept_another(desk):
    first = desk.assigned()
    desk.sent()  # the address of the first job
    offer = desk.offered()
    desk.texts("OK")
    offer.refresh_from_db()
    assert offer.status == "pending"
    assert desk.replies() == ["Reply 1 to accept the job or 2 to decline it."]
    assert thread(first) == thread(offer.job) == [("in", "OK")]
    desk.texts("1")
    offer.refresh_from_db()
    assert offer.status == "accepted"


def test_ok_to_the_only_text_accepts(desk):
    offer = desk.offered()
    desk.texts("Ok!")
    offer.refresh_from_db()
    assert offer.status == "accepted"
    assert not JobText.objects.exists()


def test_ok_after_an_answered_text_accepts(desk):
    desk.assigned()
    desk.sent()
    clock.travel(60)
    desk.texts("Thanks")
    desk.sent()
    clock.travel(60)
    offer = desk.offered()
    desk.texts("ok")
    offer.refresh_from_db()
    assert offer.status == "accepted"


def test_thanks_needs_no_attention(desk):
    job = desk.assigned()
    desk.sent()
    desk.texts("OK")
    assert thread(job) == [("in", "OK")]
    assert job not in Job.objects.needing_attention()


def test_old_jobs_get_no_texts(desk):
    job = desk.assigned()
    services.complete(job.pk, actor=MARIA)
    clock.travel(timedelta(minutes=5).total_seconds())
    desk.texts("Thank you")
    assert thread(job) == []


def test_answer_on_one_job_is_an_event_of_the_other_jobs_with_the_text(desk):
    first, second = desk.assigned(), desk.assigned(customer_phone="+16025550199")
    desk.texts("Running late, both of them")
    threads.send(first.pk, "Thank you", actor=MARIA)
    assert not JobText.objects.filter(handled_at=None).exists()
    assert Event.objects.filter(kind="job.texts_handled").values_list("subject_id", flat=True).get() == second.pk
