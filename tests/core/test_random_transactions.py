"""Random programs end the same whether their changes wait for the next statement or are sent immediately."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import pytest
from django.db import DatabaseError, connection, transaction
from hypothesis import given, settings
from hypothesis import strategies as st

from dispatch.core.db import prepared
from tests.support.database import reconnect

pytestmark = pytest.mark.django_db(transaction=True)

ALL = "SELECT n, times FROM random_things ORDER BY n"
CHANGES = {
    "add": "INSERT INTO random_things (n) VALUES (%s)",  # fails if the number is there
    "count": "UPDATE random_things SET times = times + 1 WHERE n = %s RETURNING 1 / (3 - times)",  # fails at three
    "remove": "DELETE FROM random_things WHERE n = %s",
}


class Stop(Exception):
    """A program stops by itself."""


@dataclass(frozen=True)
class Way:
    """How the statements of a program are sent. `ways`: those of changes, by name."""

    ways: dict[str, Callable[[str, list[int]], Any]]
    read: Callable[[str], Any]
    pipeline: Callable[[], AbstractContextManager[Any]]


def by_cursor(sql: str, params: Any = None) -> None:
    with connection.cursor() as cursor:
        cursor.execute(sql, params)


def plain_pipeline() -> AbstractContextManager[Any]:
    """A pipeline is a transaction if none is open."""
    return nullcontext() if connection.in_atomic_block else transaction.atomic()


IMMEDIATELY = Way(dict.fromkeys(("later", "now", "cursor"), by_cursor), by_cursor, plain_pipeline)
WAITING = Way(
    {"later": prepared.change_later, "now": prepared.execute, "cursor": by_cursor},
    prepared.fetch_all,
    prepared.pipeline,
)


@dataclass(frozen=True)
class Change:
    """Change a number, in one of three ways."""

    way: str
    kind: str
    n: int

    def run(self, way: Way, log: list[str]) -> None:
        way.ways[self.way](CHANGES[self.kind], [self.n])


@dataclass(frozen=True)
class Read:
    """Read all numbers."""

    def run(self, way: Way, log: list[str]) -> None:
        way.read(ALL)


@dataclass(frozen=True)
class Hook:
    """Note that the transaction was committed."""

    name: int

    def run(self, way: Way, log: list[str]) -> None:
        transaction.on_commit(lambda: log.append(f"committed {self.name}"))


@dataclass(frozen=True)
class Raise:
    """Stop."""

    def run(self, way: Way, log: list[str]) -> None:
        raise Stop


@dataclass(frozen=True)
class Block:
    """Run steps inside a transaction, a savepoint or a pipeline. Errors that it catches end it."""

    is_pipeline: bool
    catches: bool
    steps: list[Any] = field(default_factory=list)

    def run(self, way: Way, log: list[str]) -> None:
        try:
            with way.pipeline() if self.is_pipeline else transaction.atomic():
                for step in self.steps:
                    step.run(way, log)
        except (DatabaseError, Stop):
            if not self.catches:
                raise


def outcome(program: list[Any], way: Way) -> tuple[Any, list[str], bool]:
    """Run the program. Return the numbers that it leaves, which hooks ran, and whether it raised an error."""
    by_cursor("TRUNCATE random_things")
    by_cursor("INSERT INTO random_things (n) VALUES (1), (2)")
    log: list[str] = []
    is_failed = False
    for step in program:
        try:
            step.run(way, log)
        except (DatabaseError, Stop):
            is_failed = True
    assert not connection.in_atomic_block
    with connection.cursor() as cursor:
        cursor.execute(ALL)
        return cursor.fetchall(), log, is_failed


numbers = st.integers(1, 4)
kinds = st.sampled_from(sorted(CHANGES))
prepared_statements = st.one_of(
    st.builds(Change, st.sampled_from(["later", "later", "now"]), kinds, numbers), st.builds(Read)
)
statements = st.one_of(
    prepared_statements, prepared_statements, st.builds(Change, st.just("cursor"), kinds, numbers)
)
# A savepoint that catches the exception which leaves a pipeline inside it.
abandoned = st.builds(
    lambda before, pending: Block(False, True, [*before, Block(True, False, [*pending, Raise()])]),
    st.lists(statements, max_size=2),
    st.lists(prepared_statements, max_size=3),
)
inside = st.recursive(
    st.one_of(statements, statements, st.builds(Hook, numbers), st.builds(Raise), abandoned),
    lambda inner: st.one_of(
        st.builds(Block, st.just(False), st.booleans(), st.lists(inner, max_size=5)),
        st.builds(Block, st.just(True), st.just(False), st.lists(inner, max_size=5)),
    ),
    max_leaves=12,
)
programs = st.lists(
    st.one_of(
        statements,
        st.builds(Block, st.just(False), st.booleans(), st.lists(inside, min_size=1, max_size=6)),
        st.builds(Block, st.just(True), st.booleans(), st.lists(prepared_statements, min_size=1, max_size=6)),
    ),
    min_size=1,
    max_size=4,
)


@pytest.fixture
def things(transactional_db: None) -> Iterator[None]:
    """A table of numbers."""
    reconnect()
    by_cursor("CREATE TABLE IF NOT EXISTS random_things (n int PRIMARY KEY, times int NOT NULL DEFAULT 0)")
    yield
    reconnect()
    by_cursor("DROP TABLE random_things")


def check(examples: int, **how: Any) -> None:
    """Compare the outcomes of random programs."""

    @settings(max_examples=examples, **how)
    @given(programs)
    def compare(program: list[Any]) -> None:
        assert outcome(program, WAITING) == outcome(program, IMMEDIATELY), program

    compare()


@pytest.mark.parametrize("plans_s", [0.0, 1000.0])
def test_random_transactions_end_as_if_nothing_waited(things, monkeypatch, plans_s):
    monkeypatch.setattr(prepared, "PLANS_S", plans_s)  # plans are discarded before each statement, or never
    check(150)


@pytest.mark.soak
@pytest.mark.parametrize("plans_s", [0.0, 1000.0])
def test_many_random_transactions_end_as_if_nothing_waited(things, monkeypatch, plans_s):
    monkeypatch.setattr(prepared, "PLANS_S", plans_s)
    check(5000, derandomize=False)
