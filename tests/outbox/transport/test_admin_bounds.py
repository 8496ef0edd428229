"""How much an action or a form of the admin takes at once, and how a user reaches the rest."""

from __future__ import annotations

import re
from html import unescape

import pytest
from django.contrib import admin
from django.contrib.postgres.fields import ArrayField
from django.contrib.postgres.forms import SimpleArrayField
from django.core.exceptions import ValidationError
from django.test import Client, RequestFactory

from dispatch.outbox.admin import messages
from dispatch.outbox.models import Endpoint, Message, MessageGroup
from tests.harness.outbox import World
from tests.outbox.transport.test_admin import page, run
from tests.support import factories
from tests.support.factories import browser
from tests.support.waiting import wait_until

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def dispatcher(world: World) -> Client:
    return browser(factories.dispatcher(world.organization))


@pytest.fixture
def erp(world: World) -> Endpoint:
    return world.endpoint(mode="NEXT_ON_ERROR")


@pytest.fixture(autouse=True)
def at_most_two(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(messages, "MAX_AT_ONCE", 2)


def run_all(client: Client, model: str, name: str, query: str = "") -> str:
    """Run an action on all rows that match the filter; return the message shown."""
    row = (Message if model == "message" else MessageGroup).objects.earliest("id")
    return run(client, model, name, row, everywhere=True, query=query)


def test_canceling_all_is_done_in_parts(dispatcher: Client, world: World, erp: Endpoint) -> None:
    ids = world.send(erp, *"abcde")
    pending = "?status__exact=PENDING"
    shown = run_all(dispatcher, "message", "cancel", pending)
    assert "2 canceled." in shown
    assert "At most 2 at once, oldest first. Repeat for the rest." in shown
    assert world.statuses(ids) == ["CANCELLED"] * 2 + ["PENDING"] * 3
    run_all(dispatcher, "message", "cancel", pending)
    shown = run_all(dispatcher, "message", "cancel", pending)
    assert "1 canceled." in shown
    assert "Repeat" not in shown
    assert world.statuses(ids) == ["CANCELLED"] * 5


def test_messages_that_do_not_allow_the_action_are_counted_up_to_the_limit(
    dispatcher: Client, world: World, erp: Endpoint
) -> None:
    ids = world.send(erp, *"abc")
    shown = run_all(dispatcher, "message", "retry")
    assert "2 or more not retried: only messages in ERROR can be; these are: Pending." in shown
    world.act("cancel", ids[0])
    Message.objects.filter(pk=ids[1]).update(status="ERROR")
    shown = run(dispatcher, "message", "retry", *Message.objects.filter(pk__in=ids[:2]))
    assert "1 retried." in shown
    assert "1 not retried: only messages in ERROR can be; these are: Canceled." in shown


def test_messages_that_fail_again_do_not_hide_the_rest(dispatcher: Client, world: World, erp: Endpoint) -> None:
    ids = world.send(erp, *"abc")
    Message.objects.update(status="ERROR")
    shown = run_all(dispatcher, "message", "retry")
    assert f"Continue after message {ids[1]}" in shown
    Message.objects.update(status="ERROR")
    run_all(dispatcher, "message", "retry", f"?after={ids[1]}")
    assert world.statuses(ids) == ["ERROR", "ERROR", "PENDING"]


def test_replaying_all_continues_after_the_messages_already_sent_again(
    dispatcher: Client, world: World, erp: Endpoint
) -> None:
    ids = world.send(erp, *"abc")
    world.start()
    world.all_end()
    query = f"?status__exact=COMPLETED&endpoint__id__exact={erp.pk}"
    shown = run_all(dispatcher, "message", "replay", query)
    assert "2 replayed." in shown
    assert "At most 2 at once, oldest first." in shown
    world.all_end()  # all of them are completed again
    rest = re.search(rf'href="([^"]+)">Continue after message {ids[1]}<', shown)
    assert rest
    query = unescape(rest[1])
    listed = dispatcher.get(page("message") + query)
    assert f"After message {ids[1]}" in listed.content.decode()
    assert [row.pk for row in listed.context["cl"].queryset] == [ids[2]]
    shown = run_all(dispatcher, "message", "replay", query)
    assert "1 replayed." in shown
    assert "At most" not in shown
    world.all_end()
    assert set(Message.objects.values_list("replays", flat=True)) == {1}


def test_long_list_in_any_form_is_refused_before_its_items_are_validated(rf: RequestFactory) -> None:
    request = rf.get("/admin/")
    request.user = factories.user("Root", is_superuser=True)
    request.organization = None
    seen = set()
    for model_admin in admin.site._registry.values():
        for column in model_admin.model._meta.fields:
            field = model_admin.formfield_for_dbfield(column, request) if isinstance(column, ArrayField) else None
            if isinstance(field, SimpleArrayField):
                seen.add(f"{model_admin.opts.model_name}.{column.name}")
                with pytest.raises(ValidationError, match=r"At most [\d,]+ values allowed\."):
                    field.clean(",".join(["x"] * 1001))
    assert {"organization.allowed_countries", "endpoint.retry_schedule_s", "endpoint.permanent_codes"} <= seen


@pytest.mark.parametrize("after", ["", "x", "-1", "9" * 40])
def test_a_list_after_no_message_shows_all(dispatcher: Client, world: World, erp: Endpoint, after: str) -> None:
    ids = world.send(erp, *"abc")
    listed = dispatcher.get(page("message"), {"after": after})
    assert sorted(row.pk for row in listed.context["cl"].queryset) == ids


@pytest.fixture
def blocked(world: World) -> list[int]:
    """Return the ids of three messages that block their groups."""
    crm, groups = world.endpoint("CRM", permanent_codes=[400]), MessageGroup.objects.exclude(blocked_by=None)
    for name in "abc":
        world.receiver.answer(name, 400)
        world.send(crm, name, f"waits for {name}", group=name)
    world.start()
    wait_until(lambda: groups.count() == 3, message=lambda: f"blocked: {list(groups.values('name'))}")
    return sorted(pk for pk in groups.values_list("blocked_by", flat=True) if pk)


def test_blocking_messages_are_resolved_in_parts(dispatcher: Client, world: World, blocked: list[int]) -> None:
    shown = run_all(dispatcher, "messagegroup", "resolve_blockers")
    assert "2 resolved." in shown
    assert "Repeat for the rest." in shown
    assert MessageGroup.objects.exclude(blocked_by=None).count() == 1


def test_blocking_messages_that_fail_again_do_not_hide_the_rest(
    dispatcher: Client, world: World, blocked: list[int]
) -> None:
    other = world.endpoint("Other")
    (apart,) = world.send(other, "d", group="d")
    Message.objects.filter(pk=apart).update(status="ERROR")
    MessageGroup.objects.filter(name="d").update(blocked_by=apart)
    crm = Endpoint.objects.get(name="CRM")
    shown = run_all(dispatcher, "messagegroup", "retry_blockers", f"?endpoint__id__exact={crm.pk}")
    assert "2 retried." in shown
    rest = re.search(rf'href="([^"]+)">Continue after message {blocked[1]}<', shown)
    assert rest
    at = unescape(rest[1])
    assert at.partition("?")[0] == page("message")
    listed = dispatcher.get(at)
    assert [row.pk for row in listed.context["cl"].queryset] == [blocked[2]]
