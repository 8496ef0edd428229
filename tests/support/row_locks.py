"""Lock rows in another session, as a stuck process or a user at a prompt does."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

from django.db import connections, transaction
from django.db.models import Model

from tests.support import patient_batches
from tests.support.waiting import PATIENCE, wait_until


@contextmanager
def held(*rows: Model, lock: str = "FOR UPDATE") -> Iterator[None]:
    """Lock these rows in a separate session while the block runs."""
    session = connections.create_connection("default")
    try:
        session.set_autocommit(False)
        with session.cursor() as cursor:
            for row in rows:
                table, key = row._meta.db_table, row._meta.pk.column
                cursor.execute(f'SELECT 1 FROM "{table}" WHERE {key} = %s {lock}', [row.pk])
        with patient_batches.production_limits():
            yield
    finally:
        session.rollback()
        session.close()


@contextmanager
def uncommitted(change: Callable[[], Any]) -> Iterator[None]:
    """Make this change in a transaction of another session that is committed at the end of the block."""
    changed, done = threading.Event(), threading.Event()

    def run() -> None:
        try:
            with transaction.atomic():
                change()
                changed.set()
                done.wait(PATIENCE)
        finally:
            connections.close_all()

    with ThreadPoolExecutor(1) as threads:
        session = threads.submit(run)
        assert wait_until(lambda: changed.is_set() or session.done())
        try:
            with patient_batches.production_limits():
                yield
        finally:
            done.set()
            session.result(PATIENCE)


def ends_while_held(rows: Iterable[Model], step: Callable[[], Any], within: float = PATIENCE / 4) -> Any:
    """Return the result of `step`, which must end although these rows are locked; fail after `within` seconds."""
    results: list[Any] = []
    errors: list[BaseException] = []

    def run() -> None:
        try:
            results.append(step())
        except BaseException as error:
            errors.append(error)
        finally:
            connections.close_all()

    thread = threading.Thread(target=run, daemon=True)
    with held(*rows):
        thread.start()
        thread.join(within)
        is_stuck = thread.is_alive()
    thread.join(PATIENCE)
    assert not is_stuck, f"it waited for a held row for more than {within:g} s"
    if errors:
        raise errors[0]
    return results[0]
