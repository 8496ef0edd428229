"""The REST API for chat channels and browsers: secrets are write-only, and nobody sees a colleague's."""

from __future__ import annotations

from typing import Any

import pytest

from accounts.models import Organization, User
from notifications.models import AlertChannel, Delivery, PushSubscription
from notifications.services import chat_channels
from tests.api.client import Api
from tests.notifications.chat_services import SLACK_URL
from tests.support import factories as make

pytestmark = pytest.mark.django_db

OWN, TEAM, BROWSERS = "/api/v1/alert-channels/", "/api/v1/team-channels/", "/api/v1/push-subscriptions/"
SLACK = {"kind": "slack", "name": "Night shift", "config": {"url": SLACK_URL}}


def api_of(user: User) -> Api:
    return Api(user=user)


def test_channel_is_added_tested_listed_and_removed(office: Organization) -> None:
    dora = api_of(make.dispatcher(office, "Dora"))
    added = dora.post(OWN, SLACK)
    assert added.status_code == 201
    pk = added.json()["id"]
    assert (added.json()["address"], "config" in added.json()) == ("hooks.slack.com", False)
    assert AlertChannel.objects.get().config["tokens"][0] == "T0001"
    assert dora.post(f"{OWN}{pk}/test/").status_code == 202
    assert Delivery.objects.get().destination_id == pk
    (listed,) = dora.get(OWN).json()["results"]
    assert "T0001" not in str(listed)
    assert dora.delete(f"{OWN}{pk}/").status_code == 204
    assert dora.get(OWN).json()["results"] == []
    assert AlertChannel.objects.get().config == {}


def test_colleagues_channels_and_browsers_are_hidden(office: Organization) -> None:
    dora, dan = api_of(make.dispatcher(office, "Dora")), api_of(make.dispatcher(office, "Dan"))
    pk = dora.post(OWN, SLACK).json()["id"]
    browser = PushSubscription.objects.create(
        organization=office, user=User.objects.get(name="Dora"), name="Chrome", host="x", endpoint="secret",
        endpoint_hash="1",
    )  # fmt: skip
    assert dan.get(f"{OWN}{pk}/").status_code == 404
    assert dan.delete(f"{OWN}{pk}/").status_code == 404
    assert dan.post(f"{OWN}{pk}/test/").status_code == 404
    assert dan.delete(f"{BROWSERS}{browser.pk}/").status_code == 404
    (shown,) = dora.get(BROWSERS).json()["results"]
    assert "secret" not in str(shown)
    assert dora.delete(f"{BROWSERS}{browser.pk}/").status_code == 204
    assert not PushSubscription.objects.exists()


def test_team_channels_are_for_admins_to_change(office: Organization) -> None:
    admin, dora = api_of(make.admin(office, "Alma")), api_of(make.dispatcher(office, "Dora"))
    assert dora.post(TEAM, SLACK).status_code == 403
    added = admin.post(TEAM, {**SLACK, "scope": "shown", "audience": "admins"})
    assert added.status_code == 201
    row = AlertChannel.objects.get()
    assert (row.user, row.scope, row.audience) == (None, "shown", "admins")
    assert [one["id"] for one in dora.get(TEAM).json()["results"]] == [row.pk]
    assert dora.get(OWN).json()["results"] == []
    assert dora.delete(f"{TEAM}{row.pk}/").status_code == 403
    assert admin.delete(f"{TEAM}{row.pk}/").status_code == 204


@pytest.mark.parametrize(
    ("body", "named"),
    [
        ({"kind": "slack", "config": {"url": "http://169.254.169.254/"}}, "config"),
        ({"kind": "slack", "config": {}}, "config"),
        ({"kind": "slack", "config": []}, "config"),
        ({"kind": "ntfy", "config": {"server": "https://10.0.0.1", "topic": "x"}}, "config"),
        ({"kind": "mailto", "config": {}}, "kind"),
        ({"kind": "slack"}, "config"),
    ],
)
def test_wrong_channel_is_refused_by_field(office: Organization, body: dict[str, Any], named: str) -> None:
    answer = api_of(make.dispatcher(office, "Dora")).post(OWN, body)
    assert answer.status_code == 400
    assert named in answer.content.decode()
    assert not AlertChannel.objects.exists()


def test_number_of_channels_is_limited(office: Organization) -> None:
    dora = api_of(make.dispatcher(office, "Dora"))
    for _ in range(chat_channels.MAX_PER_PERSON):
        assert dora.post(OWN, SLACK).status_code == 201
    answer = dora.post(OWN, SLACK)
    assert answer.status_code == 400
    assert "At most 5 channels" in answer.content.decode()
