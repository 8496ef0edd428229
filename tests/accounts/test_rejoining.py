"""A person without an active membership accepts an invitation with the password that they have."""

from __future__ import annotations

from typing import Any

import pytest
from django.conf import settings as project
from django.test import Client
from django.urls import reverse

from accounts import invitations, services
from accounts.models import Membership, Organization, User
from dispatch.core import clock
from dispatch.core.events import SYSTEM
from tests.accounts.second_factor import Steps, enter, is_signed_in, secret_of, set_up_app, sign_in
from tests.accounts.test_invitations import CHOSEN, choose_password, confirm, mailed_link, mailing
from tests.support import factories as make

__all__ = ["mailing"]

pytestmark = pytest.mark.django_db


@pytest.fixture
def organization() -> Organization:
    return make.organization("Ours", slug="ours")


@pytest.fixture
def dana(organization: Organization) -> User:
    """A member who joined by a mailed link."""
    person = make.dispatcher(organization, "Dana")
    User.objects.filter(pk=person.pk).update(email_confirmed_at=clock.now())
    return person


def remove(person: User) -> None:
    services.remove_member(person.memberships.get().pk, actor=SYSTEM)


def deactivate(person: User) -> None:
    services.change_member(person.memberships.get().pk, actor=SYSTEM, is_active=False)


def invite(organization: Organization, person: User) -> str:
    """Invite the person. Return the path of the link, which an Admin passes on or which is mailed."""
    membership, _ = services.add_member(
        organization, email=person.email, name="D", role="dispatcher", actor=SYSTEM
    )
    link = invitations.send_invitation(membership).link
    return link.removeprefix(project.PUBLIC_BASE_URL) if link else mailed_link()


def slugs(client: Client) -> list[str]:
    return [each["slug"] for each in client.get("/api/v1/me/").json()["organizations"]]


@pytest.mark.parametrize("mails", [True, False])
def test_removed_member_who_is_invited_again_joins_with_their_password(
    organization: Organization, dana: User, settings: Any, mails: bool
) -> None:
    settings.EMAIL_URL = "smtp://mail.example.com" if mails else ""
    remove(dana)
    link = invite(organization, dana)
    asked = Client().get(link)
    assert asked.status_code == 302
    client = Client()
    client.answer = client.post(  # type: ignore[attr-defined]
        asked["Location"], {"username": dana.email, "password": make.PASSWORD}
    )
    assert client.answer.url == link  # type: ignore[attr-defined]
    assert confirm(client, link).status_code == 302
    assert slugs(client) == ["ours"]


def test_deactivated_member_joins_another_organization(dana: User, mailing: Any) -> None:
    deactivate(dana)
    link = invite(make.organization("Theirs", slug="theirs"), dana)
    client = sign_in(dana, path=link)
    assert confirm(client, link).status_code == 302
    assert slugs(client) == ["theirs"]
    assert is_signed_in(sign_in(dana)), "from now on without the link"


def test_link_asks_for_the_second_factor_as_well(
    organization: Organization, dana: User, mailing: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps = Steps(monkeypatch)
    set_up_app(dana, steps)
    remove(dana)
    link = invite(organization, dana)
    client = sign_in(dana, path=link)
    assert client.answer.url == reverse("mfa_authenticate")  # type: ignore[attr-defined]
    assert not is_signed_in(client)
    assert enter(client, steps.code(secret_of(dana))).url == link
    assert confirm(client, link).status_code == 302


def test_session_of_an_invited_person_reaches_no_organization(
    organization: Organization, dana: User, mailing: Any
) -> None:
    remove(dana)
    client = sign_in(dana, path=invite(organization, dana))
    assert is_signed_in(client)
    assert client.get("/api/v1/me/").status_code == 403
    assert client.get("/api/v1/jobs/", headers={"X-Organization": "ours"}).status_code == 403
    for path in ("/board/", reverse("admin:index"), reverse("personal_data"), reverse("admin:password_change")):
        assert client.get(path).status_code != 200, path


@pytest.mark.parametrize("path", ["", "/board/", "/join/forged/", "https://evil.example/join/forged/"])
def test_without_the_link_a_former_member_stays_out(
    organization: Organization, dana: User, mailing: Any, path: str
) -> None:
    remove(dana)
    invite(organization, dana)
    assert not is_signed_in(sign_in(dana, path=path))


def test_link_of_somebody_else_or_of_an_ended_invitation_opens_no_session(
    organization: Organization, dana: User, mailing: Any
) -> None:
    other = make.dispatcher(make.organization("Theirs"), "Lee")
    remove(dana)
    assert not is_signed_in(sign_in(dana, path=invite(organization, other)))
    link = invite(organization, dana)
    assert not is_signed_in(sign_in(dana, path=f"https://evil.example{link}")), "a page of another site"
    assert not is_signed_in(sign_in(dana, password="a guess", path=link))
    Membership.objects.filter(user=dana).delete()
    assert not is_signed_in(sign_in(dana, path=link))


def test_deactivated_account_stays_out(organization: Organization, dana: User, mailing: Any) -> None:
    remove(dana)
    link = invite(organization, dana)
    User.objects.filter(pk=dana.pk).update(is_active=False)
    assert not is_signed_in(sign_in(dana, path=link))


def test_mailed_link_sets_no_second_password(organization: Organization, dana: User, mailing: Any) -> None:
    remove(dana)
    link = invite(organization, dana)
    assert "/login/" in choose_password(link)["Location"]
    assert not User.objects.get(pk=dana.pk).check_password(CHOSEN)
