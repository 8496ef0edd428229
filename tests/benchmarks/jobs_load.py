"""Clients of the HTTP API: keep-alive connections, an API key, a fresh Idempotency-Key for every form."""

from __future__ import annotations

import asyncio
import itertools
import json
import random
import time
import uuid
from collections.abc import Sequence
from dataclasses import dataclass, field

import aiohttp

from tests.benchmarks.jobs_ground import Tenant, form

_customers = itertools.count()  # across loads: a repeated customer would be a possible duplicate


@dataclass
class Load:
    """Record what the clients observed.

    Moments in Unix seconds, by submission id; `refused` counts responses other than 202 by status.
    """

    began: float = 0.0
    ended: float = 0.0
    sent: dict[int, float] = field(default_factory=dict)
    answered: dict[int, float] = field(default_factory=dict)
    refused: dict[int, int] = field(default_factory=dict)

    @property
    def failures(self) -> int:
        return sum(self.refused.values())

    @property
    def per_second(self) -> float:
        return len(self.sent) / (self.ended - self.began)

    def answer_times_ms(self) -> list[float]:
        return [1000 * (self.answered[pk] - sent) for pk, sent in self.sent.items()]


def steadily(base_url: str, tenants: Sequence[Tenant], *, per_second: float, seconds: float) -> Load:
    """Send `per_second` submissions a second, each at its time, however long the answers take."""
    return asyncio.run(_steadily(base_url, tenants, per_second, round(per_second * seconds)))


def flat_out(base_url: str, tenants: Sequence[Tenant], *, clients: int, seconds: float) -> Load:
    """Run `clients` clients, each submitting its next form when the last was answered."""
    return asyncio.run(_flat_out(base_url, tenants, clients, seconds))


async def _steadily(base_url: str, tenants: Sequence[Tenant], per_second: float, count: int) -> Load:
    load, chance = Load(), random.Random(1)
    async with _session(base_url, 64) as session:
        loop = asyncio.get_running_loop()
        load.began, start, under_way = time.time(), loop.time(), set()
        for n in range(count):
            await asyncio.sleep(start + n / per_second - loop.time())
            task = asyncio.create_task(_submit(session, tenants[n % len(tenants)], chance, load))
            under_way.add(task)
            task.add_done_callback(under_way.discard)
        await asyncio.gather(*under_way)
        load.ended = time.time()
    return load


async def _flat_out(base_url: str, tenants: Sequence[Tenant], clients: int, seconds: float) -> Load:
    load, chance = Load(), random.Random(1)

    async def client(n: int) -> None:
        while time.time() < load.began + seconds:
            await _submit(session, tenants[n % len(tenants)], chance, load)
            n += clients

    async with _session(base_url, clients) as session:
        load.began = time.time()
        await asyncio.gather(*(client(n) for n in range(clients)))
        load.ended = time.time()
    return load


def _session(base_url: str, connections: int) -> aiohttp.ClientSession:
    return aiohttp.ClientSession(base_url, connector=aiohttp.TCPConnector(limit=connections))


async def _submit(session: aiohttp.ClientSession, tenant: Tenant, chance: random.Random, load: Load) -> None:
    body = json.dumps(form(chance, next(_customers)))
    headers = {
        "Authorization": f"Bearer {tenant.api_key}",
        "Idempotency-Key": str(uuid.uuid4()),
        "Content-Type": "application/json",
    }
    sent = time.time()
    async with session.post("/api/v1/submissions/", data=body, headers=headers) as response:
        answer = await response.read()
    if response.status != 202:
        load.refused[response.status] = load.refused.get(response.status, 0) + 1
        return
    pk = json.loads(answer)["id"]
    load.sent[pk], load.answered[pk] = sent, time.time()
