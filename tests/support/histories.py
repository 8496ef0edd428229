"""Check the event log in tests: what it says must be legal, and a broken history must be refused."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from django.db import transaction

from dispatch.core.events import history


def history_is_legal() -> history.Result:
    """Check the whole log of the test's database. Return how much was checked."""
    result = history.Result()
    found = list(history.violations(result))
    assert not found, "\n".join(found)
    return result


@contextmanager
def undone() -> Iterator[None]:
    """Undo what the block writes."""
    with transaction.atomic():
        yield
        transaction.set_rollback(True)
