"""Run a Redis primary with a replica and a sentinel that promotes it, from the embedded server's package.

Import the fixture by name: `from tests.harness.redis_sentinels import redis_pair`. While it is in use, `client()`
reaches the primary through the sentinel.
"""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from dispatch.core.circuit_breaker import CircuitBreaker
from dispatch.core.redis.client import client
from dispatch.dev.embedded_servers import valkey_binary
from tests.support.processes import free_port
from tests.support.waiting import PATIENCE, wait_until

SERVICE = "mymaster"


class ValkeyProcess:
    """A Valkey on a TCP port, which keeps nothing on disk."""

    def __init__(self, folder: Path, *arguments: str) -> None:
        self.port = free_port()
        options = ("--port", str(self.port), "--bind", "127.0.0.1", "--dir", str(folder), "--save", "")
        self.process = subprocess.Popen(
            [str(valkey_binary()), *arguments, *options], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        wait_until(self.responds)

    def client(self) -> Any:
        return redis.Redis(port=self.port, retry=Retry(NoBackoff(), 0), decode_responses=True)

    def responds(self) -> bool:
        try:
            return bool(self.client().ping())
        except redis.RedisError:
            return False

    def kill(self) -> None:
        self.process.kill()
        self.process.wait(PATIENCE)


class RedisPair:
    """A primary, its replica, and a sentinel that promotes the replica a second after the primary is lost."""

    def __init__(self, folder: Path) -> None:
        self.primary = ValkeyProcess(folder)
        self.replica = ValkeyProcess(folder, "--replicaof", "127.0.0.1", str(self.primary.port))
        config = folder / "sentinel.conf"
        config.write_text(
            f"sentinel monitor {SERVICE} 127.0.0.1 {self.primary.port} 1\n"
            f"sentinel down-after-milliseconds {SERVICE} 1000\nsentinel failover-timeout {SERVICE} 5000\n"
        )
        self.sentinel = ValkeyProcess(folder, str(config), "--sentinel")
        wait_until(self._is_watched, message="the sentinel does not see the replica")
        # Its first sentinel does not exist.
        self.url = f"redis+sentinel://127.0.0.1:{free_port()},127.0.0.1:{self.sentinel.port}/{SERVICE}/0"

    def _is_watched(self) -> bool:
        found = self.sentinel.client().execute_command("SENTINEL", "REPLICAS", SERVICE)
        link = self.replica.client().info("replication")["master_link_status"]
        return len(found) == 1 and link == "up"

    def replicated(self) -> None:
        """Wait until the replica has what was written."""
        wait_until(lambda: self.primary.client().wait(1, 1000) == 1)

    def kill_primary(self) -> None:
        self.primary.kill()

    def stop(self) -> None:
        for server in (self.sentinel, self.replica, self.primary):
            server.kill()


@pytest.fixture
def redis_pair(settings: Any) -> Iterator[RedisPair]:
    folder = Path(tempfile.mkdtemp(prefix="sentinel-"))
    made = RedisPair(folder)
    url, settings.REDIS_URL = settings.REDIS_URL, made.url
    client.cache_clear()
    yield made
    settings.REDIS_URL = url
    client.cache_clear()
    CircuitBreaker.reset_all()
    made.stop()
    shutil.rmtree(folder, ignore_errors=True)
