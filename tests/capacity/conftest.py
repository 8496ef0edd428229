"""Provide lines that calls take: with a dedicated Redis, which a test may stop, or without any."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import redis
from django.db import transaction
from redis.backoff import NoBackoff
from redis.retry import Retry

from accounts.models import Organization
from dispatch.capacity import redis_scripts
from dispatch.capacity.models import DispatchPool, OutboundNumber
from dispatch.core import clock
from dispatch.core.redis import generation
from dispatch.core.redis.client import client
from dispatch.dev import embedded_servers
from dispatch.telephony import services
from dispatch.telephony.models import Call
from dispatch.telephony.services.calls import lock_call, transition
from tests.support import factories
from tests.support.waiting import wait_until


class OwnRedis:
    """A dedicated Valkey that keeps its data when it is stopped and started."""

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="own-"))
        self.socket = self.folder / "valkey.sock"
        self.url = f"unix://{self.socket}?db=0"
        self.start()

    def start(self) -> None:
        embedded_servers._start_valkey(self.folder, self.socket)

    def stop(self) -> None:
        with self._client() as server:
            server.shutdown(nosave=True)

    def flush(self) -> None:
        with self._client() as server:
            server.flushall()

    def _client(self) -> redis.Redis:
        # by default it would search for the stopped server for seconds
        return redis.Redis(unix_socket_path=str(self.socket), retry=Retry(NoBackoff(), 0))

    def remove(self) -> None:
        if embedded_servers._answers(self.socket):
            self.stop()
        shutil.rmtree(self.folder, ignore_errors=True)


@pytest.fixture
def own_redis(settings: Any, transactional_db: None) -> Iterator[OwnRedis]:
    server = OwnRedis()
    settings.REDIS_URL = server.url
    client.cache_clear()
    generation.ensure_generation()
    yield server
    client.cache_clear()
    server.remove()


@pytest.fixture(params=["redis", "postgres"])
def decided_by(request: pytest.FixtureRequest, settings: Any) -> Iterator[str]:
    """Run the test once with Redis, and once without."""
    if request.param == "postgres":
        settings.REDIS_URL = "unix:///tmp/nobody-listens-here.sock"
        client.cache_clear()
    yield request.param
    client.cache_clear()


class Lines:
    """An organization with one pool; `call` takes a line as any purpose does, `end` releases it."""

    def __init__(self) -> None:
        self.organization: Organization = factories.organization()
        self.account = factories.account(self.organization, calls_per_second=1000.0)
        self.pool: DispatchPool = factories.pool(self.organization, concurrency=100)
        self._subject = 0

    def number(self, lines: int, alerts: int = 0, offers: int = 0, **fields: Any) -> OutboundNumber:
        return factories.number(
            self.organization,
            pool=self.pool,
            account=self.account,
            max_channels=lines,
            reserved_for_alerts=alerts,
            reserved_for_offers=offers,
            **fields,
        )

    def call(self, purpose: str = "lead", to: str = "", subject_id: int | None = None) -> Call:
        self._subject += 1
        with transaction.atomic():
            return services.create_call(
                organization=self.organization,
                purpose=purpose,
                subject_id=self._subject if subject_id is None else subject_id,
                attempt=1,
                to_phone=to or factories.phone(),
                pool=DispatchPool.objects.get(pk=self.pool.pk),
                ring_timeout_s=20,
                time_limit_s=60,
                place_by=clock.now() + timedelta(minutes=5),
            )

    def slot(self, purpose: str = "lead") -> int | str:
        """Return the slot that a call of this purpose gets, or the reason why it gets none."""
        try:
            return self.call(purpose).line_slot
        except services.NoLine as none:
            return none.reason

    def until_redis_is_valid(self) -> None:
        """Do what the dispatcher does each second, until this process decides with Redis again."""

        def is_valid() -> bool:
            return generation.ensure_generation() and not redis_scripts.is_recovering()

        wait_until(is_valid)

    def end(self, call: Call) -> None:
        with transaction.atomic():
            transition(lock_call(call.pk), "completed")


@pytest.fixture
def lines(transactional_db: None) -> Lines:
    generation.ensure_generation()
    return Lines()


@pytest.fixture
def step(transactional_db: None) -> Any:
    """Return a function that runs one pass of a dispatcher loop, such as "lines"."""
    from dispatch.core.runtime.loops import find_loop

    return lambda name: find_loop(name).step()
