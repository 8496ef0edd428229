"""A lost phone gets no push notifications after the links to its technician's page are revoked."""

from __future__ import annotations

from urllib.parse import urlsplit

import pytest
from django.core.exceptions import ValidationError
from django.test import Client

from dispatch.core.events import Actor
from dispatch.core.models import Event
from dispatch.jobs import signed_links
from dispatch.technicians import services as technicians
from dispatch.technicians.models import Technician
from notifications import loops
from notifications.models import PushMessage, PushSubscription
from notifications.services import push_keys, push_subscriptions
from tests.harness.jobs import MARIA, Floor
from tests.harness.lost_phones import Loss
from tests.jobs.conftest import floor  # noqa: F401
from tests.notifications.push_service import PushService

pytestmark = pytest.mark.django_db(transaction=True)


def turn_on(push_service: PushService, technician: Technician, name: str = "phone") -> PushSubscription:
    browser = push_service.browser(name)
    browser.server_key = push_keys.load_keys().public
    entered, actor = browser.subscription, Actor("technician", technician.pk, technician.name)
    return push_subscriptions.subscribe(technician.organization, technician, entered, agent="", actor=actor)


def send() -> None:
    while loops.send_push() == 0 and PushMessage.objects.filter(status="waiting").exists():
        pass


def test_lost_phone_gets_no_offer_and_no_job(
    push_service: PushService, floor: Floor, lose_phone: Loss  # noqa: F811
) -> None:  # fmt: skip
    ann, bob = floor.crew("Ann", "Bob")
    turn_on(push_service, ann)
    turn_on(push_service, bob, "bob")
    lose_phone(ann)
    ann.refresh_from_db()
    submission = floor.submit()
    call = floor.rings(ann)
    send()
    call.answer().press("1")
    floor.until(lambda: floor.status(submission) == "assigned")
    send()
    assert push_service.pushed == []
    assert list(PushSubscription.objects.values_list("technician__name", flat=True)) == ["Bob"]
    event = Event.objects.get(kind="push_subscription.removed")
    assert (event.data["technician_id"], event.actor_label) == (ann.pk, "Maria Lopez")


def test_message_that_waits_does_not_reach_a_lost_phone(
    push_service: PushService, floor: Floor, lose_phone: Loss  # noqa: F811
) -> None:  # fmt: skip
    (ann,) = floor.crew("Ann")
    turn_on(push_service, ann)
    floor.submit()
    floor.rings(ann)
    assert PushMessage.objects.filter(purpose="offer", status="waiting").exists()
    lose_phone(ann)
    send()
    assert push_service.pushed == []


def test_technician_turns_push_on_again_from_a_new_link(
    push_service: PushService, floor: Floor, lose_phone: Loss  # noqa: F811
) -> None:  # fmt: skip
    (ann,) = floor.crew("Ann")
    turn_on(push_service, ann)
    lose_phone(ann)
    ann.refresh_from_db()
    turn_on(push_service, ann, "new")
    floor.submit()
    floor.rings(ann)
    send()
    (pushed,) = push_service.pushed
    assert Client().get(pushed.payload["url"]).status_code == 200


def test_old_link_turns_no_push_on(
    push_service: PushService, floor: Floor, lose_phone: Loss  # noqa: F811
) -> None:  # fmt: skip
    (ann,) = floor.crew("Ann")
    path = urlsplit(signed_links.technician_url(ann)).path
    lose_phone(ann)
    sent = {"do": "on", "subscription": push_service.browser("phone").subscription}
    assert Client().post(f"{path}push/", sent, content_type="application/json").status_code == 404
    # a request that was on its way when the links were revoked
    with pytest.raises(ValidationError, match="This link is no longer valid"):
        turn_on(push_service, ann)
    assert not PushSubscription.objects.exists()


def test_other_changes_of_a_technician_keep_push_on(
    push_service: PushService, floor: Floor  # noqa: F811
) -> None:  # fmt: skip
    (ann,) = floor.crew("Ann")
    turn_on(push_service, ann)
    technicians.change_technician(ann.pk, {"name": "Anna", "phone": str(ann.phone)}, actor=MARIA)
    assert PushSubscription.objects.filter(technician=ann).exists()
