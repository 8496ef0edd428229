"""The CPU time of one accepted submission: on the short path, and through the view for comparison.

Both ways are called in this process, in turns, one request at a time and without HTTP, so the load of the machine
concerns both. The suite `jobs` measures the real web process.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import random
import statistics
import time
import uuid
from collections.abc import Iterator
from typing import Any

from django.test import override_settings
from rest_framework.settings import api_settings

from dispatch.core.web.asgi_handler import ThreadedASGIHandler
from dispatch.jobs.api import intake
from tests.benchmarks import Result, jobs_ground
from tests.benchmarks.jobs_site import server_pids
from tests.benchmarks.processes import Meter

MIDDLEWARE = f"{intake.__name__}.{intake.SubmissionIntakeMiddleware.__name__}"
ROUNDS, REQUESTS = 5, 300
VIEW = "through the view"


def run() -> Iterator[Result]:
    """Yield the median of the rounds and the spread, for each way."""
    api_settings.DEFAULT_THROTTLE_RATES["write"] = "1000000/min"
    tenants = jobs_ground.tenants(count=4, technicians=1)
    ways = {"": _handler(is_short=True), VIEW: _handler(is_short=False)}
    spent: dict[str, list[dict[str, float]]] = {way: [] for way in ways}
    numbers = itertools.count()
    for turn in range(ROUNDS + 1):
        for way, handler in ways.items():
            with Meter(server_pids()) as meter:
                began = time.process_time()
                asyncio.run(_submit_many(handler, tenants, numbers))
                web = time.process_time() - began
            if turn:  # the first round is for warming up
                spent[way].append({"web": web, **meter.spent})
    for way, rounds in spent.items():
        for name in rounds[0]:
            costs = sorted(1000 * each[name] / REQUESTS for each in rounds)
            yield Result(f"CPU of {name} for one submission, median", statistics.median(costs), "ms", peer=way)
            yield Result("  lowest", costs[0], "ms", peer=way)
            yield Result("  highest", costs[-1], "ms", peer=way)


def _handler(*, is_short: bool) -> ThreadedASGIHandler:
    from django.conf import settings

    without = [name for name in settings.MIDDLEWARE if name != MIDDLEWARE]
    with override_settings(MIDDLEWARE=settings.MIDDLEWARE if is_short else without):
        return ThreadedASGIHandler(1)


async def _submit_many(
    handler: ThreadedASGIHandler, tenants: list[jobs_ground.Tenant], numbers: Iterator[int]
) -> None:
    chance = random.Random(1)
    for n in itertools.islice(numbers, REQUESTS):
        body = json.dumps(jobs_ground.form(chance, n)).encode()
        status = await _submit(handler, tenants[n % len(tenants)].api_key, body)
        if status != 202:
            raise RuntimeError(f"Refused with {status}.")


async def _submit(handler: ThreadedASGIHandler, api_key: str, body: bytes) -> int:
    headers = {
        "host": "127.0.0.1",
        "authorization": f"Bearer {api_key}",
        "idempotency-key": str(uuid.uuid4()),
        "content-type": "application/json",
        "content-length": str(len(body)),
    }
    scope = {
        "type": "http",
        "method": "POST",
        "path": intake.PATH,
        "headers": [(name.encode(), value.encode()) for name, value in headers.items()],
    }
    received = iter([{"type": "http.request", "body": body}])
    sent: list[dict[str, Any]] = []

    async def receive() -> dict[str, Any]:
        for message in received:
            return message
        await asyncio.Event().wait()  # the client stays
        raise AssertionError

    async def send(message: dict[str, Any]) -> None:
        sent.append(message)

    await handler(scope, receive, send)
    return int(sent[0]["status"])
