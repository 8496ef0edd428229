"""The heartbeat reaches an outside address while everything works, and is withheld otherwise."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from datetime import timedelta
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

import pytest
from prometheus_client import REGISTRY

from dispatch.core import checks, clock
from dispatch.core.models import Leadership
from dispatch.core.runtime.loops import all_loops, find_loop
from notifications import heartbeat
from tests.core.test_checks import ids

pytestmark = pytest.mark.django_db(transaction=True)


class Receiver:
    """A monitoring service on loopback."""

    def __init__(self) -> None:
        self.paths: list[str] = []
        self.status = 200
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                receiver.paths.append(self.path)
                self.send_response(receiver.status)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, *args: Any) -> None:
                """Log nothing."""

        self.server = HTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server.server_address[1]}/ping/abc"


@pytest.fixture
def receiver(settings: Any) -> Iterator[Receiver]:
    found = Receiver()
    settings.DISPATCH_HEARTBEAT_URL = found.url
    yield found
    found.server.shutdown()
    found.server.server_close()


def lead_everything() -> None:
    Leadership.objects.bulk_create(
        Leadership(name=f"loop:{loop.name}", holder="test", expires_at=clock.now() + timedelta(minutes=1))
        for loop in all_loops()
        if loop.elected
    )


def count(outcome: str) -> float:
    return REGISTRY.get_sample_value("dispatch_heartbeats_total", {"outcome": outcome}) or 0.0


def test_the_heartbeat_is_sent_while_everything_works(receiver: Receiver) -> None:
    lead_everything()
    before = count("sent")
    find_loop("heartbeat").step()
    assert receiver.paths == ["/ping/abc"]
    assert count("sent") == before + 1


def test_a_loop_without_a_leader_withholds_the_heartbeat(receiver: Receiver) -> None:
    lead_everything()
    Leadership.objects.filter(name="loop:jobs_auditor").update(expires_at=clock.now() - timedelta(seconds=1))
    before = count("withheld")
    heartbeat.send_heartbeat()
    assert heartbeat.find_problems() == ["no leader runs jobs_auditor"]
    assert receiver.paths == []
    assert count("withheld") == before + 1


@pytest.mark.parametrize("part", ["alerts_overdue", "lagging"])
def test_late_alerts_and_lagging_readers_withhold_it(
    receiver: Receiver, part: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    lead_everything()
    if part == "lagging":
        monkeypatch.setattr(heartbeat, "lagging", lambda: {"outbox": 90.0})
    else:
        monkeypatch.setattr(heartbeat.metrics, "alerts_overdue", lambda: [((), 2)])
    heartbeat.send_heartbeat()
    assert receiver.paths == []
    assert len(heartbeat.find_problems()) == 1


def test_a_receiver_that_fails_is_counted_and_does_not_fail_the_loop(receiver: Receiver, settings: Any) -> None:
    lead_everything()
    receiver.status = 500
    before = count("failed")
    heartbeat.send_heartbeat()
    settings.DISPATCH_HEARTBEAT_URL = "http://127.0.0.1:1/"  # nobody listens, and the port is not allowed
    heartbeat.send_heartbeat()
    assert count("failed") == before + 2


def test_without_an_address_nothing_is_sent(settings: Any) -> None:
    settings.DISPATCH_HEARTBEAT_URL = ""
    before = count("withheld")
    heartbeat.send_heartbeat()
    assert count("withheld") == before


def test_an_address_inside_is_refused_at_start(settings: Any) -> None:
    settings.HTTP_ALLOWED_NETWORKS = []
    settings.DISPATCH_HEARTBEAT_URL = "http://169.254.169.254/latest"
    assert ids(checks.called_addresses(None)) == ["dispatch.E062"]
