"""A commit whose reply is lost, and provider responses that the database cannot store yet."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from django.db import OperationalError

from dispatch.core.db.postgres.base import DatabaseWrapper
from dispatch.leads import response_writer
from dispatch.leads.models import Lead
from dispatch.telephony.models import Call
from tests.harness.leads import Floor
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.floor(lines=20)]

GONE = "server closed the connection unexpectedly"


@contextmanager
def losing_a_commit(*, happens: bool) -> Iterator[None]:
    """Fail the next commit after the calls of leads were written; `happens`: it has taken effect nevertheless."""
    real: Any = DatabaseWrapper._commit
    left = [1]

    def commit(database: DatabaseWrapper) -> None:
        is_lost = left and Call.objects.using(database.alias).filter(purpose="lead").exists() and left.pop()
        if is_lost and not happens:
            raise OperationalError(GONE)
        real(database)
        if is_lost:
            raise OperationalError(GONE)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(DatabaseWrapper, "_commit", commit)
        yield
    assert not left


def test_calls_of_a_commit_without_reply_are_requested_by_their_claimer(floor: Floor) -> None:
    ids = floor.add_many(3)
    floor.promote()
    with losing_a_commit(happens=True):
        claimed = floor.claim()
    assert len(claimed.calls) == 3
    assert floor.lines_in_use() == 3, "the lines belong to the calls"
    floor.settle(floor.ask(claimed))
    assert floor.outcomes(ids) == {"answered": 3}
    assert [len(floor.calls(lead)) for lead in ids] == [1, 1, 1]
    floor.assert_nothing_held()


def test_leads_of_a_commit_that_failed_are_called_by_the_next_claim(floor: Floor) -> None:
    ids = floor.add_many(3)
    floor.promote()
    with losing_a_commit(happens=False), pytest.raises(OperationalError):
        floor.claim()
    assert not Call.objects.exists()
    assert floor.work() == 3
    assert floor.outcomes(ids) == {"answered": 3}
    floor.assert_nothing_held()


def test_responses_are_kept_while_the_database_is_unavailable(
    floor: Floor, monkeypatch: pytest.MonkeyPatch
) -> None:
    failures = [OperationalError(GONE)] * 2
    real = response_writer._write_results

    def write(answers: Any) -> Any:
        if failures:
            raise failures.pop()
        return real(answers)

    monkeypatch.setattr(response_writer, "_write_results", write)
    ids = floor.add_many(5)
    floor.start()
    try:
        wait_until(lambda: floor.outcomes(ids) == {"answered": 5}, message=lambda: str(floor.outcomes(ids)))
    finally:
        floor.stop()
    assert not failures
    assert set(Lead.objects.values_list("token", flat=True)) == {1}, "nobody was called twice"
    assert set(Call.objects.values_list("status", flat=True)) == {"completed"}


def test_responses_that_cannot_be_stored_for_long_are_given_up(
    floor: Floor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(response_writer, "KEEP_S", 0.0)
    failed = []

    def write(answers: Any) -> Any:
        failed.extend(answers)
        raise OperationalError(GONE)

    monkeypatch.setattr(response_writer, "_write_results", write)
    (lead,) = floor.add_many(1)
    floor.start()
    try:
        wait_until(lambda: failed)
    finally:
        floor.stop()
    assert len(failed) == 1
    assert floor.calls(lead)[0].status == "requesting", "the reconcilers resolve it"
