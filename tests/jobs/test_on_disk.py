"""Whose commit waits for the disk: whatever somebody was told, and what the provider is asked for."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from django.db.backends.signals import connection_created

from dispatch.core import events, statements
from dispatch.core.models import Event
from tests.connecting import connect_anew


@pytest.fixture
def waits(monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, bool]]:
    """By the kind of event, whether the commit of its transaction waits for the disk."""
    found: dict[str, bool] = {}

    def as_it_is_run(connection: Any, **_: Any) -> None:  # the tests' connections wait for nothing
        with connection.cursor() as cursor:
            cursor.execute("SET synchronous_commit = on")

    def heard(event: Event) -> None:
        found[event.kind] = statements.rows("SELECT current_setting('synchronous_commit')") == [("on",)]

    connect_anew()
    connection_created.connect(as_it_is_run)
    monkeypatch.setattr(events, "_heard", [heard])
    yield found
    connection_created.disconnect(as_it_is_run)
    connect_anew()


def test_a_form_a_request_for_a_call_and_an_acceptance_wait_for_the_disk_and_steps_between_do_not(floor, waits):
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
