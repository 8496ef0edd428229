"""Membership starts only when the invitee accepts, and inviting discloses no other account's data."""

from __future__ import annotations

import re
from typing import Any

import pytest
from allauth.mfa.models import Authenticator
from allauth.usersessions.models import UserSession
from cryptography.fernet import Fernet
from django.conf import settings as project
from django.core import mail, signing
from django.db import IntegrityError, transaction
from django.test import Client
from django.urls import reverse

from accounts import services
from accounts.invitations import SALT, Invitation
from accounts.models import Membership, Organization, SecurityMail, User
from dispatch.core import clock
from dispatch.core.api.problems import Conflict
from dispatch.core.events import SYSTEM
from dispatch.core.models import Event
from tests.accounts.second_factor import is_signed_in
from tests.accounts.second_factor import sign_in as sign_in_by_form
from tests.accounts.test_sign_in import sign_in
from tests.api.client import Api
from tests.support import factories as make
from tests.support.factories import browser

pytestmark = pytest.mark.django_db

CHOSEN = "three blind llamas"


@pytest.fixture
def organization() -> Organization:
    return make.organization("Ours")


@pytest.fixture
def admin(organization: Organization) -> User:
    return make.admin(organization, "Grace")


@pytest.fixture
def mailing(settings: Any) -> Any:
    """Configure a mail server."""
    settings.EMAIL_URL = "smtp://mail.example.com"
    return mail


def invite(admin: User, email: str, **more: str) -> dict[str, Any]:
    made = Api(user=admin).post("members/", {"email": email, "name": "Given Name", "role": "dispatcher", **more})
    assert made.status_code == 201, made.content
    return dict(made.json())


def mailed_link(number: int = -1) -> str:
    found = re.search(r"http\S+", str(mail.outbox[number].body))
    assert found
    return found[0].removeprefix(project.PUBLIC_BASE_URL)


def handed(answer: dict[str, Any]) -> str:
    return str(answer["invitation_url"]).removeprefix(project.PUBLIC_BASE_URL)


def joined(answer: dict[str, Any]) -> bool:
    return Membership.objects.get(pk=answer["id"]).is_active


def shown_details(client: Client, link: str) -> dict[str, str]:
    """Return the name and phone on the invitation's page."""
    page = client.get(link)
    return dict(page.context["details"].initial) if "details" in (page.context or ()) else {}


def choose_password(link: str, password: str = CHOSEN, **corrected: str) -> Any:
    """Confirm the shown details, except for `corrected` ones, and join with this password."""
    client = Client()
    details = {**shown_details(client, link), **corrected}
    return client.post(link, {**details, "new_password1": password, "new_password2": password})


def confirm(client: Client, link: str, **corrected: str) -> Any:
    """Join as the signed-in user."""
    return client.post(link, {**shown_details(client, link), **corrected})


def test_the_link_goes_to_the_person_and_the_admin_never_sees_it(admin, mailing):
    answer = invite(admin, "New@Example.com")
    assert (answer["mailed"], answer["invitation_url"]) == (True, None)
    assert mail.outbox[0].to == ["new@example.com"]
    assert "Ours invites you" in mail.outbox[0].subject
    link = mailed_link()
    assert link not in str(answer)
    assert not joined(answer)
    assert sign_in("new@example.com", "!").status_code == 200
    page = Client().get(link)
    assert "new@example.com" in page.content.decode()
    assert choose_password(link).status_code == 302
    assert joined(answer)
    assert sign_in("new@example.com", CHOSEN).status_code == 302
    assert User.objects.get(email="new@example.com").email_confirmed_at
    told = Event.objects.get(kind="membership.joined")
    assert told.actor_label == "Given Name"
    assert choose_password(link, "another four llamas").status_code == 404, "it works once"
    assert sign_in("new@example.com", CHOSEN).status_code == 302


def test_a_known_person_joins_after_signing_in_and_keeps_their_password(admin, mailing):
    olga = make.dispatcher(make.organization("Theirs"), "Olga")
    User.objects.filter(pk=olga.pk).update(email_confirmed_at=olga.created_at)
    answer = invite(admin, olga.email)
    link = mailed_link()
    asked = Client().get(link)
    assert (asked.status_code, "/login/" in asked["Location"]) == (302, True)
    assert choose_password(link).status_code == 302
    assert not joined(answer)
    assert sign_in(olga.email, CHOSEN).status_code == 200, "the link set no password"
    stranger = browser(make.dispatcher(make.organization("Third")))
    assert stranger.post(link).status_code == 403
    assert not joined(answer)
    own = browser(olga)
    assert "Join Ours" in own.get(link).content.decode()
    assert confirm(own, link).status_code == 302
    assert joined(answer)


def test_only_the_email_is_shown_before_joining(organization, admin, mailing):
    olga = make.dispatcher(make.organization("Theirs"), "Olga Petrova")
    User.objects.filter(pk=olga.pk).update(phone="+16025550142")
    api, pages = Api(user=admin), browser(admin)
    answer = invite(admin, olga.email)

    def all_that_is_told() -> str:
        lists = ["accounts_membership_changelist", "accounts_user_changelist"]
        seen = [pages.get(reverse(f"admin:{name}")).content.decode() for name in lists]
        seen.append(pages.get(reverse("admin:accounts_membership_change", args=[answer["id"]])).content.decode())
        seen.append(pages.get(reverse("admin:accounts_user_change", args=[olga.pk]), follow=True).content.decode())
        return " ".join([*seen, str(answer), str(api.get("members/").json())])

    def found_by(words: str) -> bool:
        page = pages.get(reverse("admin:accounts_membership_changelist"), {"q": words}).content.decode()
        return olga.email in page

    told = all_that_is_told()
    assert olga.email in told
    assert "Petrova" not in told
    assert "5550142" not in told.replace(" ", "").replace("-", "")
    assert found_by(olga.email)
    assert not found_by("Petrova")
    confirm(browser(olga), mailed_link())
    if not joined(answer):  # the email was never confirmed: the link asks for a password
        choose_password(mailed_link())
    assert "Petrova" in all_that_is_told()
    assert found_by("Petrova")


def test_account_taken_by_someone_else_is_recovered_by_email(admin, mailing, settings):
    """Mallory invited the email while no mail was sent, and took the account with the link she received."""
    settings.EMAIL_URL = ""
    mallory = make.admin(make.organization("Theirs"), "Mallory")
    taken = invite(mallory, "victim@example.com")
    assert choose_password(handed(taken), "the password of mallory").status_code == 302
    thief = browser(User.objects.get(email="victim@example.com"))
    assert thief.get(reverse("admin:index")).status_code == 200
    settings.EMAIL_URL = "smtp://mail.example.com"
    ours = invite(admin, "victim@example.com")
    assert not joined(ours)
    assert choose_password(mailed_link()).status_code == 302
    assert joined(ours)
    assert sign_in("victim@example.com", "the password of mallory").status_code == 200, "refused"
    assert thief.get(reverse("admin:index")).status_code == 302, "her sessions are over"
    assert sign_in("victim@example.com", CHOSEN).status_code == 302


def test_recovered_account_keeps_no_factor_and_no_session_of_the_taker(admin, mailing, settings):
    settings.EMAIL_URL = ""
    taken = invite(make.admin(make.organization("Theirs"), "Mallory"), "victim@example.com")
    assert choose_password(handed(taken)).status_code == 302
    victim = User.objects.get(email="victim@example.com")
    browser(victim)
    for kind in (Authenticator.Type.WEBAUTHN, Authenticator.Type.RECOVERY_CODES):
        Authenticator.objects.create(user=victim, type=kind, data={})
    User.objects.filter(pk=victim.pk).update(second_factor_at=clock.now())
    settings.EMAIL_URL = "smtp://mail.example.com"
    invite(admin, victim.email)
    assert choose_password(mailed_link()).status_code == 302
    assert not Authenticator.objects.filter(user=victim).exists()
    assert not UserSession.objects.filter(user=victim).exists()
    victim.refresh_from_db()
    assert (victim.second_factor_at, victim.email_confirmed_at is None) == (None, False)
    assert SecurityMail.objects.filter(user=victim, kind="webauthn_removed").exists()
    assert is_signed_in(sign_in_by_form(victim, password=CHOSEN))


def test_invitation_of_a_superuser_keeps_their_second_factor(admin, mailing):
    root = make.user("Rosa Root", is_superuser=True)
    Authenticator.objects.create(user=root, type=Authenticator.Type.WEBAUTHN, data={})
    answer = invite(admin, root.email)
    services.join_organization(Invitation(Membership.objects.get(user=root), mailed=True), name="Rosa", phone="")
    assert joined(answer)
    assert Authenticator.objects.filter(user=root).exists()


def test_invitation_of_a_person_with_a_proved_address_keeps_their_passkey(admin, mailing):
    olga = make.dispatcher(make.organization("Theirs"), "Olga")
    Authenticator.objects.create(user=olga, type=Authenticator.Type.WEBAUTHN, data={})
    User.objects.filter(pk=olga.pk).update(email_confirmed_at=olga.created_at)
    answer = invite(admin, olga.email)
    own = browser(olga)
    assert confirm(own, mailed_link()).status_code == 302
    assert joined(answer)
    assert Authenticator.objects.filter(user=olga).exists()
    assert own.get(reverse("admin:index")).status_code == 200


def test_link_passed_on_by_an_admin_takes_over_no_account(admin):
    olga = make.dispatcher(make.organization("Theirs"), "Olga")
    answer = invite(admin, olga.email)
    link = handed(answer)
    assert "/login/" in choose_password(link)["Location"]
    assert sign_in(olga.email, CHOSEN).status_code == 200, "refused"
    assert confirm(browser(olga), link).status_code == 302
    assert joined(answer)
    olga.refresh_from_db()
    assert olga.email_confirmed_at is None


def test_invitation_link_ends_with_membership_expiry_or_tampering(admin, settings):
    answer = invite(admin, "new@example.com")
    link = handed(answer)
    assert Client().get(link[:-2] + "x/").status_code == 404
    settings.PASSWORD_RESET_TIMEOUT = -1
    assert Client().get(link).status_code == 404
    settings.PASSWORD_RESET_TIMEOUT = 60
    assert Client().get(link).status_code == 200
    Api(user=admin).delete(f"members/{answer['id']}/")
    assert "This invitation is no longer valid" in Client().get(link).content.decode()


def test_invitation_link_outlives_the_replacement_of_keys(admin, settings):
    link = handed(invite(admin, "new@example.com"))
    settings.FIELD_ENCRYPTION_KEYS = [Fernet.generate_key().decode()]
    settings.SECRET_KEY, settings.SECRET_KEY_FALLBACKS = "the new key", [settings.SECRET_KEY]
    assert Client().get(link).status_code == 200


def test_only_the_invitee_can_activate_the_membership(organization, admin):
    answer = invite(admin, "new@example.com")
    refused = Api(user=admin).patch(f"members/{answer['id']}/", {"is_active": True})
    assert refused.status_code == 400
    assert "This person hasn't accepted the invitation yet." in str(refused.json())
    with pytest.raises(Conflict):
        services.change_member(answer["id"], actor=SYSTEM, is_active=True)
    with pytest.raises(IntegrityError), transaction.atomic():
        Membership.objects.filter(pk=answer["id"]).update(is_active=True)
    assert User.objects.get(email="new@example.com").active_memberships == []


def test_inviting_again(admin, mailing, monkeypatch):
    def refuses(*_: Any, **__: Any) -> int:
        raise ConnectionRefusedError

    with monkeypatch.context() as patch:
        patch.setattr(mail, "send_mail", refuses)
        answer = invite(admin, "new@example.com")
    assert (answer["mailed"], answer["invitation_url"]) == (False, None)
    again = Api(user=admin).post(f"members/{answer['id']}/invite/")
    assert (again.status_code, again.json()["mailed"], len(mail.outbox)) == (200, True, 1)
    assert choose_password(mailed_link()).status_code == 302
    assert Api(user=admin).post(f"members/{answer['id']}/invite/").status_code == 422


def test_in_the_admin_the_link_is_shown_once_only_where_no_mail_is_sent(organization, admin, settings):
    pages = browser(admin)
    form = {
        "organization": organization.pk,
        "name": "N",
        "phone_0": "",
        "phone_1": "",
        "phone": "",
        "role": "admin",
    }
    shown = pages.post(reverse("admin:accounts_membership_add"), {**form, "email": "a@example.com"})
    assert "/join/" in shown.content.decode()
    settings.EMAIL_URL = "smtp://mail.example.com"
    sent = pages.post(reverse("admin:accounts_membership_add"), {**form, "email": "b@example.com"}, follow=True)
    assert "/join/" not in sent.content.decode()
    assert "was mailed to b@example.com" in sent.content.decode()
    assert mail.outbox[0].to == ["b@example.com"]


def test_the_link_for_a_new_password_is_mailed_too(organization, admin, mailing):
    person = make.dispatcher(organization, "Dana")
    action = reverse("admin:accounts_user_new_password_link", args=[person.pk])
    answer = browser(admin).post(action, {"_form_submitted": "1"})
    assert "/set-password/" not in answer.content.decode()
    assert mail.outbox[0].to == [person.email]
    assert "/set-password/" in str(mail.outbox[0].body)


# --- name and phone ---------------------------------------------------------------------------------------------

OWN_PHONE, OTHER_PHONE = "+16025550142", "+16025550199"


def test_an_inviter_does_not_decide_where_another_organizations_alerts_go(admin, mailing):
    """Mallory invites a person with her own phone and withdraws the invitation before the real one is sent."""
    mallory = make.admin(make.organization("Theirs"), "Mallory")
    theirs = invite(mallory, "victim@example.com", name="Mallory's Name", phone=OTHER_PHONE)
    Api(user=mallory).delete(f"members/{theirs['id']}/")
    ours = invite(admin, "victim@example.com", name="Vic Tim", phone=OWN_PHONE)
    link = mailed_link()
    assert shown_details(Client(), link) == {"name": "Vic Tim", "phone": OWN_PHONE}
    assert choose_password(link).status_code == 302
    assert joined(ours)
    person = User.objects.get(email="victim@example.com")
    assert (person.name, str(person.phone)) == ("Vic Tim", OWN_PHONE)


@pytest.mark.parametrize("stays", [True, False])
def test_invitation_alone_changes_nothing_about_the_person(admin, mailing, stays):
    invite(admin, "new@example.com", phone=OTHER_PHONE)
    person = User.objects.get(email="new@example.com")
    assert (person.name, str(person.phone)) == ("", "")
    olga = make.dispatcher(make.organization("Theirs"), "Olga")
    User.objects.filter(pk=olga.pk).update(phone=OWN_PHONE, email_confirmed_at=olga.created_at)
    answer = invite(admin, olga.email, name="Somebody else", phone=OTHER_PHONE)
    link = mailed_link()
    own = browser(olga)
    assert shown_details(own, link) == {"name": "Olga", "phone": OWN_PHONE}
    if stays:
        assert confirm(own, link).status_code == 302
        assert joined(answer)
    olga.refresh_from_db()
    assert (olga.name, str(olga.phone)) == ("Olga", OWN_PHONE)


def test_a_person_corrects_name_and_phone_as_they_join(organization, admin, mailing):
    answer = invite(admin, "new@example.com", name="Nuw", phone=OTHER_PHONE)
    link = mailed_link()
    refused = choose_password(link, phone="not a number")
    assert (refused.status_code, joined(answer)) == (200, False)
    assert "Enter a valid phone number" in refused.content.decode()
    assert choose_password(link, name="").status_code == 200
    assert not joined(answer)
    assert choose_password(link, name="New", phone="602 555 0142").status_code == 302
    membership = Membership.objects.get(pk=answer["id"])
    assert (membership.user.name, str(membership.user.phone)) == ("New", OWN_PHONE)
    assert (membership.invited_name, str(membership.invited_phone)) == ("", "")


def test_a_phone_that_is_changed_on_joining_is_in_the_log_of_the_others(admin, mailing):
    theirs = make.organization("Theirs")
    olga = make.dispatcher(theirs, "Olga")
    User.objects.filter(pk=olga.pk).update(phone=OWN_PHONE, email_confirmed_at=olga.created_at)
    invite(admin, olga.email)
    assert confirm(browser(olga), mailed_link(), phone=OTHER_PHONE).status_code == 302
    changed = Event.objects.get(kind="membership.phone_changed")
    assert (changed.organization_id, changed.actor_label) == (theirs.pk, "Olga")


def test_recovered_account_does_not_keep_the_takers_phone(admin, mailing, settings):
    settings.EMAIL_URL = ""
    mallory = make.admin(make.organization("Theirs"), "Mallory")
    taken = invite(mallory, "victim@example.com", phone=OTHER_PHONE)
    assert choose_password(handed(taken)).status_code == 302
    assert str(User.objects.get(email="victim@example.com").phone) == OTHER_PHONE
    settings.EMAIL_URL = "smtp://mail.example.com"
    invite(admin, "victim@example.com", phone=OWN_PHONE)
    assert choose_password(mailed_link()).status_code == 302
    assert str(User.objects.get(email="victim@example.com").phone) == OWN_PHONE


@pytest.mark.parametrize("change", ["joins", "superuser"])
def test_password_link_ends_when_the_account_gains_access(organization, admin, change):
    person = make.dispatcher(organization, "Dana")
    action = reverse("admin:accounts_user_new_password_link", args=[person.pk])
    answer = browser(admin).post(action, {"_form_submitted": "1"}).content.decode()
    link = re.search(r"/set-password/[^<]+", answer)
    assert link
    assert Client().get(link[0]).status_code == 302
    if change == "joins":
        theirs = invite(make.admin(make.organization("Theirs"), "Olga"), person.email)
        confirm(browser(person), handed(theirs))
        assert joined(theirs)
    else:
        User.objects.filter(pk=person.pk).update(is_superuser=True)
    assert Client().get(link[0]).status_code == 200, "it still opens the form"


@pytest.mark.parametrize("page", ["join", "set-password"])
def test_password_that_sign_in_would_refuse_cannot_be_chosen(organization, admin, page):
    client = Client()
    if page == "join":
        link, email = handed(invite(admin, "new@example.com")), "new@example.com"
    else:
        person = make.dispatcher(organization)
        link, email = client.get(services.password_path(person)).url, person.email  # type: ignore[attr-defined]

    def choose(password: str) -> Any:
        return client.post(
            link, {"name": "Nat", "phone": "", "new_password1": password, "new_password2": password}
        )

    longest = ("correct horse " * 300)[:4096]
    refused = choose(f"{longest}!")
    assert refused.status_code == 200
    assert "Enter at most 4096 characters." in refused.content.decode()
    assert choose(longest).status_code == 302
    assert sign_in(email, longest).status_code == 302


def test_an_invitation_does_not_reveal_whether_the_address_has_an_account(organization, admin, mailing):
    known = make.dispatcher(make.organization())
    api = Api(user=admin)
    answers = [
        api.post("members/", {"email": email, "name": "Pat", "role": "dispatcher"}).json()
        for email in (known.email, "unknown@example.com")
    ]
    assert [answer["user"]["id"] for answer in answers] == [None, None]
    assert {tuple(sorted(answer)) for answer in answers} == {tuple(sorted(answers[0]))}
    added = Event.objects.filter(organization_id=organization.pk, kind="membership.added")
    assert [event.data for event in added] == [{"role": "dispatcher", "is_active": False}] * 2
    api.delete(f"members/{answers[0]['id']}/")
    removed = Event.objects.get(organization_id=organization.pk, kind="membership.removed")
    assert "user_id" not in removed.data


# --- corrected addresses ----------------------------------------------------------------------------------------


def correct_email(person: User, email: str) -> User:
    """Change the address as a superuser does."""
    form = {"name": person.name or "Given Name", "email": email, "phone": "", "is_active": "on"}
    form |= {f"memberships-{name}_FORMS": "0" for name in ("TOTAL", "INITIAL")}
    address = reverse("admin:accounts_user_change", args=[person.pk])
    assert browser(make.user("Root", is_superuser=True)).post(address, form).status_code == 302
    return User.objects.get(pk=person.pk)


@pytest.mark.parametrize("mails", [True, False])
def test_link_to_a_wrong_address_ends_when_the_address_is_corrected(admin, settings, mails):
    settings.SECOND_FACTOR_FOR_SUPERUSERS = False
    settings.EMAIL_URL = "smtp://mail.example.com" if mails else ""
    answer = invite(admin, "dana@exmaple.com")
    wrong = mailed_link() if mails else handed(answer)
    dana = correct_email(User.objects.get(email="dana@exmaple.com"), "dana@example.com")
    refused = Client().get(wrong)
    assert refused.status_code == 404
    assert "ask an admin for a new invitation" in refused.content.decode()
    again = Api(user=admin).post(f"members/{answer['id']}/invite/").json()
    assert choose_password(wrong).status_code == 404
    assert not joined(answer)
    assert choose_password(mailed_link() if mails else handed(again)).status_code == 302
    assert joined(answer)
    assert sign_in(dana.email, CHOSEN).status_code == 302


def test_link_from_before_addresses_were_in_it_asks_for_a_new_invitation(admin):
    answer = invite(admin, "new@example.com")
    membership = Membership.objects.get(pk=answer["id"])
    claims = {"membership": membership.pk, "user": membership.user_id, "mailed": False}
    page = Client().get(reverse("join", args=[signing.dumps(claims, salt=SALT)]))
    assert page.status_code == 404
    assert "ask an admin for a new invitation" in page.content.decode()


def test_changed_address_is_not_proved(organization, admin, mailing, settings):
    settings.SECOND_FACTOR_FOR_SUPERUSERS = False
    invite(admin, "dana@example.com")
    assert choose_password(mailed_link()).status_code == 302
    dana = User.objects.get(email="dana@example.com")
    proved = dana.email_confirmed_at
    assert correct_email(dana, "Dana@Example.com").email_confirmed_at == proved, "the same address"
    assert correct_email(dana, "dana@example.org").email_confirmed_at is None
    invite(make.admin(make.organization("Theirs")), "dana@example.org")
    assert choose_password(mailed_link(), "another four llamas").status_code == 302, "the link proves it again"
    assert sign_in("dana@example.org", "another four llamas").status_code == 302
