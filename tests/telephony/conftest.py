"""Somebody who calls through the simulator: an organization with a pool and a number, a purpose that listens."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import pytest
from django.db import transaction

from dispatch.core import clock
from dispatch.core.models import Event
from dispatch.telephony import purposes, services
from dispatch.telephony.models import Call
from dispatch.telephony.purposes import Prompt
from tests import factories
from tests.phones import Simulator
from tests.waiting import PATIENCE, wait_until

MENU = Prompt(say=("There is a job for you.", "Press 1 to accept, 2 to decline, star to repeat."), keys="12")


class Listener:
    """A purpose that remembers what it is told, and says the menu; `fail_next` makes it die once."""

    def __init__(self) -> None:
        self.changes: list[tuple[int, str]] = []
        self.keys: list[tuple[int, str]] = []
        self.fail_next = 0

    def answered(self, call: Call) -> Prompt:
        return MENU

    def pressed(self, call: Call, key: str) -> Prompt:
        self.keys.append((call.pk, key))
        return Prompt(say=("The job is yours.",)) if key == "1" else Prompt(say=("All right. Goodbye.",))

    def changed(self, call: Call) -> None:
        if self.fail_next:
            self.fail_next -= 1
            raise RuntimeError("the purpose has trouble")
        self.changes.append((call.pk, call.status))

    def told(self, call: Call) -> list[str]:
        """The statuses that it was told for this call, each once, in the order in which it first heard of them:
        several threads tell, and one may say late what another has said."""
        return list(dict.fromkeys(status for pk, status in self.changes if pk == call.pk))


class Caller:
    """An organization that places calls of the purpose `test`."""

    def __init__(self, sim: Simulator, listener: Listener) -> None:
        self.sim = sim
        self.listener = listener
        self.organization = factories.organization()
        self.account = factories.account(
            self.organization, account_sid=sim.account_sid, auth_token=sim.auth_token, calls_per_second=1000.0
        )
        self.pool = factories.pool(self.organization)
        self.number = factories.number(self.organization)
        self._subject = 0

    def create(self, to: str, **changes: Any) -> Call:
        self._subject += 1
        wanted: dict[str, Any] = {
            "organization": self.organization,
            "purpose": "test",
            "subject_id": self._subject,
            "attempt": 1,
            "to_phone": to,
            "pool": self.pool,
            "ring_timeout_s": 20,
            "time_limit_s": 60,
            "place_by": clock.now() + timedelta(minutes=5),
            "context": {"job_id": 7},
            **changes,
        }
        with transaction.atomic():
            return services.create_call(**wanted)

    def call(self, to: str, **changes: Any) -> Call:
        """Creates and places it."""
        return services.place(self.create(to, **changes).pk)


def now_is(call: Call, status: str, within: float = PATIENCE) -> Call:
    """Waits until the call's row has that status, and returns the row."""

    def there() -> Call | None:
        row = Call.objects.get(pk=call.pk)
        return row if row.status == status else None

    return wait_until(
        there, message=lambda: f"call is {Call.objects.get(pk=call.pk).status}, not {status}", timeout=within
    )  # type: ignore[return-value]


def is_placed(call: Call) -> Call:
    """Waits until the provider has taken the call, and returns the row: it may ring already."""

    def there() -> Call | None:
        row = Call.objects.get(pk=call.pk)
        return row if row.sid and row.status not in ("created", "requesting", "unknown") else None

    return wait_until(there, message=lambda: f"call is {Call.objects.get(pk=call.pk).status}, not placed")  # type: ignore[return-value]


def history(call: Call) -> list[str]:
    """The call's events, oldest first."""
    events = Event.objects.filter(subject_type="call", subject_id=call.pk).order_by("id")
    return [event.kind.removeprefix("call.") for event in events]


def run_loop(name: str) -> Any:
    """What `step` runs."""
    from dispatch.core.loops import find

    if name != "calls":
        return find(name).step()
    for one in ("calls_cut_off", "calls_unknown", "calls_hang_up", "calls_end"):
        find(one).step()
    return None


@pytest.fixture
def listener() -> Iterator[Listener]:
    before = purposes._handlers.get("test")
    made = Listener()
    purposes.register("test", made)
    yield made
    if before is None:
        purposes._handlers.pop("test", None)
    else:
        purposes.register("test", before)


@pytest.fixture
def caller(sim: Simulator, app_url: str, settings: Any, listener: Listener) -> Iterator[Caller]:
    settings.SIMULATOR_URL = sim.base_url
    yield Caller(sim, listener)
    sim.assert_no_complaints()
    sim.reset()  # now, for a late webhook would find no database


@pytest.fixture
def step() -> Callable[[str], Any]:
    """Runs one pass of a dispatcher's loop: step("placer"). step("calls"): one of every reconciler of calls."""
    return run_loop
