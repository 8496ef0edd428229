"""Set up calls through the simulator: an organization with a pool and a number, and a purpose that listens."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import datetime, timedelta
from typing import Any

import pytest
from django.db import transaction

from dispatch.capacity.models import OutboundNumber
from dispatch.core import clock
from dispatch.core.models import Event
from dispatch.telephony import handlers, services, webhook_urls
from dispatch.telephony.handlers import VoicePrompt
from dispatch.telephony.models import Call, InboundCall, Text
from tests.harness.calls import place_call
from tests.phones import Simulator
from tests.support import factories
from tests.support.waiting import PATIENCE, wait_until

ANN = "+16025550101"
MENU = VoicePrompt(say=("There is a job for you.", "Press 1 to accept, 2 to decline, star to repeat."), keys="12")


class Listener:
    """A purpose that records its notifications and says the menu; `fail_next` makes it die once."""

    def __init__(self) -> None:
        self.changes: list[tuple[int, str]] = []
        self.keys: list[tuple[int, str]] = []
        self.fail_next = 0

    def on_answer(self, call: Call) -> VoicePrompt:
        return MENU

    def on_key(self, call: Call, key: str) -> VoicePrompt:
        self.keys.append((call.pk, key))
        return VoicePrompt(say=("The job is yours.",)) if key == "1" else VoicePrompt(say=("All right. Goodbye.",))

    def on_status_change(self, call: Call) -> None:
        if self.fail_next:
            self.fail_next -= 1
            raise RuntimeError("the purpose has trouble")
        self.changes.append((call.pk, call.status))

    def told(self, call: Call) -> list[str]:
        """Return the statuses that it was notified of for this call, each once, in the order of arrival.

        Several threads notify it, and one may repeat late what another has reported.
        """
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
        return place_call(self.create(to, **changes).pk)


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
    from dispatch.core.runtime.loops import find_loop

    if name != "calls":
        return find_loop(name).step()
    for one in ("calls_cut_off", "calls_unknown", "calls_hang_up", "calls_end"):
        find_loop(one).step()
    return None


@pytest.fixture
def listener() -> Iterator[Listener]:
    before = handlers._handlers.get("test")
    made = Listener()
    handlers.register_calls("test", made)
    yield made
    if before is None:
        handlers._handlers.pop("test", None)
    else:
        handlers.register_calls("test", before)


@pytest.fixture
def caller(sim: Simulator, app_url: str, settings: Any, listener: Listener) -> Iterator[Caller]:
    settings.SIMULATOR_URL = sim.base_url
    yield Caller(sim, listener)
    sim.assert_no_complaints()
    sim.reset()  # now, for a late webhook would find no database


@pytest.fixture
def step() -> Callable[[str], Any]:
    """Return a function that runs one pass of a dispatcher loop.

    For example, step("placer"). step("calls") runs one pass of every reconciler of calls.
    """
    return run_loop


class Answering:
    """A listener that answers every text with what it heard, and takes a key in a call."""

    def __init__(self) -> None:
        self.heard: list[str] = []
        self.keys: list[str] = []
        self.still_wanted = True

    def should_send(self, text: Text) -> bool:
        return self.still_wanted

    def on_status_change(self, text: Text) -> None:
        self.heard.append(text.status)

    def on_sms(self, text: Text) -> str | None:
        self.heard.append(text.body)
        return f"You said {text.body}"

    def on_stop(self, text: Text) -> None:
        """Do nothing."""

    def on_help(self, text: Text) -> str | None:
        return "This is how it works."

    def on_call(self, call: InboundCall) -> VoicePrompt | None:
        call.subject_id = 7
        return VoicePrompt(("There is a job for you.", "Press 1 to accept."), keys="1")

    def on_key(self, call: InboundCall, key: str, *, arrived_at: datetime, state: str = "") -> VoicePrompt:
        self.keys.append(key)
        return VoicePrompt(("The job is yours.",))


@pytest.fixture
def answering() -> Iterator[Answering]:
    before = dict(handlers._listeners), dict(handlers._text_handlers)
    made = Answering()
    handlers._listeners.clear()
    handlers.register_inbound("test", made)
    handlers.register_texts("test", made)
    yield made
    handlers._listeners.clear()
    handlers._listeners.update(before[0])
    handlers._text_handlers.clear()
    handlers._text_handlers.update(before[1])


@pytest.fixture
def texter(caller: Caller, answering: Answering) -> Caller:
    """The caller, whose number may text and is known to the provider with our addresses."""
    OutboundNumber.objects.filter(pk=caller.number.pk).update(sends_texts=True, texts_per_second=1000)
    caller.number.refresh_from_db()
    caller.sim.add_number(
        str(caller.number.phone),
        sms_url=webhook_urls.number_webhook(caller.number, "sms"),
        voice_url=webhook_urls.number_webhook(caller.number, "voice"),
        status_callback=webhook_urls.number_webhook(caller.number, "status"),
    )
    return caller


def create_text(texter: Caller, to: str = ANN, subject_id: int = 1, **changes: Any) -> Text:
    wanted = {"body": "A job for you.", "purpose": "test", "subject_id": subject_id, **changes}
    with transaction.atomic():
        return services.create_text(organization=texter.organization, to_phone=to, **wanted)


def text_is(text: Text, status: str) -> Text:
    def there() -> Text | None:
        row = Text.objects.get(pk=text.pk)
        return row if row.status == status else None

    return wait_until(there, message=lambda: f"text is {Text.objects.get(pk=text.pk).status}, not {status}")  # type: ignore[return-value]
