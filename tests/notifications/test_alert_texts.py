"""Alerts by SMS: sent beside the calls; a reply acknowledges, and calling back plays the alert."""

from __future__ import annotations

import pytest
from django.db import transaction

from accounts.models import User
from accounts.tenancy import actor_of
from dispatch.capacity.models import OutboundNumber
from dispatch.core import clock
from dispatch.telephony import services, sms_rules, webhook_urls
from dispatch.telephony.loops import LOOPS
from dispatch.telephony.models import Text
from notifications import loops, rendering
from notifications.models import Alert, Delivery, Notification, Preference
from notifications.services import acknowledge
from notifications.services.deliveries import apply_text_report
from tests.core.threads import Elsewhere
from tests.notifications.conftest import Watch
from tests.support import factories

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def texting(watch: Watch) -> Watch:
    """A setup whose number may text, with webhook URLs configured at the provider."""
    number = watch.floor.number
    OutboundNumber.objects.filter(pk=number.pk).update(sends_texts=True, texts_per_second=1000)
    number.refresh_from_db()
    watch.floor.sim.add_number(
        str(number.phone),
        sms_url=webhook_urls.number_webhook(number, "sms"),
        voice_url=webhook_urls.number_webhook(number, "voice"),
    )
    return watch


def send_texts() -> None:
    next(loop for loop in LOOPS if loop.name == "texts").step()


def only_texts(watch: Watch, person: User) -> None:
    Preference.objects.create(organization=watch.organization, user=person, kind="job.pending", sms=True)


def text_goes_out(watch: Watch, person: User) -> dict:
    watch.after(121)
    return gets(watch, person, "Reply 1 to acknowledge")


def gets(watch: Watch, person: User, said: str) -> dict:
    """Send what is due until the text arrives."""

    def arrived() -> dict | None:
        send_texts()
        found = [one for one in watch.floor.sim.messages(to=str(person.phone)) if said in one["body"]]
        return found[-1] if found else None

    return watch.until(arrived, f"no text with {said!r}")


def test_an_alert_goes_out_by_text_and_the_answer_1_stops_everything(texting):
    ana, bob = texting.dispatcher("Ana", order=1), texting.dispatcher("Bob", order=2)
    only_texts(texting, ana)
    alert = texting.alert()
    said = text_goes_out(texting, ana)["body"]
    assert said.startswith(f"Copper State Plumbing: Job {alert.subject_id} needs a dispatcher")
    assert len(said) <= rendering.MAX_TEXT_LENGTH
    assert sms_rules.segments(said) == -(-len(said) // 153), "every character is in the short alphabet"
    texting.until(lambda: ("Ana", "sms", "sent") in texting.ways(alert))
    texting.phone(ana).texts_us(str(texting.floor.number.phone), "1")
    texting.until(lambda: Alert.objects.get().acknowledged_by == ana)
    assert Alert.objects.get().acknowledged_via == "text"
    gets(texting, ana, "Thank you. You acknowledged: Job")
    texting.after(3600)
    assert texting.called(bob) == 0


def test_the_second_answer_hears_who_was_first(texting):
    ana, bob = texting.dispatcher("Ana", on_duty=False), texting.dispatcher("Bob", on_duty=False)
    for person in (ana, bob):
        only_texts(texting, person)
    texting.alert()
    text_goes_out(texting, ana)
    for person in (ana, bob):
        texting.phone(person).texts_us(str(texting.floor.number.phone), "1")
        texting.until(lambda p=person: Text.objects.filter(from_phone=str(p.phone)).exclude(handled_at=None))
    gets(texting, bob, "Ana already acknowledged this alert.")
    assert Alert.objects.get().acknowledged_by == ana


def test_call_back_hears_the_alert_and_can_acknowledge_it(texting):
    ana = texting.dispatcher("Ana")
    only_texts(texting, ana)
    texting.alert()
    text_goes_out(texting, ana)
    call = texting.phone(ana).calls_us(str(texting.floor.number.phone))
    call.hears("To acknowledge, press 1").press("1").hears("You acknowledged")
    assert Alert.objects.get().acknowledged_via == "phone"


def test_opted_out_user_is_called_instead_of_texted(texting):
    ana = texting.dispatcher("Ana")
    services.opt_out(texting.organization.pk, str(ana.phone))
    alert = texting.alert()
    texting.after(121)
    assert [(who, channel) for who, channel, _ in texting.ways(alert) if channel != "email"] == [("Ana", "voice")]


def test_a_text_that_waits_is_not_sent_when_somebody_has_the_alert(texting):
    ana = texting.dispatcher("Ana")
    only_texts(texting, ana)
    alert = texting.alert()
    texting.after(121)
    acknowledge(Notification.objects.get(user=ana).pk, user=ana, actor=actor_of(ana))
    send_texts()
    assert Text.objects.get(purpose="alert").status == "canceled"
    clock.travel(121)
    loops.use_phone()
    assert ("Ana", "sms", "dropped") in texting.ways(alert)


def test_a_text_that_did_not_arrive_after_all_is_failed(texting):
    ana = texting.dispatcher("Ana")
    only_texts(texting, ana)
    texting.phone(ana).texts_will("undelivered", 30003)
    alert = texting.alert()
    text_goes_out(texting, ana)
    texting.until(lambda: ("Ana", "sms", "failed") in texting.ways(alert))


def test_sent_and_undelivered_reports_may_arrive_together(texting):
    ana = texting.dispatcher("Ana")
    only_texts(texting, ana)
    texting.alert()
    texting.after(121)
    text = Text.objects.get(purpose="alert")
    text.status, text.ended_at, text.error_message = "undelivered", clock.now(), "Unreachable"
    with transaction.atomic():
        sending = Delivery.objects.filter(pk=text.subject_id, status="sending")
        assert sending.update(status="sent", next_attempt_at=None, ended_at=clock.now())
        late = Elsewhere(lambda: apply_text_report(text))
        late.wait_for_lock()
    late.finish()
    delivery = Delivery.objects.get(pk=text.subject_id)
    assert (delivery.status, delivery.error) == ("failed", "Unreachable")


def test_alert_is_not_texted_to_a_former_phone(texting):
    ana = texting.dispatcher("Ana")
    only_texts(texting, ana)
    texting.alert()
    texting.after(121)
    text = Text.objects.get(purpose="alert")
    User.objects.filter(pk=ana.pk).update(phone=factories.phone())
    send_texts()
    text.refresh_from_db()
    assert text.status == "canceled"
    texting.until(lambda: ("Ana", "sms", "failed") in texting.ways(Alert.objects.get()))
