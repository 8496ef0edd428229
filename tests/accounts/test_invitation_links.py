"""Links for joining and for a new password lead to the site's public address, and their number is limited."""

from __future__ import annotations

import re
from typing import Any

import pytest
from django.core import mail
from django.urls import reverse

from accounts import invitations
from accounts.auth.throttling import Rate
from accounts.models import User
from dispatch.core import clock
from dispatch.core.events import SYSTEM
from dispatch.core.models import Event
from dispatch.core.privacy import personal_data
from dispatch.core.privacy.personal_data import DataSubject
from tests.accounts.test_invitations import admin, mailing, organization
from tests.accounts.test_members import SENT
from tests.api.client import Api
from tests.support import factories as make
from tests.support.factories import browser

__all__ = ["admin", "mailing", "organization"]

pytestmark = pytest.mark.django_db


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


# --- limits -----------------------------------------------------------------------------------------------------

TO_ONE = invitations.RECIPIENT_RATE.limit
VICTIM = "victim@example.com"


def invite(admin: User, email: str) -> Any:
    return Api(user=admin).post("members/", {"email": email, "name": "New", "role": "dispatcher"})


def test_one_person_gets_only_a_few_invitations_an_hour(admin, mailing):
    api = Api(user=admin)
    member = invite(admin, VICTIM).json()
    again = f"members/{member['id']}/invite/"
    codes = [api.post(again).status_code for _ in range(TO_ONE)]
    assert codes == [200] * (TO_ONE - 1) + [429]
    assert len(mail.outbox) == TO_ONE
    refused = api.post(again)
    assert "Too many invitations" in refused.json()["detail"]
    assert int(refused["Retry-After"]) > 60
    page = browser(admin)
    assert (
        page.post(reverse("admin:accounts_membership_invite_again", args=[member["id"]]), SENT).status_code == 200
    )
    assert "Too many invitations" in page.get(reverse("admin:accounts_membership_changelist")).content.decode()
    assert invite(admin, "other@example.com").status_code == 201
    other_organization = make.admin(make.organization("Theirs"))
    assert invite(other_organization, VICTIM).status_code == 201, "the limit is the organization's"
    assert len(mail.outbox) == TO_ONE + 2
    clock.travel(3600)
    assert api.post(again).status_code == 200


def test_withdrawing_an_invitation_does_not_reset_the_limit(organization, admin, mailing):
    for _ in range(TO_ONE):
        member = invite(admin, VICTIM).json()
        person = DataSubject(organization.pk, invitation_id=member["id"])
        personal_data.erase_person(person, actor=SYSTEM)
        assert not User.objects.filter(email=VICTIM).exists()
    assert invite(admin, VICTIM).status_code == 429
    assert not User.objects.filter(email=VICTIM).exists(), "nothing is kept of a refused invitation"
    form = {"organization": organization.pk, "email": VICTIM, "name": "V", "phone": "", "role": "dispatcher"}
    shown = browser(admin).post(reverse("admin:accounts_membership_add"), form, follow=True)
    assert "Too many invitations" in shown.content.decode()
    assert len(mail.outbox) == TO_ONE


def test_an_organization_mails_only_a_limited_number(organization, admin, mailing, monkeypatch):
    monkeypatch.setattr(invitations, "ORGANIZATION_RATE", Rate(2, 3600))
    assert [invite(admin, f"{n}@example.com").status_code for n in range(3)] == [201, 201, 429]
    assert len(mail.outbox) == 2
    assert invite(make.admin(make.organization("Theirs")), "0@example.com").status_code == 201


def test_one_person_gets_only_a_few_password_links_an_hour(organization, admin, mailing):
    person = make.dispatcher(organization, "Dana")
    page, address = browser(admin), reverse("admin:accounts_user_new_password_link", args=[person.pk])
    for _ in range(TO_ONE + 2):
        assert page.post(address, SENT).status_code == 200
    assert len(mail.outbox) == TO_ONE
    assert "Too many invitations" in page.get(reverse("admin:accounts_user_changelist")).content.decode()
    assert Event.objects.filter(kind="membership.password_link_created").count() == TO_ONE


def test_operator_sends_a_password_link_to_a_person_without_organization(mailing, settings):
    settings.SECOND_FACTOR_FOR_SUPERUSERS = False
    person, root = make.user("Dana"), make.user("Root", is_superuser=True)
    address = reverse("admin:accounts_user_new_password_link", args=[person.pk])
    for _ in range(TO_ONE + 1):
        assert browser(root).post(address, SENT).status_code == 200
    assert len(mail.outbox) == TO_ONE


def test_links_that_an_admin_passes_on_are_not_limited(admin, settings):
    settings.EMAIL_URL = ""
    member = invite(admin, VICTIM).json()
    again = [Api(user=admin).post(f"members/{member['id']}/invite/") for _ in range(TO_ONE + 1)]
    assert {answer.status_code for answer in again} == {200}
