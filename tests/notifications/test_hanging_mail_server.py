"""A mail server that accepts connections and never answers costs no email loop its leadership.

A pass ends in time, and the next one goes on with what is left.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from django.core import mail

from accounts.auth import security_mail
from accounts.models import Organization, SecurityMail, User
from dispatch.core.db import isolation
from dispatch.core.runtime.loops import find_loop
from notifications import loops
from notifications.models import Delivery
from notifications.services import deliveries
from tests.notifications.test_alerts import notify, turns_pending
from tests.notifications.test_email import ours  # noqa: F401
from tests.support.tenants import Tenant

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def hanging_server(settings: Any) -> Iterator[Callable[[], None]]:
    """A mail server that never answers. Call it to have one that takes every email."""
    works = settings.EMAIL_BACKEND
    with socket.create_server(("127.0.0.1", 0), backlog=64) as server:
        settings.EMAIL_BACKEND = "django.core.mail.backends.smtp.EmailBackend"
        settings.EMAIL_HOST, settings.EMAIL_PORT = server.getsockname()
        settings.EMAIL_TIMEOUT = 0.05

        def recover() -> None:
            settings.EMAIL_BACKEND = works

        yield recover


def test_pass_of_notifications_ends_in_time(
    ours: Tenant,  # noqa: F811
    hanging_server: Callable[[], None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for _ in range(3):
        turns_pending(ours)
    notify()
    monkeypatch.setattr(deliveries, "MAX_PASS_S", 0.0)  # over as soon as the first email was tried
    assert loops.send_email() == loops.SOONEST_S, "the others are next, at once"
    rows = Delivery.objects.filter(channel="email")
    assert sorted(rows.values_list("attempts", flat=True)) == [0, 0, 1]
    hanging_server()
    for _ in range(2):
        loops.send_email()
    assert sorted(rows.values_list("status", flat=True)) == ["sent", "sent", "waiting"]


def test_pass_of_sign_in_mail_ends_in_time(
    office: Organization,
    dora: User,
    hanging_server: Callable[[], None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for _ in range(3):
        security_mail.enqueue_mail(dora, "new_device")
    monkeypatch.setattr(security_mail, "MAX_PASS_S", 0.0)
    assert security_mail.send_due_mail() == 0, "the others are next, at once"
    assert sorted(SecurityMail.objects.values_list("attempts", flat=True)) == [0, 0, 1]
    hanging_server()
    while security_mail.send_due_mail() == 0:
        pass
    assert len(mail.outbox) == 2
    assert SecurityMail.objects.count() == 1


@pytest.mark.parametrize(
    ("name", "most_s"),
    [("notifications_email", deliveries.MAX_PASS_S), ("security_mail", security_mail.MAX_PASS_S)],
)
def test_pass_is_much_shorter_than_the_limit_of_its_loop(name: str, most_s: float, settings: Any) -> None:
    # The last email of a pass may wait at each address and command of the server.
    assert most_s + 5 * settings.EMAIL_TIMEOUT < find_loop(name).limit_s


def test_items_are_taken_until_the_time_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
    times = iter([100.0, 110.0, 119.0, 121.0])
    monkeypatch.setattr(isolation, "time", SimpleNamespace(monotonic=lambda: next(times)))
    assert list(isolation.take_within("abcdef", 20.0)) == ["a", "b", "c"]
