"""One locked row delays only itself, and our row locks allow foreign keys to the row to be inserted."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import pytest
from django.db import connection

from dispatch.core import clock
from dispatch.core.db.isolation import run_each
from dispatch.telephony.models import Call
from tests.phones import manual
from tests.support import factories
from tests.support.processes import ROOT
from tests.support.row_locks import held
from tests.telephony.conftest import Caller, caller, is_placed, listener, step

__all__ = ["caller", "listener", "step"]

pytestmark = pytest.mark.django_db(transaction=True)

# Intentional locks against foreign keys, or in code that is changed elsewhere.
STRONG = {"dispatch/core/events/readers.py"}
SLICES = ("dispatch/core", "dispatch/telephony", "dispatch/technicians", "dispatch/capacity", "dispatch/jobs",
          "accounts", "notifications")  # fmt: skip


@pytest.fixture
def impatient() -> Iterator[None]:
    """Limit lock waits in this thread to a tenth of a second; our processes use a few seconds."""
    with connection.cursor() as cursor:
        cursor.execute("SET lock_timeout = '100ms'")
    yield
    with connection.cursor() as cursor:
        cursor.execute("RESET lock_timeout")


@pytest.mark.usefixtures("impatient")
def test_a_locked_call_delays_no_other_call(caller: Caller, step: Callable) -> None:
    stuck, free = caller.create("+16025550101"), caller.create("+16025550102")
    caller.sim.others_will(manual())
    clock.travel(30)
    with held(stuck):
        step("placer")
        is_placed(free)
        assert Call.objects.get(pk=stuck.pk).status == "created"
    step("placer")
    is_placed(stuck)


@pytest.mark.usefixtures("impatient")
def test_a_locked_call_delays_no_other_in_the_reconcilers(caller: Caller, step: Callable) -> None:
    calls = [caller.create(f"+1602555010{n}") for n in range(1, 4)]
    Call.objects.update(status="requesting", send_by=clock.now() - timedelta(minutes=5))
    with held(calls[0]):
        step("calls_cut_off")
    assert [Call.objects.get(pk=call.pk).status for call in calls] == ["requesting", "unknown", "unknown"]


def test_a_member_that_fails_leaves_the_others_to_be_done() -> None:
    def act(n: int) -> int:
        if n == 1:
            raise ValueError("on purpose")
        return n

    assert run_each(act, [0, 1, 2], event="number_failed") == 2


def test_our_row_locks_do_not_stop_foreign_keys() -> None:
    strong: list[str] = []
    for folder in SLICES:
        for path in sorted((ROOT / folder).rglob("*.py")):
            name = str(path.relative_to(ROOT))
            if name in STRONG:
                continue
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, ast.Call) and getattr(node.func, "attr", "") == "select_for_update":
                    given: dict[str | None, Any] = {keyword.arg: keyword.value for keyword in node.keywords}
                    if "no_key" not in given:
                        strong.append(f"{name}:{node.lineno}")
    assert strong == []


@pytest.mark.usefixtures("impatient")
def test_an_organization_that_is_changed_still_gets_new_rows() -> None:
    organization = factories.organization()
    with held(organization, lock="FOR NO KEY UPDATE"):
        factories.pool(organization)
