"""The fixtures `push_service` and `chat_services`, a pytest plugin."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.notifications import chat_services as chat
from tests.notifications import push_service as push
from tests.notifications.chat_services import Answers
from tests.notifications.push_service import PushService


@pytest.fixture
def push_service(monkeypatch: pytest.MonkeyPatch, settings: Any) -> Iterator[PushService]:
    """A push service that answers, and patience for its answers."""
    settings.HTTP_ALLOWED_NETWORKS = ["127.0.0.0/8"]
    settings.PUSH_TIMEOUT_S = 60.0
    with push.push_service(monkeypatch) as running:
        yield running


@pytest.fixture
def chat_services(monkeypatch: pytest.MonkeyPatch, settings: Any) -> Iterator[Answers]:
    """All chat services, and patience for their answers."""
    settings.HTTP_ALLOWED_NETWORKS = ["127.0.0.0/8"]
    settings.ALERT_CHANNEL_TIMEOUT_S = 60.0
    with chat.chat_services(monkeypatch) as running:
        yield running
