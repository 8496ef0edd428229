"""People who have left an organization neither get its alerts nor acknowledge them."""

from __future__ import annotations

import smtplib
from collections.abc import Callable

import pytest

from accounts import services as accounts
from accounts.models import Membership, Organization, User
from dispatch.core import clock
from dispatch.core.events import SYSTEM
from dispatch.core.models import Event
from dispatch.telephony.models import Text
from notifications import loops
from notifications.models import Alert, Delivery, EscalationPolicy, EscalationStep
from notifications.services import deliveries
from tests.notifications.conftest import Watch
from tests.notifications.test_alert_texts import only_texts, send_texts, text_goes_out, texting  # noqa: F401
from tests.notifications.test_alerts import notify, turns_pending
from tests.notifications.test_email import ours  # noqa: F401
from tests.support.tenants import Tenant

pytestmark = pytest.mark.django_db(transaction=True)

Leave = Callable[[User], None]


def remove(person: User) -> None:
    accounts.remove_member(Membership.objects.get(user=person).pk, actor=SYSTEM)


def deactivate(person: User) -> None:
    User.objects.filter(pk=person.pk).update(is_active=False)


@pytest.fixture(params=[remove, deactivate], ids=["removed", "deactivated"])
def leave(request: pytest.FixtureRequest) -> Leave:
    chosen: Leave = request.param
    return chosen


@pytest.fixture
def ana(texting: Watch) -> User:  # noqa: F811
    """A dispatcher who got the open alert of a job by text; Bob has it as well."""
    person = texting.dispatcher("Ana")
    texting.dispatcher("Bob", on_duty=False)
    only_texts(texting, person)
    texting.alert()
    text_goes_out(texting, person)
    return person


# --- By phone ----------------------------------------------------------------------------------------------------
def test_former_member_who_calls_back_hears_no_alert(texting: Watch, ana: User, leave: Leave) -> None:  # noqa: F811
    leave(ana)
    call = texting.phone(ana).calls_us(str(texting.floor.number.phone), press="1")
    call.hears("We have nothing waiting for you").ended()
    call.has_not_heard("This is an alert")
    assert Alert.objects.get().status == "open"


def test_key_after_leaving_acknowledges_nothing(texting: Watch, ana: User, leave: Leave) -> None:  # noqa: F811
    call = texting.phone(ana).calls_us(str(texting.floor.number.phone)).hears("To acknowledge, press 1")
    leave(ana)
    call.press("1").ended()
    call.has_not_heard("You acknowledged")
    assert Alert.objects.get().status == "open"


def test_text_of_a_former_member_acknowledges_nothing(texting: Watch, ana: User, leave: Leave) -> None:  # noqa: F811
    leave(ana)
    texting.phone(ana).texts_us(str(texting.floor.number.phone), "1")
    texting.until(lambda: Text.objects.filter(from_phone=str(ana.phone)).exclude(handled_at=None))
    assert Alert.objects.get().status == "open"


def test_colleague_with_the_same_phone_still_acknowledges(texting: Watch, ana: User) -> None:  # noqa: F811
    bea = texting.dispatcher("Bea", phone=str(ana.phone), on_duty=False)
    only_texts(texting, bea)
    texting.after(200)
    texting.until(lambda: ("Bea", "sms", "sent") in texting.ways(Alert.objects.get()) or send_texts())
    newest = Delivery.objects.filter(channel="sms").latest("pk").notification.user
    remove(newest)
    other = ana if newest == bea else bea
    texting.phone(other).texts_us(str(texting.floor.number.phone), "1")
    texting.until(lambda: Alert.objects.get().acknowledged_by == other)


@pytest.mark.parametrize("press", ["1", "*"])
def test_key_in_an_alert_call_after_leaving_reveals_nothing(watch: Watch, leave: Leave, press: str) -> None:
    person = watch.dispatcher("Ana")
    watch.dispatcher("Bob", on_duty=False)
    watch.alert()
    watch.after(121)
    call = watch.rings(person).answer().hears("To acknowledge, press 1")
    leave(person)
    call.press(press).hears("Goodbye").ended()
    call.has_not_heard("You acknowledged")
    assert call.said.count("This is an alert") == 1
    assert Alert.objects.get().status == "open"


def test_call_that_a_former_member_answers_reveals_nothing(watch: Watch, leave: Leave) -> None:
    person = watch.dispatcher("Ana")
    watch.dispatcher("Bob", on_duty=False)
    watch.alert()
    watch.after(121)
    ringing = watch.rings(person)
    leave(person)
    ringing.answer().hears("Goodbye").ended()
    ringing.has_not_heard("This is an alert")


# --- What waits to be sent ---------------------------------------------------------------------------------------
def test_email_that_waits_is_withdrawn_when_its_reader_leaves(
    ours: Tenant,  # noqa: F811
    mailoutbox: list,
    monkeypatch: pytest.MonkeyPatch,
    leave: Leave,
) -> None:
    def refuse(message: object) -> None:
        raise smtplib.SMTPServerDisconnected("gone")

    with monkeypatch.context() as outage:
        outage.setattr("django.core.mail.EmailMultiAlternatives.send", refuse)
        turns_pending(ours)
        notify()
        loops.send_email()
    leave(ours.dispatcher)
    clock.travel(deliveries.EMAIL_RETRIES_S[0] + 1)
    loops.send_email()
    assert mailoutbox == []
    row = Delivery.objects.get(channel="email")
    assert (row.status, row.error) == ("dropped", deliveries.LEFT)
    assert Event.objects.get(kind="delivery.dropped").data["why"] == deliveries.LEFT


def test_text_and_call_are_withdrawn_when_their_person_leaves(watch: Watch, leave: Leave) -> None:
    person = watch.dispatcher("Ana")
    watch.dispatcher("Bob", on_duty=False)
    alert = watch.alert()
    clock.travel(121)
    loops.escalate()
    leave(person)
    watch.run()
    assert watch.called(person) == 0
    found = [row for row in watch.ways(alert) if row[0] == "Ana" and row[1] != "email"]
    assert {status for _, _, status in found} == {"dropped"}


def test_cycle_whose_only_person_left_ends_with_the_last_resort(watch: Watch, leave: Leave) -> None:
    plan = EscalationPolicy.objects.create(organization=watch.organization)
    for position in (1, 2):
        EscalationStep.objects.create(
            organization=watch.organization, policy=plan, position=position, audience="on_duty", after_s=120
        )
    person = watch.dispatcher("Ana")
    bob = watch.dispatcher("Bob", on_duty=False)
    alert = watch.alert()
    clock.travel(121)
    loops.escalate()
    leave(person)
    watch.run()
    watch.after(121)
    assert watch.called(person) == 0
    assert Event.objects.filter(kind="job.alert_escalated", data__is_last_resort=True).exists(), watch.ways(alert)
    watch.rings(bob)


def test_text_that_waits_at_the_phone_provider_is_withdrawn(texting: Watch, leave: Leave) -> None:  # noqa: F811
    person = texting.dispatcher("Ana")
    texting.dispatcher("Bob", on_duty=False)
    only_texts(texting, person)
    texting.alert()
    texting.after(121)
    leave(person)
    send_texts()
    assert Text.objects.get(purpose="alert").status == "canceled"
    row = Delivery.objects.get(channel="sms", notification__user=person)
    assert (row.status, row.error) == ("dropped", deliveries.LEFT)


def test_emails_of_an_inactive_organization_are_withdrawn(ours: Tenant, mailoutbox: list) -> None:  # noqa: F811
    turns_pending(ours)
    notify()
    Organization.objects.filter(pk=ours.organization.pk).update(is_active=False)
    loops.send_email()
    assert mailoutbox == []
    row = Delivery.objects.get(channel="email")
    assert (row.status, row.error) == ("dropped", deliveries.INACTIVE)
