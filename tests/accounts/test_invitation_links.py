"""Links for joining and for a new password lead to the site's public address."""

from __future__ import annotations

import re

import pytest
from django.core import mail
from django.urls import reverse

from accounts.models import Organization, User
from tests.support import factories as make
from tests.support.factories import browser

pytestmark = pytest.mark.django_db


@pytest.fixture
def organization() -> Organization:
    return make.organization("Ours")


@pytest.fixture
def admin(organization: Organization) -> User:
    return make.admin(organization, "Grace")


OTHER_HOST = {"HTTP_HOST": "internal.example"}


@pytest.mark.parametrize("mails", [True, False])
def test_links_lead_to_the_public_address_from_any_host(organization, admin, settings, mails):
    settings.ALLOWED_HOSTS, settings.PUBLIC_BASE_URL = ["*"], "https://dispatch.example.com"
    settings.EMAIL_URL = "smtp://mail.example.com" if mails else ""
    pages = browser(admin)
    person = make.dispatcher(organization, "Dana")
    new = {"email": "new@example.com", "name": "New", "role": "dispatcher"}
    made = pages.post("/api/v1/members/", new, content_type="application/json", **OTHER_HOST)
    answers = [made]
    for address in (
        reverse("admin:accounts_membership_invite_again", args=[made.json()["id"]]),
        reverse("admin:accounts_user_new_password_link", args=[person.pk]),
    ):
        answers.append(pages.post(address, {"_form_submitted": "1"}, **OTHER_HOST))
    form = {"organization": organization.pk, **new, "email": "another@example.com", "phone": ""}
    answers.append(pages.post(reverse("admin:accounts_membership_add"), form, **OTHER_HOST))
    texts = [str(sent.body) for sent in mail.outbox] if mails else [page.content.decode() for page in answers]
    assert len(texts) == 4
    for text in texts:
        assert re.search(r"https://dispatch\.example\.com/(join|set-password)/", text)
        assert "internal.example" not in text
