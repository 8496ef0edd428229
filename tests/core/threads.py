"""Run code on another thread and database connection, and re-raise its errors."""

from __future__ import annotations

import threading
from collections.abc import Callable

from django.db import connection, connections

from tests.support.waiting import PATIENCE, wait_until


class Elsewhere(threading.Thread):
    """Run `action` immediately. `finish()` waits for it and raises what it raised."""

    def __init__(self, action: Callable[[], object]) -> None:
        super().__init__(daemon=True)
        self._action = action
        self._error: BaseException | None = None
        self.backend = 0
        self.start()

    def run(self) -> None:
        try:
            with connection.cursor() as cursor:
                cursor.execute("SELECT pg_backend_pid()")
                self.backend = cursor.fetchone()[0]
            self._action()
        except BaseException as error:
            self._error = error
        finally:
            connections.close_all()

    def wait_for_lock(self) -> None:
        """Return when its connection waits for a lock."""

        def waits() -> bool:
            with connection.cursor() as cursor:
                cursor.execute("SELECT pg_stat_clear_snapshot()")  # otherwise a transaction sees a fixed snapshot
                cursor.execute("SELECT wait_event_type FROM pg_stat_activity WHERE pid = %s", [self.backend])
                row = cursor.fetchone()
            return row is not None and row[0] == "Lock"

        wait_until(waits, message="the other thread does not wait for a lock")

    def finish(self, timeout: float = PATIENCE) -> None:
        self.join(timeout)
        assert not self.is_alive(), "the other thread does not end"
        if self._error:
            raise self._error
