"""What customers text back, who chooses the texts, and what erasure leaves of them."""

from __future__ import annotations

import pytest
from django.test import Client
from django.urls import reverse

from dispatch.core.events import Actor
from dispatch.core.models import Event
from dispatch.core.privacy import personal_data
from dispatch.core.privacy.personal_data import DataSubject
from dispatch.jobs import services
from dispatch.jobs.models import Job
from dispatch.jobs.services import Correction
from dispatch.telephony.models import OptOut, Text
from dispatch.telephony.services import inbound
from tests.harness.customer_texts import ALL, DANA, Shop, story
from tests.harness.jobs import MARIA
from tests.jobs.test_answer_channels import link_in
from tests.support import factories

pytestmark = pytest.mark.django_db


@pytest.fixture
def shop() -> Shop:
    return Shop(**ALL)


# --- what customers text ----------------------------------------------------------------------------------------


def test_customer_text_notifies_dispatchers_and_is_answered_with_the_link(shop):
    job = shop.job()
    text = shop.replies("The gate code is 1234")
    Text.objects.filter(pk=text.pk).update(handled_at=None)
    inbound.process_text(text.pk)
    assert story(job).count("The customer texted: “The gate code is 1234”") == 1
    assert shop.notified("job.customer_replied") == [f"The customer of job {job.pk} texted"]
    (reply,) = Text.objects.filter(purpose="reply").values_list("body", flat=True)
    assert "/s/" in link_in(reply)
    shop.replies("Hello?")
    assert Text.objects.filter(purpose="reply").count() == 1, "one answer an hour"


def test_customer_who_texts_cancel_opts_out_and_dispatchers_know(shop):
    job = shop.job()
    shop.replies("Cancel")
    assert OptOut.objects.filter(phone=DANA).exists()
    assert Job.objects.get(pk=job.pk).status == "dispatching"
    assert shop.notified("job.customer_opted_out") == [
        f"The customer of job {job.pk} texted “Cancel” and opted out of texts"
    ]


def test_help_returns_the_link_only_to_the_customer(shop):
    shop.replies("HELP")
    assert "/s/" not in Text.objects.get(purpose="reply").body
    shop.job()
    shop.replies("HELP")
    assert "/s/" in Text.objects.filter(purpose="reply").latest("pk").body


# --- settings and personal data ---------------------------------------------------------------------------------


def test_admin_chooses_the_texts_and_the_change_is_recorded(shop):
    boss = Client()
    boss.force_login(factories.admin(shop.organization), backend="django.contrib.auth.backends.ModelBackend")
    address = reverse("admin:jobs_customertextpolicy_change", args=[shop.policy.pk])
    assert "Text the customer" in boss.get(address).content.decode()
    data = {"organization": shop.organization.pk, "sends_assigned": "on", "sender_name": "Copper"}
    assert boss.post(address, data).status_code == 302
    shop.policy.refresh_from_db()
    assert (shop.policy.sends_assigned, shop.policy.sends_received) == (True, False)
    changes = Event.objects.get(kind="customer_texts.changed").data["changes"]
    assert changes["sender_name"] == "Copper"


def test_erased_customer_leaves_no_text(shop):
    job = shop.assign(shop.job())
    shop.sent()
    shop.replies("I live at 9 Elm Street")
    services.correct(job.pk, actor=MARIA, correction=Correction(), customer_phone="+16025550199")
    services.complete(job.pk, actor=MARIA)
    shop.sent()
    person = DataSubject(shop.organization.pk, phone="+16025550199")
    exported = personal_data.export_person(person, actor=Actor("user", 1, "Ana"))
    assert len(exported["texts_to_the_customer"]) == 4
    personal_data.erase_person(person, actor=Actor("user", 1, "Ana"))
    for text in Text.objects.filter(purpose="customer"):
        assert (text.body, text.context) == ("", {})
        assert "5550123" not in f"{text.to_phone} {text.from_phone}"
    assert not [line for line in story(job) if "Elm Street" in line]
