"""Make Redis unavailable: for this process only, or by killing the server."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil
import redis

from dispatch.core.redis.client import breaker, client
from dispatch.dev import embedded_servers
from tests.support.waiting import PATIENCE, wait_until


@contextmanager
def redis_away() -> Iterator[None]:
    """Make the shared client fail to reach the server while the block runs."""
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
        breaker().reset()


class OwnValkey:
    """A Valkey for one test, which can be killed and restarted on the same data."""

    def __init__(self, data_dir: Path) -> None:
        self._data_dir = data_dir
        self.url = embedded_servers.redis_url(data_dir)

    def client(self) -> redis.Redis:
        return redis.Redis.from_url(self.url)

    def kill(self) -> None:
        """Kill the server with SIGKILL, and return when it is gone."""
        process = psutil.Process(int((self._data_dir / "valkey" / "valkey.pid").read_text()))
        process.kill()
        psutil.wait_procs([process], timeout=PATIENCE)

    def start(self) -> None:
        """Start the server again, and return when it has loaded its data."""
        assert embedded_servers.restart_redis_if_dead(self._data_dir)
        wait_until(self._is_loaded, interval=0.05)

    def _is_loaded(self) -> bool:
        with suppress(redis.BusyLoadingError):
            return bool(self.client().ping())
        return False


@contextmanager
def own_valkey(data_dir: Path) -> Iterator[OwnValkey]:
    server = OwnValkey(data_dir)
    try:
        yield server
    finally:
        with suppress(redis.RedisError):
            server.client().shutdown(nosave=True)
