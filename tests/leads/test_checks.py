"""`check --database default` warns when dialers can fill PostgreSQL's lock table."""

from __future__ import annotations

from typing import Any

import pytest
from django.core.management import call_command

from dispatch.core.redis import generation
from dispatch.leads import redis_queue
from dispatch.leads.checks import lock_table
from tests.core.outages import redis_away

pytestmark = pytest.mark.django_db


def found() -> list[str | None]:
    return [message.id for message in lock_table(None, databases=["default"])]


def test_usual_dialers_fit_and_too_many_are_warned_about(settings: Any) -> None:
    generation.ensure_generation()
    settings.LEADS_BATCH, settings.LEADS_CLAIMERS = 200, 2
    redis_queue.heartbeat("one")
    assert found() == []
    for number in range(100):
        redis_queue.heartbeat(f"dialer {number}")
    assert found() == ["dispatch.W110"]


def test_large_batches_are_warned_about_without_redis(settings: Any, capsys: pytest.CaptureFixture[str]) -> None:
    settings.LEADS_BATCH = 1_000_000
    with redis_away():
        assert found() == ["dispatch.W110"]
    call_command("check", databases=["default"])
    assert "max_locks_per_transaction" in capsys.readouterr().err


def test_without_a_database_nothing_is_checked() -> None:
    assert lock_table(None) == []
