"""The outbox's pages: what blocks a group and since when, why a message is stuck, and the available actions."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from django.test import Client

from accounts.models import Organization, OrganizationLimits
from dispatch.capacity.models import DispatchPool
from dispatch.core import clock, events
from dispatch.core.events import SYSTEM
from dispatch.core.models import Event, EventCursor
from dispatch.outbox.models import Endpoint, Message
from dispatch.outbox.services import target_health
from tests.core.horizon import all_readable
from tests.harness.outbox import World, open_world
from tests.support import factories as make
from tests.support.waiting import wait_until

HTMX = {"HX-Request": "true"}


@pytest.fixture
def world(transactional_db: None) -> Iterator[World]:
    with open_world() as world:
        yield world


@pytest.fixture
def erp(world: World) -> Endpoint:
    return world.endpoint("ERP", headers={"Authorization": "Bearer hush"}, event_types=["job.*"])


@pytest.fixture
def dora(world: World, browser: Callable[..., Client]) -> Client:
    """Return a dispatcher's browser."""
    return browser(make.dispatcher(world.organization, "Dora"))


def text(answer: Any) -> str:
    """Return the text of the page's main part, without tags."""
    assert answer.status_code == 200, answer.content[:500]
    page = answer.content.decode()
    page = page[page.find("<main") :] if "<main" in page else page
    return " ".join(re.sub(r"<[^>]+>", " ", page).split())


@pytest.fixture
def blocked(world: World, erp: Endpoint) -> tuple[int, int, int]:
    """Block job:7: one message delivered, one rejected permanently, one waiting behind it."""
    world.receiver.answer("bad", 422, "unknown customer")
    good, bad, held = world.send(erp, "good", "bad", "held", group="job:7", type="job.assigned")
    world.start()
    world.becomes(bad, "ERROR")
    world.rests()
    return good, bad, held


def test_blocked_group_is_first_with_its_reason_and_start(dora, blocked):
    _, bad, held = blocked
    page = dora.get("/outbox/")
    said = text(page)
    assert "1 blocked group" in said
    assert "job:7" in said
    assert f"Blocked by the error of message {bad}: The receiver answered 422." in said
    assert page.context["lines"][0].since is not None
    group = text(dora.get(f"/outbox/groups/{Message.objects.get(pk=bad).group_id}/"))
    assert f"blocked by the error of message {bad}: retry, ignore or resolve that one" in group
    assert str(held) in group


def test_a_message_shows_why_it_waits_and_every_request_with_its_answer(dora, world, blocked):
    _, bad, held = blocked
    assert f"Its group is blocked by the error of message {bad}" in text(dora.get(f"/outbox/messages/{held}/"))
    page = dora.get(f"/outbox/messages/{bad}/")
    said = text(page)
    assert "Later messages of its group wait until you retry, ignore or resolve it." in said
    assert "unknown customer" in said
    shown = page.context["attempts"][0]["headers"]
    sent = next(visit for visit in world.receiver.visits if visit.name == "bad").headers
    for name, value in shown.items():
        assert name.lower() in sent
        if name.lower() not in ("authorization", "webhook-signature", "webhook-timestamp"):
            assert sent[name.lower()] == value
    assert {name.lower() for name in shown} == set(sent) - {
        "host", "accept", "content-length", "user-agent", "accept-encoding"
    }  # fmt: skip
    assert "hush" not in page.content.decode()


@pytest.mark.parametrize(
    ("word", "becomes"), [("retry", "COMPLETED"), ("ignore", "CANCELLED"), ("resolve", "COMPLETED")]
)
def test_retry_is_confirmed_first_and_the_group_continues(dora, world, blocked, word, becomes):
    _, bad, held = blocked
    world.receiver.heal()
    form = {"action": word, "ids": [bad], "back": f"/outbox/messages/{bad}/"}
    assert "1 message in 1 group" in text(dora.post("/outbox/messages/act/", form))
    assert world.status(bad) == "ERROR"
    answer = dora.post("/outbox/messages/act/", {**form, "sure": "1", "note": "spoke to them"})
    assert (answer.status_code, answer.url) == (302, f"/outbox/messages/{bad}/")
    world.becomes(bad, becomes)
    world.becomes(held, "COMPLETED")
    event = Event.objects.filter(subject_type="message", subject_id=bad, actor_type="user").get()
    assert (event.actor_label, event.data["note"]) == ("Dora", "spoke to them")
    page = text(dora.get(f"/outbox/messages/{bad}/"))
    assert "1 message" in page
    assert "spoke to them" in page


def test_messages_matching_a_filter_are_cancelled_and_others_stay(dora, world, erp):
    ours = world.send(erp, *"abc", group="g1")
    other = world.send_one(erp, "d", group="g2")
    form = {"action": "cancel", "all": "1", "filters": "group=g1", "back": "/outbox/messages/?group=g1"}
    assert "3 messages in 1 group" in text(dora.post("/outbox/messages/act/", form))
    answer = dora.post("/outbox/messages/act/", {**form, "sure": "1"})
    assert answer.url == "/outbox/messages/?group=g1"
    assert set(world.statuses(ours)) == {"CANCELLED"}
    assert world.status(other) == "PENDING"
    more = world.send(erp, *[f"n{n}" for n in range(60)], group="g3")
    asked = dora.post("/outbox/messages/act/", {"action": "cancel", "ids": more})
    assert asked.content.decode().count('name="ids"') == 60
    refused = dora.post("/outbox/messages/act/", {"action": "retry", "ids": ours, "sure": "1"}, follow=True)
    why = "only messages in error can be retried, and these are canceled."
    assert f"3 messages not retried: {why}" in text(refused)


def test_messages_since_a_moment_are_replayed(dora, world, erp):
    early = world.send(erp, "early", group="g")
    world.travel(7200)
    zone = ZoneInfo(world.organization.time_zone)
    since = clock.now().astimezone(zone).strftime("%Y-%m-%dT%H:%M")
    world.travel(60)
    ours = world.send(erp, "a", "b", group="g")
    world.act("cancel", *early, *ours)
    assert "Show messages" in text(dora.get(f"/outbox/endpoints/{erp.pk}/"))
    filters = f"endpoint={erp.pk}&since={since}"
    assert [row["message"].pk for row in dora.get(f"/outbox/messages/?{filters}").context["rows"]] == ours[::-1]
    assert len(dora.get(f"/outbox/messages/?endpoint={erp.pk}&until={since}").context["rows"]) == 1
    form = {"action": "replay", "all": "1", "filters": filters, "back": f"/outbox/messages/?{filters}"}
    assert "Replay 2 messages in 1 group" in text(dora.post("/outbox/messages/act/", form))
    said = text(dora.post("/outbox/messages/act/", {**form, "sure": "1", "note": "restored"}, follow=True))
    assert "2 messages replayed." in said
    world.start()
    world.all_end()
    assert world.receiver.names == ["a", "b"]
    page = dora.get(f"/outbox/messages/{ours[0]}/")
    said = text(page)
    assert f"Webhook ID {world.receiver.visits[0].headers['webhook-id']}" in said
    assert "restored" in said
    assert page.context["attempts"][0]["headers"]["Dispatch-Replay"] == "1"
    refused = dora.post("/outbox/messages/act/", {"action": "cancel", "ids": ours, "sure": "1"}, follow=True)
    assert "2 messages not canceled: only open messages can be canceled, and these are completed." in text(refused)
    assert "No matching messages" in text(dora.get("/outbox/messages/?since=yesterday"))


def test_missed_events_are_counted_and_then_sent(dora, world, erp):
    events.append(world.organization.pk, "job.created", 1, name="before")
    all_readable()
    EventCursor.objects.update_or_create(name="outbox", defaults={"xid": 2**62})
    page, since = f"/outbox/endpoints/{erp.pk}/missed/", "2020-01-01T00:00"
    counted = text(dora.get(page, {"since": since}))
    assert "1 event since" in counted
    assert "job.created 1" in counted
    assert not Message.objects.exists()
    sent = dora.post(page, {"since": since, "note": "lost"}, follow=True)
    assert "1 event queued for ERP." in text(sent)
    assert Message.objects.get().endpoint_id == erp.pk
    assert "No missed events" in text(dora.get(page, {"since": since}))
    for text_of_no_moment in ("soon", "0001-01-01T00:00", "9999-12-31T23:59"):
        assert dora.get(page, {"since": text_of_no_moment}).status_code == 302


def test_condition_is_tried_by_dispatchers_and_saved_by_admins(dora, world, erp, browser):
    for name in ("pump", "roof"):
        events.append(world.organization.pk, "job.created", 1, name=name)
    page, condition = f"/outbox/endpoints/{erp.pk}/condition/", "contains(data.name, 'pump')"
    assert "Holds for 2 of the last 2 events" in text(dora.get(page))
    tried = text(dora.post(page, {"condition": condition}))
    assert "Holds for 1 of the last 2 events" in tried
    refused = dora.post(page, {"condition": "data."})
    assert refused.status_code == 422
    assert "Not a JMESPath expression" in refused.content.decode()
    assert dora.post(page, {"condition": condition, "save": "1"}).status_code == 403
    admin = browser(make.admin(world.organization, "Adam"))
    assert "Condition saved" in text(admin.post(page, {"condition": condition, "save": "1"}, follow=True))
    assert Endpoint.objects.get().condition == condition


@pytest.mark.parametrize("back", ["https://evil.example/", "//evil.example/", "/outbox/\\evil", "/admin/", ""])
def test_anonymous_visitors_are_sent_to_sign_in(dora, world, erp, back):
    message = world.send_one(erp, "a")
    answer = dora.post("/outbox/messages/act/", {"action": "cancel", "ids": [message], "sure": "1", "back": back})
    assert answer.url == "/outbox/messages/"


def test_messages_are_found_by_filter_and_older_ones_by_paging(dora, world, erp):
    ids = world.send(erp, *[f"n{n}" for n in range(60)], group="many")
    world.send_one(erp, "x", group="else", type="other.kind")
    first = dora.get("/outbox/messages/?group=many")
    assert [row["message"].pk for row in first.context["rows"]] == ids[:9:-1]
    second = dora.get(f"/outbox/messages/?group=many&before={first.context['older']}")
    assert [row["message"].pk for row in second.context["rows"]] == ids[9::-1]
    assert len(dora.get("/outbox/messages/?type=other.kind").context["rows"]) == 1
    assert len(dora.get(f"/outbox/messages/?id={ids[0]}&status=open&endpoint={erp.pk}").context["rows"]) == 1
    assert "No matching groups" in text(dora.get(f"/outbox/?state=all&endpoint={'9' * 40}&page=x"))
    for nonsense in (
        f"endpoint={'9' * 40}",
        "id=x",
        "id=\u0663",
        "endpoint=-1",
        "status=NO",
        "before=y&group=none",
    ):
        assert "No matching messages" in text(dora.get(f"/outbox/messages/?{nonsense}"))


@pytest.mark.parametrize(
    ("state", "words"),
    [("paused", "ERP is paused"), ("disabled", "ERP is disabled"), ("retry", "failed and will be retried"),
     ("later", "is waiting until it is due"), ("queued", "is queued"), ("due", "is due"),
     ("put off", "was deferred by the receiver, which is limiting requests (429)"),
     ("pool paused", "the pool Messages is paused"),
     ("pool full", "is due: all slots of the pool Messages are in use")],
)  # fmt: skip
def test_group_shows_the_message_at_its_head(dora, world, erp, state, words):
    if state in ("retry", "put off"):
        world.receiver.answer("a", {"retry": 500, "put off": 429}[state])
    scheduled = world.organization.created_at + timedelta(days=1000) if state == "later" else None
    message = world.send_one(erp, "a", group="job:7", scheduled_for=scheduled)
    match state:
        case "paused":
            target_health.pause_endpoint(erp.pk, "", actor=SYSTEM)
        case "disabled":
            target_health.disable_endpoint(erp.pk, "", actor=SYSTEM)
        case "retry":
            world.start()
            wait_until(lambda: Message.objects.filter(pk=message, waiting_for="retry").exists())
        case "put off":
            world.start()
            wait_until(lambda: Message.objects.filter(pk=message, waiting_for="too_many_requests").exists())
        case "pool paused":
            DispatchPool.objects.filter(pk=world.pool.pk).update(is_paused=True)
        case "pool full":
            DispatchPool.objects.filter(pk=world.pool.pk).update(concurrency=1)
            world.poll()
            message = world.send_one(erp, "b", group="job:8")
        case "queued":
            world.poll()
    assert f"Message {message} {words}" in text(dora.get("/outbox/?state=busy")).replace("is waiting: ", "")


def test_the_health_of_endpoints_and_what_a_dispatcher_may_do(dora, world, erp, browser):
    world.endpoint("Quiet")
    Endpoint.objects.filter(pk=erp.pk).update(is_paused=True, paused_reason="moving house")
    page = dora.get("/outbox/endpoints/")
    assert [row["endpoint"].name for row in page.context["rows"]] == ["ERP", "Quiet"]
    assert "Paused: moving house." in text(page)
    act = f"/outbox/endpoints/{erp.pk}/act/"
    dora.post(act, {"action": "resume"})
    dora.post(act, {"action": "pause", "reason": "lunch"})
    erp.refresh_from_db()
    assert (erp.is_paused, erp.paused_reason) == (True, "lunch")
    assert dora.post(act, {"action": "disable"}).status_code == 403
    assert dora.post(act, {"action": "nonsense"}).status_code == 400
    ada = browser(make.admin(world.organization, "Ada"))
    assert "Disable" not in text(dora.get(f"/outbox/endpoints/{erp.pk}/"))
    assert "Disable" in text(ada.get(f"/outbox/endpoints/{erp.pk}/"))
    for action, disabled in (("disable", True), ("enable", False)):
        assert ada.post(act, {"action": action, "reason": "gone"}).status_code == 302
        erp.refresh_from_db()
        assert (erp.disabled_at is not None) is disabled


def test_receiver_that_rejects_everything_is_not_shown_as_healthy(dora, world, erp, blocked):
    page = text(dora.get("/outbox/endpoints/"))
    assert "Failing It rejects messages: The receiver answered 422." in page
    world.start()
    world.becomes(world.send_one(erp, "fine", group="job:8"), "COMPLETED")
    assert "Healthy No recent failures." in text(dora.get("/outbox/endpoints/"))


def test_times_are_those_of_the_organization(dora, world, erp):
    Organization.objects.filter(pk=world.organization.pk).update(time_zone="America/Phoenix")
    at = clock.now() + timedelta(hours=30)
    message = world.send_one(erp, "later", scheduled_for=at)
    local = at.astimezone(ZoneInfo("America/Phoenix"))
    assert f"Scheduled at {local:%Y-%m-%d %H:%M:%S} MST." in text(dora.get(f"/outbox/messages/{message}/"))
    assert "in 1 d" in text(dora.get("/outbox/"))


def test_select_all_covers_only_messages_that_allow_the_action(dora, world, erp, monkeypatch):
    monkeypatch.setattr("dispatch.console.outbox.actions.MAX_BY_FILTER", 2)
    ids = [world.send_one(erp, f"{n}", group=f"{n}") for n in range(6)]
    Message.objects.filter(pk__in=ids[:3]).update(status="COMPLETED")
    Message.objects.filter(pk__in=ids[3:]).update(status="ERROR")
    everything = {"action": "retry", "all": "1", "filters": ""}
    asked = text(dora.post("/outbox/messages/act/", everything))
    assert "Retry 2 messages in 2 groups" in asked
    assert "At most 2 at once, oldest first. Repeat for the rest." in asked
    dora.post("/outbox/messages/act/", {**everything, "sure": "1"})
    assert world.statuses(ids[3:]) == ["PENDING", "PENDING", "ERROR"]
    dora.post("/outbox/messages/act/", {**everything, "sure": "1"})
    nothing = dora.post("/outbox/messages/act/", {**everything, "sure": "1"}, follow=True)
    assert "None of these messages is in error." in text(nothing)


def test_a_test_message_is_sent_and_followed(dora, world, erp):
    world.start()
    answer = dora.post(f"/outbox/endpoints/{erp.pk}/act/", {"action": "test"})
    (message,) = Message.objects.all()
    assert answer.url == f"/outbox/messages/{message.pk}/"
    assert "on its way" in text(dora.get(answer.url))
    world.becomes(message.pk, "COMPLETED")
    assert "Delivered." in text(dora.get(answer.url, headers=HTMX))
    assert world.receiver.names == ["endpoint.test"]


def test_a_test_beyond_the_message_limit_says_what_to_do(dora, world, erp):
    OrganizationLimits.objects.create(organization=world.organization, messages=1)
    world.send_one(erp, "waits", scheduled_for=clock.now() + timedelta(days=1))
    answer = dora.post(f"/outbox/endpoints/{erp.pk}/act/", {"action": "test"}, follow=True)
    assert "Your organization may have at most 1 messages that are not delivered yet." in text(answer)
    assert answer.redirect_chain[-1][0] == f"/outbox/endpoints/{erp.pk}/"
    assert Message.objects.count() == 1


def test_other_organizations_messages_are_inaccessible(world, erp, browser, blocked):
    _, bad, _ = blocked
    stranger = browser(make.admin(make.organization("Elsewhere")))
    group = Message.objects.get(pk=bad).group_id
    for address in (f"messages/{bad}/", f"groups/{group}/", f"endpoints/{erp.pk}/"):
        assert stranger.get(f"/outbox/{address}").status_code == 404
    for address in ("", "?state=all", "messages/", "endpoints/", f"messages/?id={bad}", f"?endpoint={erp.pk}"):
        assert "job:7" not in text(stranger.get(f"/outbox/{address}"))
        assert "ERP" not in text(stranger.get(f"/outbox/{address}"))
    for more in ({"ids": [bad]}, {"all": "1", "filters": f"id={bad}"}):
        stranger.post("/outbox/messages/act/", {"action": "ignore", "sure": "1", **more})
    assert stranger.post(f"/outbox/endpoints/{erp.pk}/act/", {"action": "pause"}).status_code == 404
    assert world.status(bad) == "ERROR"
    assert browser().get("/outbox/").status_code == 302


def test_an_empty_outbox_says_how_to_fill_it(browser, transactional_db):
    client = browser(make.dispatcher(make.organization()))
    assert "All messages are delivered" in text(client.get("/outbox/"))
    assert "No messages yet" in text(client.get("/outbox/messages/"))
    assert "No endpoints yet" in text(client.get("/outbox/endpoints/"))
    assert "0 blocked groups" in text(client.get("/outbox/summary/", headers=HTMX))
