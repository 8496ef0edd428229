"""A corrected phone of a customer: the wrong number's link ends, and the right number gets its own."""

from __future__ import annotations

import pytest
from django.conf import settings as project
from django.core.signing import Signer
from django.test import Client

from dispatch.core import clock
from dispatch.jobs import services, signed_links
from dispatch.jobs.models import CustomerText, Job
from dispatch.jobs.services import Correction, customer_texts
from dispatch.telephony.models import Text
from tests.harness.customer_texts import ALL, DANA, Shop, story
from tests.harness.jobs import MARIA
from tests.jobs.test_answer_channels import link_in
from tests.jobs.test_customer_page import Page, correction

pytestmark = pytest.mark.django_db

RIGHT = "+16025550199"


@pytest.fixture
def shop() -> Shop:
    return Shop(**ALL)


def correct(job: Job, phone: str = RIGHT) -> None:
    services.correct(job.pk, actor=MARIA, correction=Correction(), customer_phone=phone)


def texts_to(phone: str) -> list[Text]:
    return list(Text.objects.filter(purpose="customer", to_phone=phone).order_by("pk"))


def path_in(text: Text) -> str:
    return link_in(text.body).removeprefix(project.PUBLIC_BASE_URL)


# --- the link ----------------------------------------------------------------------------------------------------


def test_corrected_phone_ends_the_link_of_the_wrong_number(shop):
    job = shop.assign(shop.job())
    shop.sent()
    wrong = path_in(texts_to(DANA)[0])
    assert Client().get(wrong).status_code == 200
    correct(job)
    for answer in (Client().get(wrong), Client().post(wrong, {"do": "cancel"})):
        assert answer.status_code == 410
        said = answer.content.decode()
        assert "This link has expired" in said
        assert "Washington" not in said
    assert Job.objects.get(pk=job.pk).status == "assigned"
    assert Client().get(path_in(texts_to(RIGHT)[0])).status_code == 200


def test_customer_who_corrects_the_phone_goes_on_with_the_new_link(shop):
    job = shop.assign(shop.job())
    page = Page(job)
    done = correction(page, phone="602-555-0199")
    assert done.status_code == 303
    assert "Your request has been updated." in page.browser.get(done["Location"]).content.decode()
    assert page.browser.get(page.path).status_code == 410
    assert done["Location"].partition("?")[0] == path_in(texts_to(RIGHT)[0])


def test_link_stays_when_only_the_address_is_corrected(shop):
    page = Page(shop.assign(shop.job()))
    assert correction(page, address="31 E 5th St, Tempe, AZ 85281").status_code == 303
    assert page.browser.get(page.path).status_code == 200


def test_link_without_the_phone_is_valid_until_the_phone_is_corrected(shop):
    """Earlier releases signed only the id and a time."""
    job = shop.job()
    until = int(clock.now().timestamp())
    path = f"/s/{Signer(salt='dispatch.jobs.status', sep='.').sign(f'{job.submission_id}-{until}')}/"
    assert Client().get(path).status_code == 200
    correct(job)
    assert Client().get(path).status_code == 410


def test_link_outlives_a_change_of_the_secret_key(shop, settings):
    path = signed_links.status_path(shop.job().submission_id)
    settings.SECRET_KEY_FALLBACKS = [settings.SECRET_KEY]
    settings.SECRET_KEY = "another-secret-key-of-sufficient-length-for-the-test"
    assert Client().get(path).status_code == 200


def test_link_says_nothing_of_the_phone(shop):
    path = signed_links.status_path(shop.job().submission_id)
    assert DANA[2:] not in path
    assert path != signed_links.status_path(shop.job(customer_phone=RIGHT).submission_id)


# --- the texts ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ("none", "we received your request"),
        ("assign", "Ann is coming for your request"),
        ("on_the_way", "Ann is on the way"),
        ("arrived", "Ann is coming for your request"),
        ("late", "Ann is running about 20 minutes late"),
        ("late_then_on_the_way", "Ann is on the way"),
        ("started", "we received your request"),
    ],
)
def test_corrected_phone_gets_the_current_news_and_how_to_stop(shop, change, said):
    job = shop.job()
    if change != "none":
        shop.assign(job)
    if change in ("on_the_way", "arrived"):
        services.report_on_the_way(job.pk, actor=MARIA, eta_minutes=20)
    if change in ("late", "late_then_on_the_way"):
        services.report_late(job.pk, 20, actor=MARIA)
    if change == "late_then_on_the_way":
        clock.travel(60)
        services.report_on_the_way(job.pk, actor=MARIA, eta_minutes=10)
    if change == "arrived":
        clock.travel(1800)
    if change == "started":
        services.mark_started(job.pk, actor=MARIA)
    shop.sent()
    correct(job)
    (text,) = texts_to(RIGHT)
    assert said in text.body
    assert text.body.endswith("Reply STOP to end these texts.")
    assert customer_texts.is_current(text)


def test_waiting_texts_to_the_wrong_number_are_withdrawn(shop):
    job = shop.assign(shop.job())
    correct(job)
    assert {text.status for text in texts_to(DANA)} == {"canceled"}
    assert [text.status for text in texts_to(RIGHT)] == ["created"]


def test_corrected_phone_gets_each_later_kind_once(shop):
    job = shop.assign(shop.job())
    shop.sent()
    correct(job)
    shop.sent()
    services.report_on_the_way(job.pk, actor=MARIA)
    shop.sent()
    services.report_on_the_way(job.pk, actor=MARIA, eta_minutes=20)
    services.complete(job.pk, actor=MARIA)
    kinds = {row.pk: row.kind for row in CustomerText.objects.filter(job=job)}
    assert [kinds[text.subject_id] for text in texts_to(RIGHT)] == ["assigned", "on_the_way", "completed"]


def test_reassignment_names_nobody_whom_only_the_wrong_number_expects(shop):
    job = shop.assign(shop.job())
    shop.sent()
    shop.policy.sends_assigned = False
    shop.policy.save()
    correct(job)
    shop.policy.sends_assigned = True
    shop.policy.save()
    shop.assign(job, shop.bob)
    assert "Bob is coming for your request" in texts_to(RIGHT)[-1].body


def test_failure_at_the_corrected_phone_is_reported_again(shop):
    job = shop.job()
    for phone in (DANA, RIGHT):
        if phone == RIGHT:
            correct(job)
        (text,) = texts_to(phone)
        Text.objects.filter(pk=text.pk).update(status="undelivered", error_code="30003")
        text.refresh_from_db()
        customer_texts.report_delivery(text)
    failures = [line for line in story(job) if "could not text the customer" in line]
    assert len(failures) == 2


@pytest.mark.parametrize("choice", [{}, {"sends_completed": True}])
def test_organization_that_wants_no_such_text_sends_none(choice):
    shop = Shop(**choice)
    correct(shop.job())
    assert texts_to(RIGHT) == []


def test_one_request_texts_a_limited_number_of_phones(shop):
    page = Page(shop.job())
    job = page.job
    phones = [f"+1602555010{n}" for n in range(1, 5)]
    for phone in phones:
        shop.sent()
        page = Page(job)
        assert correction(page, phone=phone).status_code == 303
    assert [len(texts_to(phone)) for phone in phones] == [1, 1, 0, 0]
    assert any("the phone was corrected too often" in line for line in story(job))
    shop.sent()
    correct(job, phones[0])
    assert len(texts_to(phones[0])) == 2, "a phone that was texted before is no new one"
