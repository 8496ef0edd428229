"""A provider account whose server accepts connections and never answers, until the test lets go."""

from __future__ import annotations

import socket
import struct
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import pytest

from dispatch.core.runtime.fair_threads import FairThreads
from dispatch.telephony import providers
from dispatch.telephony.providers.twilio import Twilio
from tests.support.waiting import PATIENCE


class BlackHole:
    """Accepts the connections of one account and never answers. `give_back` ends that."""

    def __init__(self, account_sid: str, real_url: str) -> None:
        self._sid, self._real_url, self._is_open = account_sid, real_url, True
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=256)
        self._url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        self._held: list[socket.socket] = []
        self._clients: list[Any] = []
        self._lock = threading.Lock()
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                connection, _ = self._listener.accept()
                with self._lock:
                    if self._is_open:
                        self._held.append(connection)
                    else:
                        connection.close()

    def held(self) -> int:
        """Return how many requests hang."""
        return len(self._held)

    def aim(self, client: Any, account_sid: str) -> None:
        """Send the client of the account here."""
        if account_sid == self._sid and self._is_open:
            client.api.base_url = self._url
            self._clients.append(client)

    def url_for(self, account_sid: str, real_url: str) -> str:
        """Return where the account requests calls: here, until the hole is given back."""
        return self._url if account_sid == self._sid and self._is_open else real_url

    def give_back(self) -> None:
        """Cut the hanging requests. Later ones go to the simulator."""
        with self._lock:
            self._is_open = False
        for client in self._clients:
            client.api.base_url = self._real_url
        providers.reset_clients()  # others are made, which know the real address
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)  # wakes the thread, and refuses what is in the backlog
        self._listener.close()
        while self._held:
            connection = self._held.pop()
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            connection.close()


@contextmanager
def black_hole(account_sid: str, real_url: str) -> Iterator[BlackHole]:
    """Let every request of the account hang. At the end, its threads have ended."""
    hole, make_client = BlackHole(account_sid, real_url), Twilio._make_client
    simulator_url = Twilio._simulator_url

    def make_and_aim(self: Twilio, credentials: tuple[str, str]) -> Any:
        client = make_client(self, credentials)
        hole.aim(client, self._sid)
        return client

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Twilio, "_make_client", make_and_aim)
        patch.setattr(Twilio, "_simulator_url", lambda self: hole.url_for(self._sid, simulator_url(self)))
        FairThreads.start_threads()
        try:
            yield hole
        finally:
            hole.give_back()
            FairThreads.stop_threads(PATIENCE)
