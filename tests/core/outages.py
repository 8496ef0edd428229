"""A Redis that is away: for this process only, or killed for everybody."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil
import redis

from dispatch.core import embedded
from dispatch.core.redis import client
from tests.waiting import PATIENCE


@contextmanager
def redis_away() -> Iterator[None]:
    """While the block runs, the shared client finds nothing at the address of the server."""
    pool = client().connection_pool
    before = dict(pool.connection_kwargs), pool.connection_class
    pool.connection_class = redis.UnixDomainSocketConnection
    pool.connection_kwargs = {"path": "/nonexistent/redis.sock", "retry": before[0].get("retry")}
    pool.disconnect()
    pool.reset()
    try:
        yield
    finally:
        pool.connection_kwargs, pool.connection_class = before
        pool.reset()


class OwnValkey:
    """A Valkey of one test's own, to be killed and started again on the same data."""

    def __init__(self, data_dir: Path) -> None:
        self._data_dir = data_dir
        self.url = embedded.redis_url(data_dir)

    def client(self) -> redis.Redis:
        return redis.Redis.from_url(self.url)

    def kill(self) -> None:
        """As a power cut; returns when it is gone."""
        process = psutil.Process(int((self._data_dir / "valkey" / "valkey.pid").read_text()))
        process.kill()
        psutil.wait_procs([process], timeout=PATIENCE)

    def start(self) -> None:
        assert embedded.restart_redis_if_dead(self._data_dir)


@contextmanager
def own_valkey(data_dir: Path) -> Iterator[OwnValkey]:
    server = OwnValkey(data_dir)
    try:
        yield server
    finally:
        with suppress(redis.RedisError):
            server.client().shutdown(nosave=True)
