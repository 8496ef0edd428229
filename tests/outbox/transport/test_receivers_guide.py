"""The code sample of docs/guides/receivers.md runs, and behaves as documented."""

from __future__ import annotations

import os
import re
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path

import pytest
import requests
from django.conf import settings as django_settings

from dispatch.core import clock
from dispatch.core.http import webhook_signing as signing
from dispatch.outbox.models import Attempt, default_permanent_codes, default_retry_schedule
from dispatch.outbox.services import endpoints
from tests.harness.outbox import World
from tests.support.waiting import wait_until

from .brokers import free_port

PAGE = Path(django_settings.BASE_DIR) / "docs" / "guides" / "receivers.md"
Start = Callable[..., str]


def sample() -> str:
    (code,) = re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    return code


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Start the page's receiver with these secrets; yield its URL."""
    running: list[subprocess.Popen[bytes]] = []

    def begin(*secrets: str) -> str:
        for process in running:
            process.terminate()
            process.wait(10)
        running.clear()
        (tmp_path / "receiver.py").write_text(sample())
        port = free_port()
        environment = {**os.environ, "SECRETS": " ".join(secrets), "PORT": str(port)}
        running.append(subprocess.Popen(
            [sys.executable, "receiver.py"], cwd=tmp_path, env=environment, stderr=subprocess.DEVNULL
        ))  # fmt: skip
        url = f"http://127.0.0.1:{port}/"
        wait_until(lambda: _answers(url), message="the receiver did not start")
        return url

    yield begin
    for process in running:
        process.terminate()
        process.wait(10)


def _answers(url: str) -> bool:
    try:
        return requests.post(url, data=b"{}", timeout=60).status_code == 401
    except requests.RequestException:
        return False


def inbox(tmp_path: Path) -> list[tuple[str, str]]:
    connection = sqlite3.connect(tmp_path / "inbox.sqlite3")
    rows = connection.execute("SELECT id, body FROM message ORDER BY rowid").fetchall()
    connection.close()
    return rows


def post(url: str, secrets: list[str], body: bytes = b"{}", late_s: float = 0, **change: str) -> requests.Response:
    headers = signing.headers(secrets, "msg_1", clock.now() - timedelta(seconds=late_s), body)
    return requests.post(url, data=body, headers={**headers, **change}, timeout=60)


def test_example_receiver_accepts_a_signed_message_once(start: Start, tmp_path: Path) -> None:
    secret = signing.new_secret()
    url = start(secret)
    assert post(url, [secret], b'{"a":1}').json() == {"ack": True, "new": True}
    assert post(url, [secret], b'{"a":1}').json() == {"ack": True, "new": False}
    url = start(secret)  # it remembers across a restart
    assert post(url, [secret], b'{"a":1}').json() == {"ack": True, "new": False}
    assert inbox(tmp_path) == [("msg_1", '{"a":1}')]


def test_example_receiver_rejects_other_signatures(start: Start, tmp_path: Path) -> None:
    secret = signing.new_secret()
    url = start(secret)
    assert post(url, [signing.new_secret()]).status_code == 401
    assert post(url, [secret], late_s=400).status_code == 401
    assert post(url, [secret], late_s=-400).status_code == 401
    assert post(url, [secret], **{"webhook-id": "msg_2"}).status_code == 401
    assert post(url, [secret], **{"webhook-signature": "v1,"}).status_code == 401
    assert post(url, [secret], **{"webhook-timestamp": "soon"}).status_code == 401
    assert not (tmp_path / "inbox.sqlite3").exists()


def test_secrets_change_over_on_either_side(start: Start) -> None:
    old, new = signing.new_secret(), signing.new_secret()
    assert post(start(old), [new, old]).status_code == 200
    assert post(start(old, new), [new]).status_code == 200
    assert post(start(new), [old]).status_code == 401


@pytest.mark.django_db(transaction=True)
def test_messages_reach_it_through_the_whole_outbox(start: Start, world: World, tmp_path: Path) -> None:
    endpoint = world.endpoint()
    endpoint.url = start(endpoint.secret)
    endpoint.save()
    ids = world.send(endpoint, "a", "b", "c")
    world.start()
    for message_id in ids:
        world.becomes(message_id, "COMPLETED")
    assert [name for name, _ in inbox(tmp_path)] == [world.message(message_id).webhook_id for message_id in ids]
    _, secret, _ = endpoints.rotate_secret(endpoint.pk, actor=endpoints.Actor())
    world.becomes(world.send_one(endpoint, "both sign"), "COMPLETED")
    endpoint.refresh_from_db()
    endpoint.url = start(secret)
    endpoint.save()
    test_id = endpoints.send_test(endpoint, actor=endpoints.Actor())
    world.becomes(test_id, "COMPLETED")
    assert '"ack": true' in Attempt.objects.get(message_id=test_id).answer
    assert '"type":"endpoint.test"' in inbox(tmp_path)[-1][1]


def test_documented_defaults_match_the_code() -> None:
    text = PAGE.read_text()
    assert f"| {', '.join(map(str, default_permanent_codes()))} |" in text
    words = {5: "5 s", 30: "30 s", 120: "2 min", 600: "10 min", 3600: "1 h", 14400: "4 h", 43200: "12 h"}
    told = [words[seconds] for seconds in default_retry_schedule()]
    assert f"after {', '.join(told[:-1])} and {told[-1]}" in " ".join(text.split())
    assert django_settings.OUTBOX_CIRCUIT_FAILURES == 5
    assert django_settings.OUTBOX_DISABLE_AFTER_S == 3 * 86400
