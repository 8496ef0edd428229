"""Clients that send requests as careful programs do: with an Idempotency-Key, again until they are accepted."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import requests

PAUSE_S = 0.3  # before trying again
WAIT_S = 5.0  # for an answer


@dataclass
class Clients:
    """`forms` are (idempotency key, body), which are answered with a 202 or 201.

    An iterator may make them as they are sent. `answered` holds the ids that each key was ever answered with,
    `last_at` when that was (time.monotonic()). `failed` has the requests that failed and were sent again.
    """

    url: str
    key: str
    forms: Iterable[tuple[str, dict[str, Any]]]
    every_s: float
    seed: int
    at_once: int = 3
    answered: dict[str, set[int]] = field(default_factory=dict)
    refused: list[str] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)
    last_at: float = 0.0

    def __post_init__(self) -> None:
        self._left = iter(self.forms)
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._threads = [
            threading.Thread(target=self._submit, args=(random.Random(self.seed + n),), daemon=True)
            for n in range(self.at_once)
        ]

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join(timeout=3 * WAIT_S)

    @property
    def done(self) -> bool:
        return not any(thread.is_alive() for thread in self._threads)

    def _submit(self, rng: random.Random) -> None:
        while not self._stop.is_set():
            with self._lock:
                key, form = next(self._left, ("", {}))
            if not key:
                return
            self._until_accepted(key, form)
            if rng.random() < 0.1:  # one that did not hear the answer
                self._until_accepted(key, form)
            self._stop.wait(rng.uniform(0, 2 * self.every_s * self.at_once))

    def _until_accepted(self, key: str, form: dict[str, Any]) -> None:
        headers = {"Authorization": f"Bearer {self.key}", "Idempotency-Key": key}
        while not self._stop.is_set():
            try:
                answer = requests.post(self.url, json=form, headers=headers, timeout=WAIT_S)
            except requests.RequestException as error:
                with self._lock:
                    self.failed.append(f"{key}: {error!r}")
                self._stop.wait(PAUSE_S)
                continue
            with self._lock:
                if answer.status_code in (201, 202):
                    self.answered.setdefault(key, set()).add(answer.json()["id"])
                    self.last_at = time.monotonic()
                    return
                if answer.status_code < 500 and answer.status_code != 429:
                    self.refused.append(f"{key}: {answer.status_code} {answer.text}")
                    return
                self.failed.append(f"{key}: {answer.status_code} {answer.text[:200]}")
            self._stop.wait(PAUSE_S)
