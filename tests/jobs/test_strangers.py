"""What strangers can do with a public form, a customer's link, or the token of another organization's account."""

from __future__ import annotations

from urllib.parse import urlsplit

import pytest
from django.test import Client

from dispatch.core import clock
from dispatch.jobs import services, signed_links
from dispatch.jobs.models import Job
from dispatch.jobs.rules.menu import MenuState, Page
from dispatch.jobs.services import customer_texts
from dispatch.jobs.services.sms import prompt_context
from dispatch.telephony.errors import WrongCall
from dispatch.telephony.models import InboundCall, Text
from dispatch.telephony.providers.base import IncomingWebhook
from dispatch.telephony.services import inbound
from notifications.models import Alert, Delivery, Notification
from notifications.rendering import render_text
from tests.harness.call_back import ATTESTED
from tests.harness.customer_texts import ALL, Shop, story, texts
from tests.harness.jobs import MARIA, Floor
from tests.harness.menus import ann_of, calls, gives
from tests.jobs.test_answer_channels import texting  # noqa: F401
from tests.jobs.test_customer_page import Page as CustomerPage
from tests.jobs.test_customer_page import correction
from tests.support import factories

pytestmark = pytest.mark.django_db


@pytest.fixture
def shop() -> Shop:
    return Shop(**ALL)


@pytest.fixture
def crew(texting: Floor) -> Floor:  # noqa: F811
    return texting


# --- somebody else's phone ---------------------------------------------------------------------------------------


def test_phone_gets_a_limited_number_of_texts_a_day(shop, settings):
    settings.CUSTOMER_TEXTS_PER_DAY = 2
    first = shop.job()
    shop.sent()
    services.cancel(first.pk, "mistake", actor=MARIA)
    second = shop.job()
    assert (texts(first), texts(second)) == ([("received", "delivered"), ("cancelled", "created")], [])
    assert any("the phone had too many texts within a day" in line for line in story(second))
    assert texts(shop.job(customer_phone="+16025550124")) == [("received", "created")], "other phones get theirs"
    clock.travel(86_401)
    assert texts(shop.job()) == [("received", "created")]


def test_withdrawn_texts_do_not_count_against_the_limit(shop, settings):
    settings.CUSTOMER_TEXTS_PER_DAY = 2
    services.cancel(shop.job().pk, "mistake", actor=MARIA)  # the first text never left
    assert texts(shop.job()) == [("received", "created")]


def test_technician_whose_phone_a_stranger_entered_answers_as_technician(shop):
    job = shop.assign(shop.job())
    stranger = shop.job(customer_phone=str(shop.ann.phone), customer_name="Mallory")
    assert texts(stranger) == [("received", "created")], "the last text to Ann is one to a customer"
    assert shop.replies("OMW 20", phone=str(shop.ann.phone)).purpose == "offer"
    assert Job.objects.get(pk=job.pk).on_the_way_at is not None
    assert not [line for line in story(stranger) if "OMW" in line]
    shop.replies("HELP", phone=str(shop.ann.phone))
    assert "Your page" in Text.objects.filter(purpose="reply").latest("pk").body


def test_dispatcher_whose_phone_a_stranger_entered_still_acknowledges_alerts(shop):
    shop.maria.phone = "+16025550166"
    shop.maria.save()
    factories.confirm_phone(shop.organization, shop.maria)
    shop.job(lat=40.71, lng=-74.01)
    shop.notified("job.pending")
    notification = Notification.objects.get(kind="job.pending", user=shop.maria)
    sent = {"channel": "sms", "status": "sent", "next_attempt_at": None}
    Delivery.objects.create(organization=shop.organization, notification=notification, **sent)
    stranger = shop.job(customer_phone="+16025550166", customer_name="Mallory")
    assert texts(stranger) == [("received", "created")], "the last text to Maria is one to a customer"
    assert shop.replies("1", phone="+16025550166").purpose == "alert"
    assert Alert.objects.get().status == "acknowledged"


def test_texts_to_dispatchers_contain_no_link_of_a_customer(shop):
    job = shop.job(customer_name="Dana\nhttps://evil.example/pay")
    services.cancel(job.pk, "see https://evil.example/why", actor=customer_texts.CUSTOMER, by="customer")
    shop.notified("job.cancelled")
    said = render_text(Notification.objects.get(kind="job.cancelled", user=shop.maria))
    assert "evil. example/why" in said
    assert "evil.example" not in said
    assert f"?job={job.pk}" in said, "our own link works"


# --- what is entered ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("entered", [{"do": "cancel", "reason": "a\0b"}, {"do": "correct", "address": "a\0b"}])
def test_character_that_cannot_be_stored_is_a_bad_request(shop, entered):
    job = shop.assign(shop.job())
    page = CustomerPage(job)
    page.browser.raise_request_exception = False
    assert page.send(**entered).status_code == 400
    assert page.now().status == "assigned"


def test_technician_who_sends_such_a_character_keeps_the_job(shop):
    job = shop.assign(shop.job())
    browser = Client(raise_request_exception=False)
    path = urlsplit(signed_links.technician_url(shop.ann)).path
    assert browser.post(path, {"do": "cannot", "job": job.pk, "note": "a\0b"}).status_code == 400
    assert Job.objects.get(pk=job.pk).status == "assigned"


def test_markup_and_line_breaks_of_a_customer_stay_text(shop):
    job = shop.assign(shop.job(customer_name="Dana\nCopper State: reply 1"))
    page = CustomerPage(job)
    assert correction(page, address=f"<img src=x> \u202e{factories.TEMPE.address}").status_code == 303
    assert "&lt;img src=x&gt;" in page.says()
    assert "<img" not in page.says()
    context = prompt_context(page.now())
    assert context.customer_name == "Dana, Copper State: reply 1"
    assert "\u202e" not in context.address


# --- calls -------------------------------------------------------------------------------------------------------


def test_key_of_one_call_is_not_one_of_another(crew: Floor) -> None:
    ann, (job,) = ann_of(crew)
    bob = crew.technician("Bob", max_open_jobs=9, km=0.1)
    gives(crew, bob)
    done = calls(crew, ann).pressing("1")
    other = calls(crew, bob)
    other.send(done, expected=403)
    assert crew.status(job) == "assigned"


def test_state_signed_by_another_organization_names_none_of_ours(crew: Floor) -> None:
    """An organization knows the token of its account, so it can sign any state for its number."""
    ann, (job,) = ann_of(crew)
    rival = factories.organization("Rival")
    number = factories.number(rival)
    factories.technician(rival, "Eve", phone=str(ann.phone))
    call = InboundCall.objects.create(
        organization=rival, account=number.account, number=number, sid="CA1", from_phone=str(ann.phone),
        attestation=ATTESTED, purpose="offer",
    )  # fmt: skip
    said = IncomingWebhook("CA1", number.account.account_sid, str(number.phone), str(ann.phone), keys="1")
    version = crew.job(job).version
    for page in (Page.JOB, Page.GIVE_BACK, Page.RESULT):
        _, prompt = inbound.handle_key(call.pk, number, said, "1", 1, str(MenuState(page, job.pk, version)))
        assert "Dana" not in " ".join(prompt.say)
    _, prompt = inbound.handle_key(call.pk, number, said, "1", 3, str(MenuState(Page.LATE, job.pk, version)))
    assert "Dana" not in " ".join(prompt.say)
    ours = calls(crew, ann).row
    with pytest.raises(WrongCall):
        inbound.handle_key(ours.pk, number, said, "1", 1, str(MenuState(Page.JOB, job.pk, version)))
    row = crew.job(job)
    assert (row.status, row.version, row.late_minutes) == ("assigned", version, None)
