"""Note what this process sends to Redis."""

from __future__ import annotations

from typing import Any

import pytest
from redis.connection import AbstractConnection


def note_redis_requests(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Return the requests that this process sends from now on. A pipeline is one."""
    sent: list[Any] = []
    send = AbstractConnection.send_packed_command

    def note(connection: Any, command: Any, *args: Any, **options: Any) -> Any:
        sent.append(command)
        return send(connection, command, *args, **options)

    monkeypatch.setattr(AbstractConnection, "send_packed_command", note)
    return sent
