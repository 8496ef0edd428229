"""A request to the provider that was given up is not delivered later, when its call counts as not placed."""

from __future__ import annotations

import socket
from contextlib import suppress
from typing import Any

import pytest
import requests

from dispatch.telephony.providers.twilio_http import PooledHttp
from tests.support.waiting import PATIENCE

BODY = "x" * 30_000


def test_a_request_that_was_given_up_is_never_delivered(settings: Any) -> None:
    settings.PROVIDER_TIMEOUT_S = 0.3
    with socket.socket() as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)  # the provider takes only the beginning
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        client = PooledHttp(trust_env=False)
        with pytest.raises(requests.ReadTimeout):
            client.request("POST", f"http://127.0.0.1:{listener.getsockname()[1]}/Calls", data=BODY)
        connection, _ = listener.accept()
        connection.settimeout(PATIENCE)
        received = b""
        with connection, suppress(ConnectionResetError):
            while chunk := connection.recv(65536):
                received += chunk
    assert len(received) < len(BODY)
