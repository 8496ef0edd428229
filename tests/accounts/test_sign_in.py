"""Sign in by email, and lock out password guessing."""

import pytest
from django.db import IntegrityError
from django.test import Client
from django.urls import reverse

from accounts import demo_logins, services
from accounts.models import Membership, User
from dispatch.core import clock
from tests.support import factories as make

pytestmark = pytest.mark.django_db


def sign_in(email: str, password: str = make.PASSWORD, client: Client | None = None):
    return (client or Client()).post(reverse("admin:login"), {"username": email, "password": password})


def test_email_is_case_insensitive():
    person = make.dispatcher(make.organization())
    assert sign_in(f" {person.email.upper()} ").status_code == 302


def test_two_users_cannot_differ_only_in_case():
    make.user(email="ana@example.com")
    with pytest.raises(IntegrityError):
        make.user(email="Ana@Example.com")


def test_a_user_without_an_active_membership_cannot_sign_in():
    organization = make.organization()
    person = make.dispatcher(organization)
    Membership.objects.filter(user=person).update(is_active=False)
    assert sign_in(person.email).status_code == 200
    assert sign_in(make.user().email).status_code == 200


def test_membership_of_an_inactive_organization_does_not_count():
    organization = make.organization(is_active=False)
    assert sign_in(make.admin(organization).email).status_code == 200


def test_guessing_locks_out_the_address_regardless_of_case(settings):
    person = make.dispatcher(make.organization())
    spelled = [person.email, person.email.upper(), person.email.title()]
    for attempt in range(settings.AXES_FAILURE_LIMIT):
        answer = sign_in(spelled[attempt % 3], "a guess")
    assert answer.status_code == 429
    assert "Too many attempts" in answer.content.decode()
    assert sign_in(person.email).status_code == 429, "the right password does not help while locked out"
    other = make.dispatcher(make.organization())
    assert sign_in(other.email).status_code == 302, "somebody else signs in from the same address"


def test_the_demo_logins_are_named_on_a_development_machine_only(settings):
    page = Client().get(reverse("admin:login")).content.decode()
    assert demo_logins.PASSWORD not in page, "there are no demo people yet"
    demo_logins.create_demo_logins(make.organization())
    demo_logins.create_demo_logins(make.organization("Another"))
    page = Client().get(reverse("admin:login")).content.decode()
    assert demo_logins.PASSWORD in page
    assert all(login.email in page for login in demo_logins.LOGINS)
    settings.DEVELOPMENT = False
    page = Client().get(reverse("admin:login")).content.decode()
    assert demo_logins.PASSWORD not in page
    assert demo_logins.LOGINS[0].email not in page
    with pytest.raises(RuntimeError):
        demo_logins.create_demo_logins(make.organization())


def test_a_link_sets_a_password_once():
    person = make.dispatcher(make.organization())
    client = Client()
    link = services.password_path(person)
    page = client.get(link, follow=True)
    assert person.email in page.content.decode()
    chosen = "three blind llamas"
    saved = client.post(page.redirect_chain[-1][0], {"new_password1": chosen, "new_password2": chosen})
    assert saved.status_code == 302
    assert sign_in(person.email, chosen).status_code == 302
    assert "already used or has expired" in Client().get(link, follow=True).content.decode()


def test_link_expires(settings):
    person = make.user()
    link = services.password_path(person)
    settings.PASSWORD_RESET_TIMEOUT = -1
    assert "already used or has expired" in Client().get(link, follow=True).content.decode()


def test_memberships_decide_who_may_open_the_admin():
    organization = make.organization()
    person = make.dispatcher(organization)
    assert User.objects.get(pk=person.pk).is_staff
    services.change_member(person.memberships.get().pk, actor=services.events.SYSTEM, is_active=False)
    assert not User.objects.get(pk=person.pk).is_staff
    assert clock.now() >= person.created_at


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (
            {"username": "a@b.example", "password": "wrong"},
            "The email or password is wrong. Check both, and try again.",
        ),
        ({"username": "a@b.example", "password": ""}, "This field is required."),
    ],
)
def test_failed_sign_in_shows_one_message(given, message):
    page = Client().post(reverse("admin:login"), given).content.decode()
    assert page.count(message) == 1
    assert "Please correct the error" not in page
