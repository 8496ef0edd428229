"""Submit lines through the HTTP API as a form's front end would: a few at a time, over real connections."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import requests

from dispatch.dev.demo.lines import Line

PATH = "/api/v1/submissions/"
TIMEOUT_S = 120.0  # far more than a busy machine needs: a time-out fails the demo


@dataclass(frozen=True)
class Answer:
    """Hold a response and its duration in seconds. Without a response, `status` is 0 and `error` is set."""

    status: int
    body: Any
    took_s: float
    error: str = ""

    @property
    def submission_id(self) -> int | None:
        pk = self.body.get("id") if isinstance(self.body, dict) else None
        return pk if self.status == 202 and isinstance(pk, int) else None

    @property
    def detail(self) -> str:
        """Return the API's reason for a rejection."""
        if self.error:
            return self.error
        return str(self.body.get("detail", "")) if isinstance(self.body, dict) else ""


class Client:
    """Call the HTTP API. `keys` maps a line's `key` to an API key; without an entry, no key is sent."""

    def __init__(self, base_url: str, keys: Mapping[str, str]) -> None:
        self._base_url = base_url
        self._keys = keys
        self._threads = threading.local()

    def submit(self, line: Line) -> Answer:
        """POST the line. Network errors become an Answer, never an exception."""
        headers = {"Content-Type": line.content_type, **self._authorization(line.key)}
        if line.idempotency_key:
            headers["Idempotency-Key"] = line.idempotency_key
        return self._request("POST", self._base_url + PATH, headers, line.payload)

    def status_of(self, submission_id: int) -> Answer:
        """GET the submission with its job from its status URL."""
        return self._request("GET", f"{self._base_url}{PATH}{submission_id}/", self._authorization(""), None)

    def _authorization(self, key: str) -> dict[str, str]:
        return {"Authorization": f"Bearer {self._keys[key]}"} if key in self._keys else {}

    def _request(self, method: str, url: str, headers: dict[str, str], data: bytes | None) -> Answer:
        began = time.monotonic()
        try:
            answer = self._session().request(method, url, data=data, headers=headers, timeout=TIMEOUT_S)
        except requests.RequestException as error:
            return Answer(0, None, time.monotonic() - began, f"no answer ({type(error).__name__})")
        try:
            body = answer.json()
        except ValueError:
            body = None
        return Answer(answer.status_code, body, time.monotonic() - began)

    def _session(self) -> requests.Session:
        if not hasattr(self._threads, "session"):
            self._threads.session = requests.Session()
            self._threads.session.trust_env = False
        session: requests.Session = self._threads.session
        return session


class FrontEnd:
    """Send all lines in order, `at_once` at a time, at irregular intervals of about `every_s` seconds.

    `on_answer` is called with each line and its response, from several threads.
    """

    def __init__(
        self,
        client: Client,
        lines: list[Line],
        *,
        on_answer: Callable[[Line, Answer], None],
        seed: int,
        every_s: float,
        at_once: int = 6,
    ) -> None:
        self._client, self._lines, self._on_answer = client, lines, on_answer
        self._pace = random.Random(seed)
        self._every_s = every_s
        self._pool = ThreadPoolExecutor(at_once, "visitor")
        self._stopped = threading.Event()
        self._first: dict[str, Future[Answer]] = {}
        self._sender = threading.Thread(target=self._send_all, name="front end", daemon=True)

    def start(self) -> None:
        self._sender.start()

    @property
    def finished(self) -> bool:
        """Return whether every line was sent and answered."""
        return not self._sender.is_alive()

    def stop(self) -> None:
        """Stop sending, and return when pending requests are answered."""
        self._stopped.set()
        self._sender.join()

    def _send_all(self) -> None:
        with self._pool:
            for line in self._ordered_lines():
                if self._stopped.wait(self._pace.uniform(0.3, 1.7) * self._every_s):
                    return
                sent = self._pool.submit(self._send, line)
                if line.idempotency_key:
                    self._first.setdefault(line.idempotency_key, sent)

    def _ordered_lines(self) -> list[Line]:
        """Return the lines that follow another line after all others."""
        return sorted(self._lines, key=lambda line: bool(line.follows))

    def _send(self, line: Line) -> Answer:
        if line.follows:
            self._first[line.follows].result(TIMEOUT_S)
        answer = self._client.submit(line)
        self._on_answer(line, answer)
        return answer
