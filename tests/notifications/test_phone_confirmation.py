"""Alerts go only to a phone that its owner confirmed by a code, which nobody else can read or enter."""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import timedelta
from importlib import import_module

import pytest
from django.db import connection
from django.test import Client

from accounts import invitations
from accounts import services as accounts
from accounts.models import Membership, User
from dispatch.capacity.models import OutboundNumber
from dispatch.core import clock
from dispatch.core.audit import chain
from dispatch.core.events import SYSTEM
from dispatch.core.models import Event
from dispatch.telephony import services as telephony
from dispatch.telephony.models import Call, Text
from notifications.models import PhoneConfirmation
from notifications.services import phone_confirmation
from tests.notifications.conftest import Watch
from tests.notifications.test_alert_texts import send_texts, texting  # noqa: F401
from tests.support import factories as make

pytestmark = pytest.mark.django_db(transaction=True)
CHOICES, CODE, CONFIRM = "/notifications/choices/", "/notifications/phone/code/", "/notifications/phone/confirm/"
MINE = "+16025550142"


def page_of(client: Client) -> str:
    return re.sub(r"\s+", " ", re.sub(r"<[^>]+>", "", client.get(CHOICES).content.decode()))


def code_in(said: str) -> str:
    found = re.search(r"\b\d{6}\b", said)
    assert found is not None, said
    return found[0]


def texted_code(watch: Watch, phone: str = MINE, count: int = 1) -> str:
    """Send what is due until `count` codes arrived on the phone; return the last."""

    def arrived() -> list[str]:
        send_texts()
        bodies = [one["body"] for one in watch.floor.sim.messages(to=phone) if "your code" in one["body"]]
        return bodies if len(bodies) >= count else []

    return code_in(watch.until(arrived, "no text with a code")[-1])


def state(person: User) -> PhoneConfirmation:
    return PhoneConfirmation.objects.get(user=person)


def wrong(code: str) -> str:
    return f"{(int(code) + 1) % 1_000_000:06d}"


@pytest.fixture
def ana(texting: Watch) -> User:  # noqa: F811
    """A dispatcher with a phone that she has not confirmed."""
    person = texting.dispatcher("Ana", phone="")
    User.objects.filter(pk=person.pk).update(phone=MINE)
    person.refresh_from_db()
    return person


@pytest.fixture
def code(texting: Watch, ana: User) -> Iterator[str]:  # noqa: F811
    """The code of a text that Ana asked for."""
    make.browser(ana).post(CODE, {"by": "text"})
    return texted_code(texting)


def test_changed_phone_gets_alerts_after_texted_code_is_entered(texting: Watch) -> None:  # noqa: F811
    ana = texting.dispatcher("Ana", phone="")
    client = make.browser(ana)
    assert (
        "We texted you a code."
        in client.post("/notifications/phone/", {"phone": MINE}, follow=True).content.decode()
    )
    ana.refresh_from_db()
    assert "Confirm your phone to receive alerts" in client.get("/health/").content.decode()
    alert = texting.alert()
    texting.after(600)
    assert ("Ana", "voice") not in {way[:2] for way in texting.ways(alert)}
    assert texting.called(ana) == 0

    client.post(CODE, {"by": "text"})  # the first one has expired
    assert client.post(CONFIRM, {"code": texted_code(texting)}).status_code == 302
    assert "Phone confirmed." in page_of(client)
    assert "Confirm your phone" not in client.get("/health/").content.decode()
    texting.until(lambda: texting.called(ana) or texting.after(600), "no call after the confirmation")
    assert ("Ana", "voice") in {way[:2] for way in texting.ways(alert)}


def test_code_is_spoken_in_a_call_in_members_language(texting: Watch, ana: User) -> None:  # noqa: F811
    User.objects.filter(pk=ana.pk).update(language="es")
    client = make.browser(ana)
    assert "Su teléfono sonará" in client.post(CODE, {"by": "call"}, follow=True).content.decode()
    assert Call.objects.get(purpose="confirm").status == "created"  # the request did not wait for the provider
    texting.until(lambda: texting.called(ana), "no call")
    call = texting.rings(ana).answer().hears("Su código es")
    digits = re.search(r"Su código es: ([\d, ]+)\.", call.said)
    assert digits is not None
    client.post(CONFIRM, {"code": digits[1].replace(",", "")})
    assert state(ana).confirmed_at is not None


def test_code_is_stored_nowhere(texting: Watch, ana: User, code: str) -> None:  # noqa: F811
    assert Text.objects.get(purpose="confirm").body == phone_confirmation.STORED_BODY
    with connection.cursor() as cursor:
        for table in connection.introspection.table_names():
            cursor.execute(f'SELECT count(*) FROM "{table}" t WHERE t::text ~ %s', [rf"\m{code}\M"])
            assert cursor.fetchone() == (0,), table


def test_wrong_codes_are_counted_and_five_lock_the_code(texting: Watch, ana: User, code: str) -> None:  # noqa: F811
    client = make.browser(ana)
    for left in ("4 tries left", "3 tries left", "2 tries left", "1 try left", "Send a new one"):
        answer = client.post(CONFIRM, {"code": wrong(code)})
        assert (answer.status_code, left in answer.content.decode()) == (422, True)
    assert "Too many wrong codes" in client.post(CONFIRM, {"code": code}).content.decode()
    assert not phone_confirmation.is_usable(texting.organization.pk, ana)
    client.post(CODE, {"by": "text"})
    assert client.post(CONFIRM, {"code": texted_code(texting, count=2)}).status_code == 302
    kinds = Event.objects.filter(kind__startswith="membership.phone").order_by("id").values_list("kind", flat=True)
    assert list(kinds) == [
        "membership.phone_code_sent", "membership.phone_code_locked", "membership.phone_code_sent",
        "membership.phone_confirmed",
    ]  # fmt: skip
    assert "membership" in chain.SUBJECTS, "these events are in the audit log"


@pytest.mark.parametrize("entered", ["", "abc", "１２３４５６", "0" * 5000, "\x7f'\"<>"])
def test_malformed_code_is_refused(ana: User, code: str, entered: str) -> None:
    assert make.browser(ana).post(CONFIRM, {"code": entered}).status_code == 422
    assert state(ana).confirmed_at is None


def test_code_expires_and_is_replaced_by_the_next(texting: Watch, ana: User, code: str) -> None:  # noqa: F811
    client = make.browser(ana)
    client.post(CODE, {"by": "text"})
    second = texted_code(texting, count=2)
    if second != code:
        assert client.post(CONFIRM, {"code": code}).status_code == 422
    clock.travel(601)
    assert "The code has expired" in client.post(CONFIRM, {"code": second}).content.decode()
    assert not phone_confirmation.is_usable(texting.organization.pk, ana)


def test_code_of_former_number_does_not_confirm_the_next(texting: Watch, ana: User, code: str) -> None:  # noqa: F811
    User.objects.filter(pk=ana.pk).update(phone="+16025550143")
    assert make.browser(ana).post(CONFIRM, {"code": code}).status_code == 422
    ana.refresh_from_db()
    assert not phone_confirmation.is_usable(texting.organization.pk, ana)


def test_admin_can_neither_confirm_nor_replace_a_members_phone(texting: Watch, ana: User, code: str) -> None:  # noqa: F811
    boss = texting.admin("Boss")
    assert make.browser(boss).post(CONFIRM, {"code": code}).status_code == 422
    make.browser(ana).post(CONFIRM, {"code": code})
    assert phone_confirmation.is_usable(texting.organization.pk, ana)
    page = f"/admin/accounts/user/{ana.pk}/change/"
    form = {"name": "Ana", "phone": "+16025550143"}
    management = {f"memberships-{part}": 0 for part in ("TOTAL_FORMS", "INITIAL_FORMS")}
    make.browser(boss).post(page, {**form, **management})
    ana.refresh_from_db()
    assert str(ana.phone) == "+16025550143"
    assert not phone_confirmation.is_usable(texting.organization.pk, ana)


def test_invited_phone_is_confirmed_by_the_invitee_only(texting: Watch) -> None:  # noqa: F811
    membership, _ = accounts.add_member(
        texting.organization, email="new@example.com", name="New", role="dispatcher", phone=MINE, actor=SYSTEM
    )
    link = invitations.send_invitation(membership).link
    chosen = "three blind llamas"
    Client().post(link, {"name": "New", "phone": MINE, "new_password1": chosen, "new_password2": chosen})
    person = User.objects.get(email="new@example.com")
    assert (str(person.phone), person.memberships.get().is_active) == (MINE, True)
    assert not phone_confirmation.is_usable(texting.organization.pk, person)
    make.browser(person).post(CODE, {"by": "text"})
    make.browser(person).post(CONFIRM, {"code": texted_code(texting)})
    assert phone_confirmation.is_usable(texting.organization.pk, person)


def test_confirmation_holds_for_its_organization_only(texting: Watch, ana: User, code: str) -> None:  # noqa: F811
    other = make.organization()
    Membership.objects.create(organization=other, user=ana, role="dispatcher")
    make.browser(ana).post(CONFIRM, {"code": code})
    assert phone_confirmation.is_usable(texting.organization.pk, ana)
    assert not phone_confirmation.is_usable(other.pk, ana)
    User.objects.filter(pk=ana.pk).update(is_superuser=True)
    assert phone_confirmation.is_usable(other.pk, ana), "a superuser's holds everywhere"


def test_codes_are_limited_per_member_phone_address_and_organization(
    texting: Watch,  # noqa: F811
    ana: User,
    settings: object,
) -> None:
    client = make.browser(ana)
    for _ in range(5):
        client.post(CODE, {"by": "text"})
    assert "Too many codes were sent" in client.post(CODE, {"by": "text"}, follow=True).content.decode()
    assert state(ana).codes_sent == 5

    bob = texting.dispatcher("Bob", phone="")
    User.objects.filter(pk=bob.pk).update(phone=MINE)
    assert "Too many codes" in make.browser(bob).post(CODE, {"by": "call"}, follow=True).content.decode()
    User.objects.filter(pk=bob.pk).update(phone="+16025550150")
    for name in ("PHONE_CODE_ADDRESS_RATE", "PHONE_CODE_ORGANIZATION_RATE"):
        setattr(settings, name, "1/hour")
        assert "Too many codes" in make.browser(bob).post(CODE, {"by": "text"}, follow=True).content.decode(), name
        setattr(settings, name, "1000/hour")
    assert "We texted you a code" in make.browser(bob).post(CODE, {"by": "text"}, follow=True).content.decode()


def test_text_that_cannot_be_sent_says_so_and_offers_the_call(texting: Watch, ana: User) -> None:  # noqa: F811
    client = make.browser(ana)
    telephony.opt_out(texting.organization.pk, MINE)
    assert "opted out of texts (STOP). Get the code by call." in client.post(
        CODE, {"by": "text"}, follow=True
    ).content.decode().replace("&#x27;", "'")
    telephony.opt_in(texting.organization.pk, MINE)
    OutboundNumber.objects.update(sends_texts=False)
    assert (
        "can send texts. Get the code by call." in client.post(CODE, {"by": "text"}, follow=True).content.decode()
    )
    assert client.post(CODE, {"by": "fax"}).status_code == 400
    assert not Text.objects.filter(purpose="confirm").exists()


def test_undelivered_code_is_reported(texting: Watch, ana: User) -> None:  # noqa: F811
    texting.phone(ana).texts_will("undelivered", 30003)
    client = make.browser(ana)
    client.post(CODE, {"by": "text"})
    texted_code(texting)
    texting.until(lambda: "The text with the code was not delivered." in page_of(client))


def test_phone_in_use_before_the_upgrade_is_accepted_for_a_month(texting: Watch, ana: User) -> None:  # noqa: F811
    root = make.user("Root", is_superuser=True, phone="+16025550151")
    migration = import_module("notifications.migrations.0005_phone_confirmation")
    with connection.cursor() as cursor:
        cursor.execute(migration.ACCEPT_PHONES_IN_USE)
    for person in (ana, root):
        assert phone_confirmation.is_usable(texting.organization.pk, person)
        assert phone_confirmation.needs_confirmation(texting.organization.pk, person)
    assert "Alerts still text and call (602) 555-0142 until" in page_of(make.browser(ana))
    clock.travel(timedelta(days=31).total_seconds())
    assert not phone_confirmation.usable_phones(texting.organization.pk, [ana, root])
