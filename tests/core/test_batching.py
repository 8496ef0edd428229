"""Batches of coroutines' work: one bad item fails alone."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest
from django.core.exceptions import ImproperlyConfigured
from django.db import DatabaseError

from dispatch.core.db.batcher import Batcher, DatabaseThread

pytestmark = pytest.mark.django_db(transaction=True)


def answers(error: Exception, *, whole: tuple[type[Exception], ...] = ()) -> tuple[list[object], list[int]]:
    """Return the results of five items, of which the third fails its batch, and the sizes of the batches."""
    sizes: list[int] = []

    def run(items: Sequence[int]) -> Sequence[int]:
        sizes.append(len(items))
        if 3 in items:
            raise error
        return [item * 10 for item in items]

    async def main() -> list[object]:
        thread = DatabaseThread("test")
        batcher: Batcher[int, int] = Batcher(thread, run, 10, whole=whole)
        try:
            return list(await asyncio.gather(*map(batcher.submit, range(1, 6)), return_exceptions=True))
        finally:
            await asyncio.to_thread(thread.close)

    return asyncio.run(main()), sizes


@pytest.mark.parametrize(
    "error", [DatabaseError("no"), ImproperlyConfigured("no"), ValueError("no"), RecursionError("no")]
)
def test_one_bad_item_fails_alone(error: Exception) -> None:
    found, sizes = answers(error)
    assert found == [10, 20, error, 40, 50]
    assert sizes == [5, 1, 1, 1, 1, 1]


def test_an_error_of_the_whole_batch_is_not_repeated() -> None:
    error = ConnectionError("the server hangs")
    found, sizes = answers(error, whole=(ConnectionError,))
    assert found == [error] * 5
    assert sizes == [5]
