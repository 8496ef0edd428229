"""The link in a chat message acknowledges one alert, for one person, once, and never by being opened."""

from __future__ import annotations

import re
from typing import Any

import pytest
from django.core.signing import Signer
from django.db import transaction
from django.test import Client

from accounts.models import Membership, Organization, User
from accounts.tenancy import actor_of
from dispatch.core import clock, events
from dispatch.core.models import Event
from notifications import loops
from notifications.models import Alert, Delivery
from notifications.services import acknowledge_alert, chat_channels
from notifications.services.notifications import handle_early
from tests.notifications.chat_services import Answers
from tests.support import factories as make

pytestmark = pytest.mark.django_db(transaction=True)


class Desk:
    """A dispatcher with a channel, an open alert, and the link that the channel got."""

    def __init__(self, chat_services: Answers, *, for_team: bool = False) -> None:
        self.services = chat_services
        self.office = make.organization("Desert Air")
        self.dora = make.dispatcher(self.office, "Dora", on_duty=True)
        self.channel = chat_channels.add_channel(
            self.office, None if for_team else self.dora, "slack", "", chat_services.entered("slack"),
            actor=actor_of(self.dora),
        )  # fmt: skip
        with transaction.atomic():
            event = events.append(self.office.pk, "schedule.failing", 12, name="Nightly", error="no line")
            handle_early(Event.objects.get(pk=event.pk))
        self.link = self.next_link()

    @property
    def alert(self) -> Alert:
        return Alert.objects.get()

    def next_link(self) -> str:
        """Escalate, and return the path in the newest message."""
        clock.travel(130)
        loops.escalate()
        while loops.send_chat() == 0:
            pass
        found = re.findall(r"Acknowledge: https?://[^/]+(/[^\\ ]+)", self.services.requests[-1].body.decode())
        return str(found[0])


@pytest.fixture
def desk(chat_services: Answers) -> Desk:
    return Desk(chat_services)


def test_opening_the_link_acknowledges_nothing(desk: Desk) -> None:
    """Chat services open links for their previews, without cookies."""
    for ask in (Client().get, Client().head):
        answer = ask(desk.link, headers={"User-Agent": "Slackbot-LinkExpanding 1.0"})
        assert answer.status_code == 200
        assert "no-store" in answer["Cache-Control"]
        assert "noindex" in answer["X-Robots-Tag"]
    assert desk.alert.status == Alert.Status.OPEN


def test_button_acknowledges_as_the_person_of_the_channel(desk: Desk) -> None:
    page = Client(enforce_csrf_checks=True)
    assert "Acknowledge" in page.get(desk.link).content.decode()
    answer = page.post(desk.link, follow=True)
    assert "You acknowledged this alert" in answer.content.decode()
    alert = desk.alert
    assert (alert.status, alert.acknowledged_by, alert.acknowledged_via) == ("acknowledged", desk.dora, "link")
    event = Event.objects.get(kind="schedule.alert_acknowledged")
    assert (event.actor_id, event.data["via"]) == (desk.dora.pk, "link")


def test_link_used_twice_changes_nothing_the_second_time(desk: Desk) -> None:
    Client().post(desk.link)
    first = desk.alert.acknowledged_at
    clock.travel(60)
    answer = Client().post(desk.link, follow=True)
    assert "You acknowledged this alert" in answer.content.decode()
    assert desk.alert.acknowledged_at == first
    assert Event.objects.filter(kind="schedule.alert_acknowledged").count() == 1


def test_used_link_does_not_acknowledge_the_alert_that_came_back(desk: Desk) -> None:
    Client().post(desk.link)
    clock.travel(1000)
    loops.escalate()  # nothing has followed, so it opens again
    newer = desk.next_link()
    assert desk.alert.status == Alert.Status.OPEN
    for ask in (Client().get, Client().post):
        assert ask(desk.link).status_code == 410
    assert desk.alert.status == Alert.Status.OPEN
    Client().post(newer)
    assert desk.alert.status == Alert.Status.ACKNOWLEDGED


def test_link_of_an_alert_that_a_colleague_acknowledged_names_the_colleague(desk: Desk) -> None:
    dan = make.dispatcher(desk.office, "Dan")
    acknowledge_alert(desk.alert.pk, user=dan, actor=actor_of(dan), via="app")
    answer = Client().post(desk.link, follow=True)
    assert "Dan already acknowledged this alert." in answer.content.decode()
    assert desk.alert.acknowledged_by == dan


def test_expired_link_acknowledges_nothing(desk: Desk) -> None:
    clock.travel(25 * 3600)
    for ask in (Client().get, Client().post):
        answer = ask(desk.link)
        assert answer.status_code == 410
        assert "Nightly" not in answer.content.decode()
    assert desk.alert.status == Alert.Status.OPEN


def test_forged_link_is_no_link(desk: Desk) -> None:
    numbers, _, signature = desk.link.removeprefix("/a/").rstrip("/").partition(".")
    delivery, returns, until = numbers.split("-")
    other_kind = Signer(salt="dispatch.jobs.offer", sep=".").sign(numbers)
    forged = [
        f"{int(delivery) + 1}-{returns}-{until}.{signature}",
        f"{delivery}-{returns}-{int(until) + 9000}.{signature}",
        f"{numbers}.{signature[:-2]}AA",
        numbers,
        other_kind,
    ]
    for token in forged:
        assert Client().post(f"/a/{token}/").status_code == 404, token
    assert Client().get(f"/o/{numbers}.{signature}/").status_code == 404, "of no other kind"
    assert desk.alert.status == Alert.Status.OPEN


def _leave(desk: Desk) -> None:
    Membership.objects.filter(user=desk.dora).update(is_active=False, on_duty=False)


def _deactivate(desk: Desk) -> None:
    User.objects.filter(pk=desk.dora.pk).update(is_active=False)


def _close(desk: Desk) -> None:
    Organization.objects.filter(pk=desk.office.pk).update(is_active=False)


def _remove(desk: Desk) -> None:
    chat_channels.remove_channel(desk.channel, actor=actor_of(desk.dora))


@pytest.mark.parametrize("change", [_leave, _deactivate, _close, _remove])
def test_link_ends_with_what_it_belongs_to(desk: Desk, change: Any) -> None:
    change(desk)
    for ask in (Client().get, Client().post):
        assert ask(desk.link).status_code == 410
    assert desk.alert.status == Alert.Status.OPEN


def test_link_of_a_team_asks_for_sign_in_and_names_the_member(chat_services: Answers) -> None:
    desk = Desk(chat_services, for_team=True)
    anybody = Client(enforce_csrf_checks=True)
    assert "login" in anybody.get(desk.link)["Location"]
    assert anybody.post(desk.link.partition("?")[0]).status_code in (302, 403)
    stranger = make.browser(make.dispatcher(make.organization("Other"), "Olga"))
    for ask in (stranger.get, stranger.post):
        assert ask(desk.link.partition("?")[0]).status_code == 404
    assert desk.alert.status == Alert.Status.OPEN
    dora = make.browser(desk.dora)
    assert "Acknowledge for everyone" in dora.get(desk.link, follow=True).content.decode()
    answer = dora.post(desk.link.partition("?")[0], follow=True)
    assert "Acknowledged by Dora" in answer.content.decode()
    assert desk.alert.acknowledged_by == desk.dora
    assert not Delivery.objects.filter(notification__user=None, status="failed").exists()
