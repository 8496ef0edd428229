"""What is done after a commit: hooks that join are run once, and none fails the work that has committed."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
from django.db import transaction

from dispatch.core.db.commit_hooks import JoinedHook

pytestmark = pytest.mark.django_db(transaction=True)

sent: list[list[str]] = []


@pytest.fixture(autouse=True)
def nothing_sent() -> None:
    sent.clear()


class Letter(JoinedHook):
    """Send names together."""

    def __init__(self, name: str) -> None:
        self.names = [name]

    def __call__(self) -> None:
        sent.append(self.names)

    def join(self, earlier: Letter) -> None:
        self.names = earlier.names + self.names


class Parcel(Letter):
    """Sent apart from letters."""


def test_hooks_of_one_class_run_once_in_the_place_of_the_last() -> None:
    with transaction.atomic():
        transaction.on_commit(Letter("a"))
        transaction.on_commit(lambda: sent.append(["between"]))
        transaction.on_commit(Parcel("p"))
        transaction.on_commit(Letter("b"))
        assert sent == []
    assert sent == [["between"], ["p"], ["a", "b"]]
    transaction.on_commit(Letter("c"))
    assert sent[3:] == [["c"]]


def test_savepoint_that_is_rolled_back_takes_its_hooks_with_it() -> None:
    with transaction.atomic():
        with pytest.raises(RuntimeError), transaction.atomic():
            transaction.on_commit(Letter("a"))
            raise RuntimeError
        with transaction.atomic():
            transaction.on_commit(Letter("b"))
        transaction.on_commit(Letter("c"))
    assert sent == [["b", "c"]]


def fail(*args: Any) -> None:
    raise RuntimeError("it cannot be sent")


class FailingLetter(Letter):
    """Fail to be sent."""

    def __call__(self) -> None:
        fail()


@pytest.mark.parametrize("hook", [partial(fail, 1), FailingLetter("a"), lambda: fail()])
def test_robust_hook_that_fails_is_logged(hook: Any, caplog: pytest.LogCaptureFixture) -> None:
    with transaction.atomic():
        transaction.on_commit(hook, robust=True)
        transaction.on_commit(Letter("b"))
    assert sent == [["b"]]
    assert "it cannot be sent" in caplog.text
    transaction.on_commit(hook, robust=True)  # without a transaction
