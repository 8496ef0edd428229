"""Erasing finds every copy of a person in the database, wherever a form can put it."""

from __future__ import annotations

import json
from typing import Any

import pytest
from django.contrib.admin.models import LogEntry
from django.contrib.contenttypes.models import ContentType

from dispatch.core import clock, events
from dispatch.core.events import Actor
from dispatch.core.models import FailedEvent, RememberedAnswer
from dispatch.core.privacy import personal_data
from dispatch.core.privacy.personal_data import DataSubject
from dispatch.jobs.models import CustomerText, Job, JobNote, JobText, Offer, Submission
from dispatch.leads.models import DoNotCall, Lead
from dispatch.outbox.models import Attempt, Message, MessageGroup
from dispatch.schedules.models import BulkError, BulkImport, Run, RunReport, Schedule
from dispatch.technicians.models import Technician
from dispatch.telephony.models import Call, CallEvent, InboundCall, OptOut, Text
from notifications.models import Alert, Delivery, Notification
from tests.personal.search import KEPT_ON_LISTS, places_of
from tests.support import factories as make
from tests.support.tenants import Tenant

pytestmark = pytest.mark.django_db
ANA = Actor("user", 1, "Ana")
NAME, ADDRESS = "Wilhelmina Quackenbush", "4711 Saguaro Lane, Phoenix"
PHONE, SPOKEN, EMAIL = "+16025550199", "(602) 555-0199", "wilhelmina@quackenbush.example"
# Of the same person, found through the former.
CORRECTED, OTHER_PHONE, OTHER_EMAIL = "+16025550188", "+16025550177", "w.q@office.example"
WORDS = (NAME, "Quackenbush", ADDRESS, PHONE, SPOKEN, EMAIL, CORRECTED, OTHER_PHONE, OTHER_EMAIL)
EVERYTHING = f"{NAME}, {ADDRESS}, {PHONE}, {SPOKEN}, {EMAIL}"


def text(t: Tenant, purpose: str, subject_id: int, **fields: Any) -> Text:
    row = t.row(Text)
    values = {
        "to_phone": make.phone(),
        "body": EVERYTHING,
        "status": "delivered",
        "ended_at": clock.now(),
        **fields,
    }
    copied = {
        name: getattr(row, name) for name in ("organization", "account", "number", "from_phone", "not_after")
    }
    number = Text.objects.count() + 1
    about = {"purpose": purpose, "subject_id": subject_id, "attempt": number, "sid": f"SM{number}-{t.tag}"}
    return Text.objects.create(**copied | values | about)


def admin_entry(t: Tenant, row: Any) -> None:
    LogEntry.objects.create(
        user=t.admin, content_type=ContentType.objects.get_for_model(type(row)), object_id=str(row.pk),
        object_repr=EVERYTHING[:200], action_flag=2, change_message=EVERYTHING,
    )  # fmt: skip


@pytest.fixture
def ours(made: Tenant) -> Tenant:
    """The person is everywhere, in ended work."""
    now, of = clock.now(), {"organization": made.organization}
    job, submission = made.row(Job), made.row(Submission)
    form = {"name": NAME, "phone": SPOKEN, "email": EMAIL, "where": ADDRESS, "nested": {"again": [EVERYTHING]}}
    customer = {"customer_name": NAME, "address": ADDRESS, "notes": EVERYTHING}
    Submission.objects.filter(pk=submission.pk).update(
        form=form, extra={"email": EMAIL.upper()}, customer_phone=PHONE, last_error=EVERYTHING,
        idempotency_key=EMAIL, **customer,
    )  # fmt: skip
    Job.objects.filter(pk=job.pk).update(
        extra={"email": EMAIL}, customer_phone=CORRECTED, ended_at=now, status="cancelled", pending_reason="",
        waiting_for="", out_of_reach={"note": EVERYTHING}, **customer,
    )  # fmt: skip
    second = Submission.objects.create(
        **of, status="processed", form={"email": OTHER_EMAIL}, customer_name=NAME, customer_phone=PHONE,
        service_type=submission.service_type, extra={"mail": OTHER_EMAIL},
    )  # fmt: skip
    Lead.objects.filter(**of).update(
        phone=OTHER_PHONE, data={"name": NAME, "contact": OTHER_EMAIL}, external_id=EVERYTHING[:120],
        customer="acme", status="finished", finished_at=now, outcome="answered", notes=EVERYTHING,
    )  # fmt: skip
    Text.objects.filter(**of).update(body=EVERYTHING, context={"note": EVERYTHING}, ended_at=now)
    text(made, "job", job.pk)
    text(made, "offer", made.row(Offer).pk)
    delivery = made.row(Delivery)
    text(made, "alert", delivery.pk)
    Delivery.objects.filter(pk=delivery.pk).update(error=f"refused: {PHONE}")
    texted = made.row(CustomerText)
    text(made, "customer", texted.pk, to_phone=PHONE)
    CustomerText.objects.filter(pk=texted.pk).update(reason=f"{PHONE} has opted out")
    answer = text(made, "customer", texted.pk, direction="in", from_phone=CORRECTED, to_phone=make.phone())
    events.append(made.organization.pk, "job.customer_replied", job.pk, actor=Actor("customer"), body=EVERYTHING,
                  text_id=answer.pk)  # fmt: skip
    JobText.objects.get_or_create(
        **of, job=job, text=text(made, "thread", job.pk), technician=made.row(Technician)
    )
    JobNote.objects.filter(**of).update(text=EVERYTHING)
    Call.objects.filter(**of).update(
        to_phone=PHONE,
        ended_at=now,
        status="completed",
        context={"said": EVERYTHING},
        error_message=EVERYTHING[:200],
    )
    CallEvent.objects.filter(**of).update(payload={"To": PHONE, "note": EVERYTHING})
    InboundCall.objects.filter(**of).update(from_phone=OTHER_PHONE, ended_at=now)
    OptOut.objects.filter(**of).update(phone=PHONE)
    DoNotCall.objects.filter(**of).update(phone=PHONE)
    for model in (Alert, Notification):
        model.objects.filter(**of).update(title=f"{NAME}: job needs a dispatcher", body=EVERYTHING)
    payload = {"customer": NAME, "phone": PHONE, "address": ADDRESS, "note": f"line\n{PHONE}"}
    Message.objects.filter(**of).update(
        payload=json.dumps(payload), last_error=EVERYTHING, idempotency_key=EMAIL, ended_at=now
    )
    MessageGroup.objects.filter(**of).update(name=f"customer:{PHONE}")
    Attempt.objects.filter(**of).update(answer=EVERYTHING, error=EVERYTHING, url=f"https://x.example/?to={EMAIL}")
    Schedule.objects.filter(**of).update(
        name=f"Visit {NAME}", payload={"customer_phone": SPOKEN, "at": EVERYTHING}
    )
    Run.objects.filter(**of).update(result={"seen": EVERYTHING}, error=EVERYTHING, ended_at=now)
    RunReport.objects.filter(**of).update(result={"seen": EVERYTHING}, error=EVERYTHING)
    problem = [{"field": "payload", "code": "invalid", "detail": f"{EVERYTHING} is not valid"}]
    BulkError.objects.create(bulk=made.row(BulkImport), row=1, errors=problem)
    RememberedAnswer.objects.create(
        organization_id=made.organization.pk, endpoint="submissions", key="k", body_hash="h", status_code=202,
        body=json.dumps({"name": NAME, "phone": PHONE}),
    )  # fmt: skip
    FailedEvent.objects.create(
        reader="outbox", event_id=-1, xid=0, organization_id=made.organization.pk, kind="job.created", key=PHONE,
        error=f"cannot send {EVERYTHING}",
    )  # fmt: skip
    for row in (job, submission, second, made.row(Lead), made.row(Call), made.row(Text)):
        admin_entry(made, row)
    events.append(made.organization.pk, "submission.received", submission.pk, customer=NAME, phone=PHONE)
    events.append(made.organization.pk, "job.address_changed", job.pk, before=ADDRESS, note=EVERYTHING)
    events.append(made.organization.pk, "api_key.created", 1, name=f"Key for {EMAIL}")
    return made


@pytest.mark.parametrize("named", [{"email": EMAIL}, {"phone": PHONE}, {"email": OTHER_EMAIL}], ids=str)
def test_no_column_of_any_table_has_the_person(ours: Tenant, named: dict[str, str]) -> None:
    before = places_of(WORDS)
    assert len(before) > 45, sorted(before)
    personal_data.erase_person(DataSubject(ours.organization.pk, **named), actor=ANA)
    assert places_of(WORDS) - KEPT_ON_LISTS == set()
    assert personal_data.erase_person(DataSubject(ours.organization.pk, **named), actor=ANA) == {}


def test_export_follows_the_person_too(ours: Tenant) -> None:
    found = personal_data.export_person(DataSubject(ours.organization.pk, email=EMAIL), actor=ANA)
    assert {"submissions", "jobs", "leads", "texts", "inbound_calls", "texts_of_alerts"} <= set(found)
    assert len(found["submissions"]) == 2
    assert OTHER_EMAIL in json.dumps(found["leads"])


def test_other_peoples_rows_are_not_touched(ours: Tenant, theirs: Tenant) -> None:
    """Another customer with the same name, another organization, and a technician whose phone the person gave."""
    namesake = Submission.objects.create(
        organization=ours.organization, status="processed", form={"name": NAME}, customer_name=NAME,
        customer_phone=make.phone(), service_type=ours.row(Submission).service_type, address="1 Elsewhere",
    )  # fmt: skip
    technician = ours.row(Technician)
    name = technician.name
    Technician.objects.filter(pk=technician.pk).update(phone=CORRECTED)
    Submission.objects.filter(organization=theirs.organization).update(customer_phone=PHONE, customer_name=NAME)
    personal_data.erase_person(DataSubject(ours.organization.pk, email=EMAIL), actor=ANA)
    namesake.refresh_from_db()
    technician.refresh_from_db()
    assert (namesake.customer_name, namesake.form) == (NAME, {"name": NAME})
    assert (technician.name, str(technician.phone)) == (name, CORRECTED)
    assert Submission.objects.of(theirs.organization).filter(customer_phone=PHONE, customer_name=NAME).exists()


def test_a_technician_is_erased_with_an_earlier_phone(ours: Tenant) -> None:
    name, phone, earlier = "Thaddeus Umberfield", "+16025550166", "+16025550155"
    technician = ours.row(Technician)
    Technician.objects.filter(pk=technician.pk).update(name=name, phone=phone, live_offer_id=None)
    offer = ours.row(Offer)
    row = text(ours, "offer", offer.pk, to_phone=earlier, body=f"{name}: call {earlier}")
    Call.objects.filter(purpose="offer", subject_id=offer.pk).update(to_phone=earlier)
    events.append(ours.organization.pk, "text.sent", row.pk, to=earlier)
    for model in (Alert, Notification):
        model.objects.filter(organization=ours.organization).update(
            title=f"{name} does not answer", subject_type="technician", subject_id=technician.pk
        )
    text(ours, "alert", ours.row(Delivery).pk, body=f"{name} does not answer")
    technician.name = name
    LogEntry.objects.create(
        user=ours.admin, content_type=ContentType.objects.get_for_model(Technician), object_id=str(technician.pk),
        object_repr=name, action_flag=2, change_message=f"Phone was {earlier}.",
    )  # fmt: skip
    words = (name, phone, earlier)
    assert len(places_of(words)) >= 10, sorted(places_of(words))
    person = DataSubject(ours.organization.pk, phone=phone, technician_id=technician.pk)
    personal_data.erase_person(person, actor=ANA)
    assert places_of(words) == set()
