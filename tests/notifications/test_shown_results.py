"""The settings show a test message as on its way until they show its result."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from typing import Any, NamedTuple

import pytest
from django.db import connection, connections

from accounts.models import Organization, User
from accounts.tenancy import actor_of
from notifications import loops
from notifications.services import chat_channels, push_subscriptions
from tests.notifications.chat_services import Answers
from tests.notifications.push_service import PushService

pytestmark = pytest.mark.django_db(transaction=True)

TAKEN, REFUSED, BUSY = 201, 400, 503


class UnderTest(NamedTuple):
    """A user's channel whose test message waits. `run`: one pass of its loop. `read`: its settings."""

    run: Callable[[], float | None]
    read: Callable[[], list[Any]]

    def send(self) -> None:
        while self.run() == 0:
            pass

    def shown(self) -> str:
        """Return what the settings show for the channel."""
        (state,) = self.read()
        row = getattr(state, "channel", None) or state.subscription
        if state.is_testing:
            return "sending"
        if getattr(state, "error", row.error):
            return "failed"
        return "works" if row.tried_at else "nothing"


@pytest.fixture(params=["push", "chat"])
def test_by(
    request: pytest.FixtureRequest, office: Organization, dora: User, push_service: PushService,
    chat_services: Answers,
) -> Callable[[int], UnderTest]:  # fmt: skip
    """Return how a user tests a browser, or a chat channel, whose service answers with this status."""
    actor = actor_of(dora)

    def test_browser(status: int) -> UnderTest:
        entered = push_service.browser("laptop").subscription
        if status != TAKEN:
            push_service.answer("laptop", status)
        row = push_subscriptions.subscribe(office, dora, entered, agent="", actor=actor)
        push_subscriptions.send_test(row, actor=actor)
        return UnderTest(loops.send_push, lambda: push_subscriptions.states_of(office.pk, dora))

    def test_channel(status: int) -> UnderTest:
        if status != TAKEN:
            chat_services.answer("slack", status)
        row = chat_channels.add_channel(office, dora, "slack", "", chat_services.entered("slack"), actor=actor)
        chat_channels.send_test(row, user=dora, actor=actor)
        return UnderTest(loops.send_chat, lambda: chat_channels.channels_of(office.pk, dora))

    return test_browser if request.param == "push" else test_channel


def before_each_statement(action: Callable[[], None]) -> AbstractContextManager[None]:
    """Run the action, in another thread with its own connection, before each statement of this one."""

    def in_thread() -> None:
        try:
            action()
        finally:
            connections.close_all()

    def run(execute: Callable[..., Any], *args: Any) -> Any:
        with ThreadPoolExecutor(1) as threads:
            threads.submit(in_thread).result()
        return execute(*args)

    return connection.execute_wrapper(run)


@pytest.mark.parametrize(("status", "result"), [(TAKEN, "works"), (REFUSED, "failed"), (BUSY, "failed")])
def test_page_read_at_any_time_shows_the_test_or_its_result(
    test_by: Callable[[int], UnderTest], status: int, result: str
) -> None:
    tested, seen = test_by(status), list[str]()
    with before_each_statement(lambda: seen.append(tested.shown())):
        tested.send()
    assert seen[0] == "sending"
    assert set(seen) <= {"sending", result}
    assert tested.shown() == result


@pytest.mark.parametrize("statement", [1, 2])
@pytest.mark.parametrize(("status", "result"), [(TAKEN, "works"), (REFUSED, "failed"), (BUSY, "failed")])
def test_test_that_ends_while_the_page_is_read_is_not_missed(
    test_by: Callable[[int], UnderTest], status: int, result: str, statement: int
) -> None:
    tested, statements = test_by(status), itertools.count(1)

    def end_test() -> None:
        if next(statements) == statement:
            tested.send()

    with before_each_statement(end_test):
        shown = tested.shown()
    assert shown in ("sending", result)
    assert tested.shown() == result
