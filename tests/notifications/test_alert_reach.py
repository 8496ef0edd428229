"""Admins see whose phone alerts can use, ask the others to confirm theirs, and learn if alerts reach nobody."""

from __future__ import annotations

import re
from datetime import timedelta
from typing import Any

import pytest
from django.core import mail
from django.db import connection
from django.test.utils import CaptureQueriesContext

from accounts.auth import security_mail
from accounts.models import Membership, Organization, SecurityMail, User
from dispatch.capacity.models import OutboundNumber
from dispatch.core import clock
from notifications.models import Alert, PhoneConfirmation
from notifications.services import alert_reach, escalation
from tests.support import factories as make

pytestmark = pytest.mark.django_db
MEMBERS, NOTICE = "/admin/accounts/membership/", "Alerts reach nobody by text or call"


def with_phone(person: User) -> User:
    person.phone = make.phone()
    person.save(update_fields=["phone"])
    return person


@pytest.fixture
def organization() -> Organization:
    return make.organization("Acme", slug="acme")


@pytest.fixture
def admin(organization: Organization) -> User:
    """An Admin with a phone that is not confirmed."""
    return with_phone(make.admin(organization, "Ada"))


@pytest.fixture
def crew(organization: Organization) -> dict[str, User]:
    """Dispatchers with a phone in each state."""
    people = {name: with_phone(make.dispatcher(organization, name)) for name in ("Cal", "Abe", "Una", "Nix")}
    make.confirm_phone(organization, people["Cal"])
    accepted = {"phone": people["Abe"].phone, "accepted_until": clock.now() + timedelta(days=1)}
    PhoneConfirmation.objects.create(organization=organization, user=people["Abe"], **accepted)
    User.objects.filter(pk=people["Nix"].pk).update(phone="")
    return people


def states(organization: Organization, admin: User) -> dict[str, str]:
    rows = make.browser(admin).get("/api/v1/members/").json()["results"]
    return {row["user"]["name"] or row["user"]["email"]: row["alert_phone"] for row in rows}


def said(page: Any) -> list[str]:
    return [str(message) for message in page.context["messages"]]


def words_of(page: str) -> str:
    return re.sub(r"\s+", " ", re.sub(r"<[^>]+>", " ", page))


def test_members_api_tells_what_alerts_can_do_with_each_phone(
    organization: Organization, admin: User, crew: dict[str, User]
) -> None:
    expected = {
        "Ada": "unconfirmed",
        "Cal": "confirmed",
        "Abe": "accepted",
        "Una": "unconfirmed",
        "Nix": "none",
    }
    assert states(organization, admin) == expected
    elsewhere = make.organization()
    make.confirm_phone(elsewhere, crew["Una"])
    User.objects.filter(pk=crew["Cal"].pk).update(phone=make.phone())
    assert states(organization, admin) == {**expected, "Cal": "unconfirmed"}, "a new phone, and another's proof"
    clock.travel(2 * 86400)
    assert states(organization, admin)["Abe"] == "unconfirmed"
    own = Membership.objects.get(user=crew["Una"])
    changed = make.browser(admin).patch(
        f"/api/v1/members/{own.pk}/", {"alert_order": 5}, content_type="application/json"
    )
    assert changed.json()["alert_phone"] == "unconfirmed"


def test_invited_person_s_phone_is_not_disclosed(organization: Organization, admin: User) -> None:
    stranger = make.confirm_phone(make.organization(), with_phone(make.user("Eve", email="eve@example.com")))
    User.objects.filter(pk=stranger.pk).update(is_superuser=True)
    added = make.browser(admin).post(
        "/api/v1/members/",
        {"email": "eve@example.com", "name": "Eve", "role": "dispatcher"},
        content_type="application/json",
    )
    assert (added.status_code, added.json()["alert_phone"]) == (201, "none")


def test_members_list_shows_and_filters_phones(
    organization: Organization, admin: User, crew: dict[str, User]
) -> None:
    client = make.browser(admin)
    page = words_of(client.get(MEMBERS).content.decode())
    assert all(words in page for words in ("Not confirmed", "Accepted for now", "No phone"))
    found = client.get(f"{MEMBERS}?alert_phone=unconfirmed").context["cl"].result_list
    assert {str(row.user) for row in found} == {"Ada", "Una"}
    own = Membership.objects.get(user=crew["Una"])
    assert "Not confirmed" in words_of(client.get(f"{MEMBERS}{own.pk}/change/").content.decode())
    assert "Not confirmed" in words_of(
        client.get(f"/admin/accounts/user/{crew['Una'].pk}/change/").content.decode()
    )


def test_admin_asks_members_to_confirm_their_phone(
    organization: Organization, admin: User, crew: dict[str, User]
) -> None:
    other = make.organization()
    foreign = Membership.objects.get(user=make.dispatcher(other))
    ids = [*Membership.objects.filter(organization=organization).values_list("pk", flat=True), foreign.pk]
    form = {"action": "ask_to_confirm_phone", "_selected_action": ids, "confirmed": "1"}
    client = make.browser(admin)
    assert said(client.post(MEMBERS, form, follow=True)) == ["Asked 4 members by email."]
    asked = set(SecurityMail.objects.values_list("user__name", flat=True))
    assert asked == {"Ada", "Abe", "Una", "Nix"}, "not the one who confirmed, nor another organization's"
    again = said(client.post(MEMBERS, form, follow=True))
    assert again == ["Already asked within the last hour: 4. Try again later."]
    User.objects.filter(name="Una").update(language="es")
    security_mail.send_due_mail()
    texts = {message.to[0]: message for message in mail.outbox}
    english, spanish = texts[crew["Nix"].email], texts[crew["Una"].email]
    assert english.subject == "Dispatch: Confirm your phone to receive alerts"
    assert "alerts from Acme can't text or call you" in english.body
    assert "/notifications/choices/?in=acme" in english.body
    assert "Confirme su teléfono" in spanish.subject
    refused = make.browser(crew["Cal"]).post(MEMBERS, form)
    assert (refused.status_code, SecurityMail.objects.count()) == (403, 0)


def test_admin_learns_that_without_a_mail_server_nobody_is_asked(
    organization: Organization, admin: User, settings
) -> None:
    settings.EMAIL_IS_SET_UP = False
    own = Membership.objects.get(user=admin)
    form = {"action": "ask_to_confirm_phone", "_selected_action": [own.pk], "confirmed": "1"}
    (told,) = said(make.browser(admin).post(MEMBERS, form, follow=True))
    assert "No mail server is configured" in told
    assert not SecurityMail.objects.exists()


def test_pages_of_alerts_say_whom_they_reach(
    organization: Organization, admin: User, crew: dict[str, User]
) -> None:
    client = make.browser(admin)
    for address in ("/admin/notifications/escalationpolicy/add/", "/admin/notifications/route/add/"):
        page = words_of(client.get(address).content.decode())
        assert "Alerts reach Cal, Abe by text and call." in page
        assert "Until they confirm a phone, Ada, Una, Nix get no alerts by text or call." in page
    assert NOTICE not in client.get("/notifications/").content.decode()
    PhoneConfirmation.objects.all().delete()
    assert NOTICE in client.get("/notifications/").content.decode()
    assert NOTICE in words_of(client.get("/admin/notifications/escalationpolicy/add/").content.decode())
    assert not alert_reach.reaches_somebody(organization.pk)


def test_people_who_left_do_not_count(organization: Organization, admin: User) -> None:
    gone = with_phone(make.dispatcher(organization, "Gone"))
    make.confirm_phone(organization, gone)
    assert alert_reach.reaches_somebody(organization.pk)
    User.objects.filter(pk=gone.pk).update(is_active=False)
    assert not alert_reach.reaches_somebody(organization.pk)
    make.confirm_phone(organization, admin)
    User.objects.filter(pk=admin.pk).update(is_superuser=True)
    PhoneConfirmation.objects.update(organization=make.organization())
    assert alert_reach.load_reach(organization.pk).by_phone == ("Ada",), "a superuser's proof holds everywhere"


def test_many_members_are_named_in_part() -> None:
    names = tuple(f"Member {number}" for number in range(12))
    described = alert_reach.AlertReach(names, ()).describe()
    assert "Member 9 and 2 more by text and call." in described


def test_reach_of_many_members_is_read_by_few_statements(organization: Organization) -> None:
    number = make.number(organization)
    OutboundNumber.objects.filter(pk=number.pk).update(sends_texts=True)
    alert = Alert(organization=organization, kind="job.pending")

    def count_statements() -> int:
        with CaptureQueriesContext(connection) as captured:
            staff = escalation.staff_of(alert)
        assert all({"sms", "voice", "email"} == set(ways) for ways in staff.can.values())
        return len(captured)

    def add_member() -> None:
        person = make.dispatcher(organization)
        User.objects.filter(pk=person.pk).update(phone=make.phone())
        make.confirm_phone(organization, User.objects.get(pk=person.pk))

    add_member()
    of_one = count_statements()
    for _ in range(5):
        add_member()
    assert count_statements() <= of_one, "the first may also fill a cache"
