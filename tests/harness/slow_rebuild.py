"""Lose Redis's data and hold its rebuild, as a large backlog would, until the test lets it finish."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest
from django.db import connection

from dispatch.capacity import redis_scripts
from dispatch.core.redis import generation
from dispatch.core.runtime.loops import find_loop
from tests.conftest import forget_redis
from tests.harness.threads import BackgroundThreads
from tests.support.waiting import PATIENCE, wait_until

# Transactions of other sessions on the test's database.
OPEN_TRANSACTIONS = """
SELECT count(*) FROM pg_stat_activity
WHERE datname = current_database() AND backend_type = 'client backend' AND pid <> pg_backend_pid()
    AND xact_start IS NOT NULL
"""


class SlowRebuild:
    """`begin` loses the data; the loop of a dispatcher rebuilds it, and stays in the middle until `finish`."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._monkeypatch = monkeypatch
        self.runs = 0
        self.in_transactions: list[bool] = []
        self._entered, self._go_on = threading.Event(), threading.Event()
        self._threads = BackgroundThreads()

    def rebuild(self) -> None:
        self.runs += 1
        self.in_transactions.append(connection.in_atomic_block)
        self._entered.set()
        assert self._go_on.wait(PATIENCE)

    def begin(self) -> None:
        self._monkeypatch.setattr(generation, "_rebuilders", [self.rebuild, *generation._rebuilders])
        forget_redis()
        self._threads.start(self._watch)
        assert self._entered.wait(PATIENCE)

    def finish(self) -> None:
        """Let the rebuild finish, and wait until this process decides with Redis again."""
        self._go_on.set()
        wait_until(lambda: generation.current_generation() and not redis_scripts.is_recovering())
        self.stop()

    def stop(self) -> None:
        self._go_on.set()
        self._threads.stop()

    @property
    def is_held(self) -> bool:
        return self._entered.is_set() and not self._go_on.is_set() and generation.current_generation() is None

    def open_transactions(self) -> int:
        with connection.cursor() as cursor:
            cursor.execute(OPEN_TRANSACTIONS)
            return int(cursor.fetchone()[0])

    @staticmethod
    def _watch(stopping: threading.Event) -> None:
        find_loop("redis_generation").step()


@pytest.fixture
def slow_rebuild(transactional_db: None, monkeypatch: pytest.MonkeyPatch) -> Iterator[SlowRebuild]:
    made = SlowRebuild(monkeypatch)
    yield made
    made.stop()
