"""Customers are informed by text: once per job and kind, only of what is still true, never at a job's cost.

"Who is coming" is sent once per technician.
"""

from __future__ import annotations

from typing import Any

import pytest
from django.db import IntegrityError, transaction

from dispatch.capacity.models import OutboundNumber
from dispatch.core import clock
from dispatch.core.models import Event
from dispatch.jobs import services
from dispatch.jobs.models import CustomerText, CustomerTextKind, CustomerTextPolicy, Job
from dispatch.jobs.rules import customer_phrases
from dispatch.jobs.services import Correction, customer_texts
from dispatch.technicians.models import Technician
from dispatch.telephony import services as telephony
from dispatch.telephony.models import OptOut, Text
from dispatch.telephony.services import sms
from tests.harness.customer_texts import ALL, DANA, Shop, body, story, texts
from tests.harness.jobs import MARIA, Floor
from tests.jobs.test_answer_channels import link_in, tell_provider
from tests.jobs.test_races import at_once
from tests.phones import answer
from tests.support import factories

pytestmark = pytest.mark.django_db


@pytest.fixture
def shop() -> Shop:
    return Shop(**ALL)


# --- what is sent -----------------------------------------------------------------------------------------------


def test_customer_is_informed_from_request_to_end(shop):
    job = shop.assign(shop.job())
    services.report_on_the_way(job.pk, actor=MARIA, eta_minutes=20)
    shop.sent()
    services.complete(job.pk, actor=MARIA)
    assert [kind for kind, _ in texts(job)] == ["received", "assigned", "on_the_way", "completed"]
    received = body(job, "received")
    assert received.startswith("Copper State Plumbing: we received your request: Water heater repair.")
    assert received.endswith("Reply STOP to end these texts.")
    assert "Ann is coming" in body(job, "assigned")
    assert "STOP" not in body(job, "assigned")
    eta = customer_phrases.told_time(Job.objects.get(pk=job.pk).eta_at, "America/Phoenix")
    assert f"Ann is on the way and should arrive at about {eta}" in body(job, "on_the_way")
    assert "the work is done" in body(job, "completed")
    assert all("/s/" in link_in(text.body) for text in Text.objects.filter(purpose="customer"))
    assert "Dispatch texted the customer that a technician is coming" in story(job)


@pytest.mark.parametrize("choice", [None, {}, {"sends_cancelled": True}])
def test_no_text_is_sent_unless_the_organization_wants_it(choice):
    shop = Shop(**(choice or {}))
    if choice is None:
        shop.policy.delete()
    job = shop.assign(shop.job())
    services.complete(job.pk, actor=MARIA)
    assert texts(job) == []
    assert not CustomerText.objects.exists()


def test_sender_name_and_contact_phone_of_the_organization_are_used():
    shop = Shop(**ALL, sender_name="Copper", contact_phone="+16025550100")
    job = shop.job()
    services.cancel(job.pk, "mistake", actor=MARIA)
    said = body(job, "cancelled")
    assert said.startswith("Copper: your request was canceled")
    assert "call (602) 555-0100" in said


def test_texts_carry_nothing_that_a_customer_entered(shop):
    evil = "https://evil.example/pay"
    job = shop.assign(shop.job(customer_name=f"Pay at {evil}", address=f"1 Elm St {evil} 85003", notes=evil))
    services.cancel(job.pk, f"see {evil}", actor=MARIA)
    said = list(Text.objects.filter(purpose="customer").values_list("body", flat=True))
    assert said
    assert not [one for one in said if "evil" in one]
    to_technician = Text.objects.filter(purpose__in=("job", "job_news")).values_list("body", flat=True)
    assert to_technician
    assert not [one for one in to_technician if "evil.example" in one or "//evil" in one]


def test_merged_duplicate_is_not_called_cancelled(shop):
    shop.job()
    double = shop.job()
    services.merge_duplicate(double.pk, actor=MARIA)
    assert [kind for kind, _ in texts(double)] == ["received"]


# --- once -------------------------------------------------------------------------------------------------------


def test_repeated_change_sends_no_second_text(shop):
    job = shop.assign(shop.job())
    shop.sent()
    services.complete(job.pk, actor=MARIA)
    shop.sent()
    services.reopen(job.pk, actor=MARIA)
    services.complete(job.pk, actor=MARIA)
    services.reopen(job.pk, actor=MARIA)
    assert [kind for kind, _ in texts(job)] == ["received", "assigned", "completed"]


def test_reassignment_names_the_technician_who_comes_instead(shop):
    job = shop.assign(shop.job())
    shop.sent()
    shop.assign(job, shop.bob)
    assert [kind for kind, _ in texts(job)] == ["received", "assigned", "assigned"]
    assert "Bob is coming instead of Ann for your request: Water heater repair." in body(job, "assigned")
    assert may_leave(job, "assigned")
    shop.sent()
    carl = factories.technician(shop.organization, "Carl Diaz", max_open_jobs=5)
    shop.assign(job, carl)
    assert "Carl is coming instead of Bob" in body(job, "assigned")


def test_technician_who_gets_the_job_again_is_not_announced_again(shop):
    job = shop.assign(shop.job())
    shop.sent()
    for technician in (shop.bob, shop.ann, shop.bob):
        shop.assign(job, technician)
        shop.sent()
    assert [kind for kind, _ in texts(job)] == ["received", "assigned", "assigned"]
    assert CustomerText.objects.filter(job=job, kind="assigned").count() == 2


def test_technician_who_was_never_announced_is_not_named_in_the_next_text(shop):
    job = shop.assign(shop.job())
    shop.assign(job, shop.bob)
    assert "Bob is coming for your request" in body(job, "assigned")
    assert not may_leave(job, "assigned", shop.ann)


def test_undelivered_announcement_is_not_named_in_the_next_text(shop):
    job = shop.assign(shop.job())
    shop.sent()
    Text.objects.filter(body__contains="Ann is coming").update(status="undelivered", error_code="30008")
    shop.assign(job, shop.bob)
    assert "Bob is coming for your request" in body(job, "assigned")


def test_reassignment_between_technicians_of_one_first_name_reads_plainly(shop):
    job = shop.assign(shop.job())
    shop.sent()
    shop.assign(job, factories.technician(shop.organization, "Ann Marsh", max_open_jobs=5))
    assert "Ann is coming for your request" in body(job, "assigned")


def test_announcement_of_a_reassigned_job_is_withdrawn_when_it_is_untrue(shop):
    job = shop.assign(shop.job())
    shop.sent()
    shop.assign(job, shop.bob)
    services.cannot_make_it(job.pk, actor=MARIA)
    assert texts(job) == [("received", "delivered"), ("assigned", "delivered"), ("assigned", "canceled")]
    assert not may_leave(job, "assigned")


@pytest.mark.parametrize("fields", [{"kind": "received"}, {"kind": "assigned", "technician": "ann"}])
def test_constraint_forbids_a_second_row_of_a_kind(shop, fields):
    job = shop.assign(shop.job())
    if "technician" in fields:
        fields = {**fields, "technician": shop.ann}
    with pytest.raises(IntegrityError, match="one_customer_text_per"), transaction.atomic():
        CustomerText.objects.create(organization=shop.organization, job=job, **fields)


def test_constraint_requires_the_technician_only_of_who_is_coming(shop):
    job = shop.job()
    for fields in ({"kind": "assigned"}, {"kind": "completed", "technician": shop.ann}):
        with pytest.raises(IntegrityError, match="customer_text_names_who"), transaction.atomic():
            CustomerText.objects.create(organization=shop.organization, job=job, **fields)


def test_text_that_has_not_left_is_replaced_by_the_true_one(shop):
    job = shop.assign(shop.job())
    shop.assign(job, shop.bob)
    assert texts(job) == [("received", "created"), ("assigned", "canceled"), ("assigned", "created")]
    assert "Bob is coming" in body(job, "assigned")
    shop.assign(job, shop.ann)
    assert texts(job)[-2:] == [("assigned", "canceled"), ("assigned", "created")]
    assert "Ann is coming" in body(job, "assigned")
    assert CustomerText.objects.get(job=job, kind="assigned", technician=shop.ann).attempt == 2


@pytest.mark.django_db(transaction=True)
def test_two_cancellations_at_once_send_one_text(shop):
    job = shop.assign(shop.job())
    shop.sent()
    at_once(*[lambda: services.cancel(job.pk, "mistake", actor=MARIA)] * 3)
    assert [kind for kind, _ in texts(job)].count("cancelled") == 1
    assert Event.objects.filter(kind="job.cancelled").count() == 1


# --- still true -------------------------------------------------------------------------------------------------


def may_leave(job: Job, kind: str, technician: Technician | None = None) -> bool:
    rows = CustomerText.objects.filter(job=job, kind=kind, text_id__isnull=False)
    row = (rows.filter(technician=technician) if technician else rows).latest("text_id")
    return customer_texts.is_current(Text.objects.get(pk=row.text_id))


def test_waiting_texts_are_withdrawn_when_the_job_is_cancelled(shop):
    job = shop.assign(shop.job())
    services.report_on_the_way(job.pk, actor=MARIA, eta_minutes=20)
    services.cancel(job.pk, "mistake", actor=MARIA)
    assert texts(job) == [
        ("received", "canceled"), ("assigned", "canceled"), ("on_the_way", "canceled"), ("cancelled", "created"),
    ]  # fmt: skip


def test_cancellation_is_withdrawn_when_the_job_is_dispatched_again(shop):
    job = shop.job()
    services.cancel(job.pk, "mistake", actor=MARIA)
    services.dispatch_again(job.pk, actor=MARIA)
    assert texts(job)[-1] == ("cancelled", "canceled")


def test_text_is_compared_with_the_job_immediately_before_it_leaves(shop):
    job = shop.assign(shop.job())
    assert may_leave(job, "received")
    assert may_leave(job, "assigned")
    Job.objects.filter(pk=job.pk).update(technician=shop.bob)
    assert not may_leave(job, "assigned")
    Job.objects.filter(pk=job.pk).update(technician=shop.ann, started_at=clock.now())
    assert not may_leave(job, "assigned")
    Job.objects.filter(pk=job.pk).update(started_at=None, customer_phone="+16025550199")
    assert not may_leave(job, "assigned")
    Job.objects.filter(pk=job.pk).update(customer_phone=DANA)
    assert may_leave(job, "assigned")
    CustomerTextPolicy.objects.update(sends_assigned=False)
    assert not may_leave(job, "assigned")


def test_next_text_goes_to_the_corrected_phone(shop):
    job = shop.assign(shop.job())
    services.correct(job.pk, actor=MARIA, correction=Correction(), customer_phone="+16025550199")
    services.report_on_the_way(job.pk, actor=MARIA)
    row = CustomerText.objects.get(job=job, kind="on_the_way")
    assert str(Text.objects.get(pk=row.text_id).to_phone) == "+16025550199"
    to_wrong = Text.objects.filter(purpose="customer", to_phone=DANA)
    assert [customer_texts.is_current(text) for text in to_wrong] == [False, False]


# --- impossible -------------------------------------------------------------------------------------------------


def test_opted_out_customer_gets_nothing_and_the_history_says_so(shop):
    job = shop.job()
    telephony.opt_out(shop.organization.pk, DANA)
    shop.assign(job)
    assert texts(job) == [("received", "canceled")]
    assert Job.objects.get(pk=job.pk).status == "assigned"
    said = "Dispatch could not text the customer that a technician is coming: opted out of texts"
    assert said in story(job)


def test_job_goes_on_without_a_number_that_sends_texts(shop):
    OutboundNumber.objects.update(sends_texts=False)
    job = shop.assign(shop.job())
    services.complete(job.pk, actor=MARIA)
    assert Job.objects.get(pk=job.pk).status == "completed"
    assert "Dispatch could not text the customer that the work is done: no number may send texts" in story(job)


def test_landline_is_not_texted_again(shop):
    job = shop.job()
    now = clock.now()
    Text.objects.filter(purpose="customer").update(
        status="undelivered", error_code="30006", requested_at=now, ended_at=now
    )
    shop.assign(job)
    assert texts(job) == [("received", "undelivered")]
    assert any("the phone can't receive texts (error 30006)" in line for line in story(job))
    clock.travel(31 * 86_400)
    services.complete(job.pk, actor=MARIA)
    assert texts(job)[-1] == ("completed", "created"), "the number may belong to a mobile phone by now"


def test_failure_of_the_carrier_does_not_forbid_the_next_text(shop):
    job = shop.job()
    now = clock.now()
    Text.objects.update(status="undelivered", error_code="30008", requested_at=now, ended_at=now)
    shop.assign(job)
    assert texts(job)[-1] == ("assigned", "created")


def test_undelivered_text_is_in_the_history_once(shop):
    job = shop.job()
    text = Text.objects.get(purpose="customer")
    Text.objects.filter(pk=text.pk).update(status="undelivered", error_code="30003")
    text.refresh_from_db()
    for _ in range(2):
        customer_texts.report_delivery(text)
    assert Event.objects.filter(kind="job.customer_text_failed", subject_id=job.pk).count() == 1


def test_unexpected_error_never_stops_the_job(shop, monkeypatch):
    def fail(*args: Any, **kwargs: Any) -> None:
        raise RuntimeError("a defect")

    job = shop.job()
    monkeypatch.setattr(customer_texts, "_create_text", fail)
    services.cancel(job.pk, "mistake", actor=MARIA)
    assert Job.objects.get(pk=job.pk).status == "cancelled"
    assert any("could not text the customer" in line for line in story(job))
    assert not CustomerText.objects.filter(job=job, kind="cancelled").exists()


# --- with the provider ------------------------------------------------------------------------------------------


@pytest.fixture
def texting(floor: Floor) -> Floor:
    """The floor, whose number may text, and whose customers get all texts."""
    OutboundNumber.objects.filter(pk=floor.number.pk).update(sends_texts=True, texts_per_second=1000)
    floor.number.refresh_from_db()
    tell_provider(floor)
    CustomerTextPolicy.objects.create(organization=floor.organization, **ALL)
    return floor


def to_dana(floor: Floor) -> list[str]:
    return [message["body"] for message in floor.sim.messages(to=DANA)]


def test_texts_reach_the_customer_when_a_technician_accepts(texting):
    (ann,) = texting.crew("Ann")
    texting.phone(ann).will(answer(press="1"))
    job = texting.started()
    texting.send_texts()
    texting.sim.phone(DANA).gets_text("we received your request")
    texting.until(lambda: texting.status(job) == "assigned")
    texting.send_texts()
    texting.sim.phone(DANA).gets_text("Ann is coming")


def test_stale_text_does_not_leave_after_the_cancellation(texting):
    (ann,) = texting.crew("Ann")
    texting.phone(ann).will(answer(press="1"))
    job = texting.started()
    texting.until(lambda: texting.status(job) == "assigned")
    services.cancel(job.pk, "mistake", actor=MARIA)
    Text.objects.filter(purpose="customer", status="canceled").update(status="created", ended_at=None)
    texting.send_texts()
    texting.sim.phone(DANA).gets_text("was canceled")
    assert len(to_dana(texting)) == 1, "only what is true has left"


def test_opt_out_between_writing_and_sending_stops_the_text(texting):
    texting.crew("Ann")
    texting.started()
    OptOut.objects.create(organization=texting.organization, phone=DANA)
    texting.send_texts()
    assert to_dana(texting) == []
    assert Text.objects.get(purpose="customer").status == "canceled"


def test_withdrawing_leaves_a_text_that_is_being_sent_alone(texting, monkeypatch):
    texting.crew("Ann")
    job = texting.started()
    text = Text.objects.get(purpose="customer")
    whole = sms.lock_text

    def claimed_meanwhile(text_id: int, *related: str) -> Text:
        Text.objects.filter(pk=text_id, status="created").update(status="requesting", requested_at=clock.now())
        return whole(text_id, *related)

    monkeypatch.setattr(sms, "lock_text", claimed_meanwhile)
    with transaction.atomic():
        customer_texts.withdraw(job, CustomerTextKind.RECEIVED)
    text.refresh_from_db()
    assert text.status == "requesting", "it leaves, so nobody may say that it did not"
