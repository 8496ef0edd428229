"""Submits lines through the HTTP API as a form's front end would: a few at a time, over real connections."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import requests

from dispatch.console.demo.lines import Line

PATH = "/api/v1/submissions/"
TIMEOUT_S = 120.0  # far beyond what a busy machine needs: no answer is a failure of the demo


@dataclass(frozen=True)
class Answer:
    """What came back: `status` 0 and `error` when nothing did. `took_s` seconds."""

    status: int
    body: Any
    took_s: float
    error: str = ""

    @property
    def submission_id(self) -> int | None:
        found = self.body.get("id") if isinstance(self.body, dict) else None
        return found if self.status == 202 and isinstance(found, int) else None

    @property
    def detail(self) -> str:
        """Why it was refused, as the API says it."""
        if self.error:
            return self.error
        return str(self.body.get("detail", "")) if isinstance(self.body, dict) else ""


class Client:
    """`keys` maps a line's `key` to the API key to send; a missing one sends none."""

    def __init__(self, base_url: str, keys: Mapping[str, str]) -> None:
        self._base_url = base_url
        self._keys = keys
        self._threads = threading.local()

    def submit(self, line: Line) -> Answer:
        """POSTs the line. Never raises for what the network does."""
        headers = {"Content-Type": line.content_type, **self._authorization(line.key)}
        if line.idempotency_key:
            headers["Idempotency-Key"] = line.idempotency_key
        return self._ask("POST", self._base_url + PATH, headers, line.payload)

    def status_of(self, submission_id: int) -> Answer:
        """GETs the submission with its job, as its status URL answers."""
        return self._ask("GET", f"{self._base_url}{PATH}{submission_id}/", self._authorization(""), None)

    def _authorization(self, key: str) -> dict[str, str]:
        return {"Authorization": f"Bearer {self._keys[key]}"} if key in self._keys else {}

    def _ask(self, method: str, url: str, headers: dict[str, str], data: bytes | None) -> Answer:
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
    """Sends all lines in order, `at_once` at a time, at a visitor's irregular pace of about `every_s` seconds."""

    def __init__(
        self,
        client: Client,
        lines: list[Line],
        *,
        told: Callable[[Line, Answer], None],
        seed: int,
        every_s: float,
        at_once: int = 6,
    ) -> None:
        self._client, self._lines, self._told = client, lines, told
        self._pace = random.Random(seed)
        self._every_s = every_s
        self._pool = ThreadPoolExecutor(at_once, "visitor")
        self._stopped = threading.Event()
        self._first: dict[str, Future[Answer]] = {}
        self._walker = threading.Thread(target=self._walk, name="front end", daemon=True)

    def start(self) -> None:
        self._walker.start()

    @property
    def finished(self) -> bool:
        """Whether every line was sent and answered."""
        return not self._walker.is_alive()

    def stop(self) -> None:
        """Sends no more; returns when what is under way is answered."""
        self._stopped.set()
        self._walker.join()

    def _walk(self) -> None:
        with self._pool:
            for line in self._after_what_they_follow():
                if self._stopped.wait(self._pace.uniform(0.3, 1.7) * self._every_s):
                    return
                sent = self._pool.submit(self._send, line)
                if line.idempotency_key:
                    self._first.setdefault(line.idempotency_key, sent)

    def _after_what_they_follow(self) -> list[Line]:
        return sorted(self._lines, key=lambda line: bool(line.follows))

    def _send(self, line: Line) -> Answer:
        if line.follows:
            self._first[line.follows].result(TIMEOUT_S)
        answer = self._client.submit(line)
        self._told(line, answer)
        return answer
