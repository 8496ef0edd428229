"""What a receiver may send from the portal at once, and what happens at a limit."""

from __future__ import annotations

import re
from datetime import timedelta
from typing import Any
from zoneinfo import ZoneInfo

import pytest

from accounts import limits
from accounts.models import OrganizationLimits
from dispatch.core import clock
from dispatch.outbox.models import Endpoint, Message
from dispatch.outbox.services import portal
from tests.api.client import Api
from tests.harness.outbox import World
from tests.outbox.test_portal import Visitor, create
from tests.support import factories

pytestmark = pytest.mark.django_db(transaction=True)
HIDDEN = re.compile(r'<input type="hidden" name="(since|which|after)" value="([^"]+)">')


@pytest.fixture
def erp(world: World) -> Endpoint:
    return world.endpoint(retry_schedule_s=[], mode="NEXT_ON_ERROR")


@pytest.fixture
def visitor(world: World, erp: Endpoint) -> Visitor:
    return Visitor(create(Api(key=factories.api_key(world.organization)), endpoint=erp.name))


def an_hour_ago(world: World) -> str:
    """Return a time as the page's form sends it, in the organization's zone."""
    local = clock.now().astimezone(ZoneInfo(world.organization.time_zone))
    return f"{local - timedelta(hours=1):%Y-%m-%dT%H:%M}"


def sent_again(visitor: Visitor, endpoint: Endpoint, **fields: Any) -> tuple[str, dict[str, str]]:
    """Send many again; return the page, and what its "Continue" sends."""
    page = visitor.act(endpoint, "many", **fields).content.decode()
    return page, dict(HIDDEN.findall(page))


def test_everything_since_a_moment_is_sent_again_in_parts(
    world: World, erp: Endpoint, visitor: Visitor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(portal, "MAX_REPLAYED", 2)
    ids = world.send(erp, *"abcde")
    world.start()
    world.all_end()
    page, rest = sent_again(visitor, erp, since=an_hour_ago(world), which="all")
    assert "2 messages will be sent again" in page
    assert "There are more." in page
    parts = 1
    while rest:
        world.all_end()  # what was delivered again qualifies again
        page, rest = sent_again(visitor, erp, **rest)
        parts += 1
        assert parts <= 3, "the rest is never reached"
    assert "1 message will be sent again" in page
    assert "There are more." not in page
    world.all_end()
    assert list(Message.objects.order_by("id").values_list("pk", "replays")) == [(pk, 1) for pk in ids]


def test_failed_messages_that_fail_again_do_not_hide_the_rest(
    world: World, erp: Endpoint, visitor: Visitor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(portal, "MAX_REPLAYED", 2)
    for name in "ab":
        world.receiver.answer(name, 500)
    world.receiver.answer("c", 500, times=1)
    ids = world.send(erp, *"abc")
    world.start()
    world.all_end()
    assert world.statuses(ids) == ["ERROR"] * 3
    _, rest = sent_again(visitor, erp, since=an_hour_ago(world))
    world.all_end()
    assert rest["which"] == "failed"
    page, rest = sent_again(visitor, erp, **rest)
    assert "1 message will be sent again" in page
    assert not rest
    world.all_end()
    assert world.statuses(ids) == ["ERROR", "ERROR", "COMPLETED"]


@pytest.mark.parametrize("after", ["", "-1", "x", "9" * 30])
def test_a_malformed_continuation_begins_at_the_first(
    world: World, erp: Endpoint, visitor: Visitor, after: str
) -> None:
    ids = world.send(erp, "a")
    world.act("cancel", *ids)
    page, _ = sent_again(visitor, erp, since=an_hour_ago(world), which="all", after=after)
    assert "1 message will be sent again" in page


def test_a_test_beyond_the_message_limit_is_refused(world: World, erp: Endpoint, visitor: Visitor) -> None:
    OrganizationLimits.objects.create(organization=world.organization, messages=1)
    limits.reset()
    sent = visitor.act(erp, "test")["Location"]
    assert '<p class="notice good" role="status">' in visitor.client.get(sent).content.decode()
    refused = visitor.act(erp, "test")
    assert refused.status_code == 302, refused.content[:500]
    page = visitor.client.get(refused["Location"]).content.decode()
    assert "No test message was sent: too many messages are waiting. Try again later." in page
    assert '<p class="notice late" role="status">' in page
    assert Message.objects.count() == 1
