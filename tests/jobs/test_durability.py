"""Check which commits wait for the disk: everything confirmed to a client, and every provider request."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pytest
from django.db.backends.signals import connection_created

from dispatch.core import events
from dispatch.core.db import prepared
from dispatch.core.events import log as event_log
from dispatch.core.events.log import EventRow
from dispatch.core.models import Event
from dispatch.jobs import services
from tests.harness.jobs import MARIA
from tests.support.database import reconnect

# Groups of reports have a connection of an earlier test, which was opened without waiting: only a change counts.
_AS_CONFIGURED = "SELECT setting = 'on' OR source = 'client' FROM pg_settings WHERE name = 'synchronous_commit'"


def is_as_configured() -> bool:
    """Return whether the setting of this transaction is that of its connection."""
    return prepared.fetch_all(_AS_CONFIGURED) == [(True,)]


@pytest.fixture
def waits(monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, bool]]:
    """By the kind of event, whether the commit of its transaction waits for the disk."""
    found: dict[str, bool] = {}

    def as_it_is_run(connection: Any, **_: Any) -> None:  # the tests' connections wait for nothing
        with connection.cursor() as cursor:
            cursor.execute("SET synchronous_commit = on")

    def heard(event: Event) -> None:
        found[event.kind] = prepared.fetch_all("SELECT current_setting('synchronous_commit')") == [("on",)]

    def heard_in_group(items: Sequence[EventRow], **more: Any) -> None:
        append_many(items, **more)
        found.update(dict.fromkeys((item.kind for item in items), is_as_configured()))

    append_many = events.append_many
    reconnect()
    connection_created.connect(as_it_is_run)
    monkeypatch.setattr(event_log, "_subscribers", [heard])
    monkeypatch.setattr(events, "append_many", heard_in_group)
    yield found
    connection_created.disconnect(as_it_is_run)
    reconnect()


def test_only_form_call_request_and_acceptance_wait_for_the_disk(floor, waits):
    (ann,) = floor.crew("Ann")
    job = floor.started()
    assert waits["submission.received"]
    assert not waits["job.created"]
    assert not waits["offer.made"]
    assert not waits["call.created"]
    assert waits["call.requesting"]
    assert not waits["call.submitted"]
    floor.rings(ann).answer().press("1")
    floor.until(lambda: floor.status(job) == "assigned")
    assert waits["call.answered"]
    assert waits["offer.accepted"]
    assert waits["job.assigned"]


def test_manual_assignment_waits_for_the_disk(floor, waits):
    _ann, bob = floor.crew("Ann", "Bob")
    job = floor.started()
    services.assign(job.pk, bob.pk, actor=MARIA)
    assert waits["offer.rescinded"]
    assert waits["job.assigned"]
