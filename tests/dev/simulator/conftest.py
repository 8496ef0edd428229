"""Shared fixtures: a webhook server, and a short way to place a call."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.phones import PhoneCall, Simulator
from tests.support.processes import free_port

from .server import OurServer

US = "+16025550100"
ANN = "+16025550101"
BOB = "+16025550102"
OFFER = '<Gather numDigits="1" action="/key"><Say>Press 1 to accept</Say></Gather><Say>Goodbye</Say>'
ALL_EVENTS = ["initiated", "ringing", "answered", "completed"]


@pytest.fixture
def ours() -> Iterator[OurServer]:
    server = OurServer()
    server.says("/voice", OFFER)
    server.says("/key", "<Say>The job is yours</Say>")
    yield server
    server.close()


@pytest.fixture(scope="session")
def stepped_process() -> Iterator[Simulator]:
    with Simulator.start(clock="manual", calls_per_second=1, max_concurrent=3) as simulator:
        yield simulator


@pytest.fixture
def stepped(stepped_process: Simulator) -> Iterator[Simulator]:
    """A simulator with a manual clock, one call per second and three at once."""
    stepped_process.reset()
    yield stepped_process
    stepped_process.assert_no_complaints()


class Caller:
    """Place calls as the application would, with the official client."""

    def __init__(self, simulator: Simulator, server: OurServer) -> None:
        self.sim, self.ours = simulator, server
        self.client = simulator.client()

    def __call__(self, to: str = ANN, *, twiml: str = "", **more: Any) -> PhoneCall:
        """Create a call that asks /voice and reports all events to /status; the phone's side of it."""
        given: dict[str, Any] = {
            "to": to,
            "from_": US,
            "status_callback": self.ours.base + "/status",
            "status_callback_event": ALL_EVENTS,
            **({"twiml": f"<Response>{twiml}</Response>"} if twiml else {"url": self.ours.base + "/voice"}),
        }
        return PhoneCall(self.sim, self.client.calls.create(**{**given, **more}).sid)


@pytest.fixture
def place(sim: Simulator, ours: OurServer) -> Caller:
    return Caller(sim, ours)


@pytest.fixture
def unused_tcp_port() -> int:
    """Return a port on which nothing listens."""
    return free_port()
