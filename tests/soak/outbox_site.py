"""Two machines of the outbox, whose clocks differ, with a database, a Redis and a queue that can be killed."""

from __future__ import annotations

import itertools
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import boto3
from django.db import connection

from tests.core.outages import OwnValkey, own_valkey
from tests.harness.postgres_pair import Server, copy_database, own_postgres, using
from tests.outbox.transport.brokers import ActiveMqServer, require_activemq
from tests.soak.hosts import FAKETIME
from tests.support.processes import Process, database_url, environment, free_port
from tests.support.waiting import PATIENCE, wait_until

# Seconds by which the clock of the second machine is ahead.
AHEAD_S = 5.0
POLLERS = ("poller 1", "poller 2")
ROUTERS = ("router 1", "router 2")
COMMANDS = {
    **dict.fromkeys(POLLERS, ("dispatcher", "--only", "outbox_poller,outbox_leases,outbox_stale")),
    **dict.fromkeys(ROUTERS, ("dispatcher", "--only", "outbox_router")),
}
# Short enough to see in minutes what takes its time in life.
HURRIED = {
    "LEADER_LEASE_S": "3", "LEADER_RENEW_S": "1", "OUTBOX_POLL_INTERVAL_S": "0.5", "OUTBOX_MAX_TIMEOUT_S": "3",
    "OUTBOX_LEASE_S": "12", "OUTBOX_LEASE_INTERVAL_S": "0.5", "OUTBOX_STALE_AFTER_S": "15",
    "OUTBOX_REPUBLISH_AFTER_S": "5", "OUTBOX_STALE_INTERVAL_S": "1", "OUTBOX_VISIBILITY_S": "5",
    "OUTBOX_CIRCUIT_OPEN_S": "1", "OUTBOX_CIRCUIT_LONGEST_S": "2", "OUTBOX_LAPSES": "1000",
    "LOG_LEVEL": "WARNING",
}  # fmt: skip


class Queue:
    """The queue between pollers and routers: here a stream of the site's Redis."""

    def __init__(self, folder: Path, redis: OwnValkey) -> None:
        self.folder, self.redis = folder, redis

    def start(self) -> None:
        """Start the broker, if it is not the site's Redis."""

    def variables(self) -> dict[str, str]:
        """Return the settings with which the processes use it."""
        return {}

    def kill_for(self, seconds: float, moment: threading.Event) -> None:
        """Kill the broker with SIGKILL, and start it again after this time."""
        self.redis.kill()
        moment.wait(seconds)
        self.redis.start()

    def lose_everything(self) -> None:
        """Delete every pointer, as a broker without a disk does when it restarts."""
        self.redis.client().flushall()

    def stop(self) -> None:
        """End the broker."""


class FileQueue(Queue):
    """The embedded queue: a file, which has no server that could be killed."""

    @property
    def _file(self) -> Path:
        return self.folder / "pointers.sqlite3"

    def variables(self) -> dict[str, str]:
        return {"OUTBOX_QUEUE_TYPE": "embedded", "OUTBOX_EMBEDDED_FILE": str(self._file)}

    def kill_for(self, seconds: float, moment: threading.Event) -> None:
        """Hold the file's write lock for this time, so that every use fails or waits."""
        with self._session() as session:
            session.execute("BEGIN IMMEDIATE")
            moment.wait(seconds)
            session.execute("ROLLBACK")

    def lose_everything(self) -> None:
        with self._session() as session, suppress(sqlite3.OperationalError):  # before the first pointer
            session.execute("DELETE FROM pointer")

    @contextmanager
    def _session(self) -> Iterator[sqlite3.Connection]:
        session = sqlite3.connect(self._file, timeout=PATIENCE, isolation_level=None)
        try:
            yield session
        finally:
            session.close()


class ActiveMqQueue(Queue):
    """Debian's ActiveMQ, which keeps its pointers on disk."""

    def start(self) -> None:
        require_activemq()
        place = self.folder / "activemq"
        place.mkdir()
        self._server = ActiveMqServer(place, scheduler=False)
        self._server.start()

    def variables(self) -> dict[str, str]:
        url = f"stomp://127.0.0.1:{self._server.port}/soak"
        return {"OUTBOX_QUEUE_TYPE": "activemq", "OUTBOX_QUEUE_URL": url}

    def kill_for(self, seconds: float, moment: threading.Event) -> None:
        self._server.kill()
        moment.wait(seconds)
        self._server.start()

    def lose_everything(self) -> None:
        """Kill the broker and delete its files."""
        self._server.kill()
        self._server.delete_messages()
        self._server.start()

    def stop(self) -> None:
        self._server.kill()


class SqsQueue(Queue):
    """An SQS-compatible server in memory, which loses everything when it is killed."""

    def start(self) -> None:
        self._port, self._process = free_port(), None
        self._start()

    def variables(self) -> dict[str, str]:
        return {
            "OUTBOX_QUEUE_TYPE": "sqs", "OUTBOX_QUEUE_URL": self._url, "AWS_ACCESS_KEY_ID": "testing",
            "AWS_SECRET_ACCESS_KEY": "testing", "AWS_DEFAULT_REGION": "us-east-1",
            "AWS_EC2_METADATA_DISABLED": "true",
        }  # fmt: skip

    def kill_for(self, seconds: float, moment: threading.Event) -> None:
        self.stop()
        moment.wait(seconds)
        self._start()

    def lose_everything(self) -> None:
        self.kill_for(0.0, threading.Event())

    def stop(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait(PATIENCE)

    def _start(self) -> None:
        with (self.folder / "sqs.log").open("ab") as out:
            self._process: subprocess.Popen[bytes] | None = subprocess.Popen(
                [sys.executable, "-m", "tests.soak.sqs_server", "-H", "127.0.0.1", "-p", str(self._port)],
                stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=out,
            )  # fmt: skip
        self._url = wait_until(self._create, message="the SQS-compatible server did not start", interval=0.2)

    def _create(self) -> str:
        from botocore.config import Config
        from botocore.exceptions import BotoCoreError

        client: Any = boto3.session.Session().client(
            "sqs", endpoint_url=f"http://127.0.0.1:{self._port}", region_name="us-east-1",
            aws_access_key_id="testing", aws_secret_access_key="testing",
            config=Config(retries={"max_attempts": 0}),
        )  # fmt: skip
        try:
            made = client.create_queue(QueueName="soak.fifo", Attributes={"FifoQueue": "true"})
        except BotoCoreError:
            return ""
        finally:
            client.close()
        return str(made["QueueUrl"])


QUEUES: dict[str, type[Queue]] = {
    "embedded": FileQueue, "redis": Queue, "activemq": ActiveMqQueue, "sqs": SqsQueue,
}  # fmt: skip


class Site:
    """The processes by name, each of which can be killed and started again, and their servers."""

    def __init__(self, env: dict[str, str], database: Server, queue: Queue, ahead_s: float) -> None:
        self._env, self._database, self.queue, self._ahead_s = env, database, queue, ahead_s
        self._running: dict[str, Process] = {}
        self._hands_over = itertools.cycle(("true", "false"))
        self.restarts = 0

    def revive(self) -> None:
        """Start the processes that do not run. Every second one hands messages over without the queue."""
        for name, command in COMMANDS.items():
            process = self._running.get(name)
            if process is None or process.returncode is not None:
                self.restarts += process is not None
                env = {**self._env, **self._clock(name), "OUTBOX_HAND_OVER": next(self._hands_over)}
                self._running[name] = Process(command, env)

    def kill(self, *names: str) -> None:
        for name in names:
            self._running[name].kill()

    def kill_database(self, for_s: float, moment: threading.Event) -> None:
        """Kill all processes of PostgreSQL with SIGKILL, and start it again after this time."""
        self._database.kill()
        moment.wait(for_s)
        self._database.start()

    def stop(self) -> None:
        self.kill(*self._running)

    def logs(self) -> str:
        return "\n".join(f"--- {name}\n{one.log()[-2000:]}" for name, one in self._running.items())

    def _clock(self, name: str) -> dict[str, str]:
        """Return the variables that move the clock of the second machine's processes."""
        if not self._ahead_s or not name.endswith("2"):
            return {}
        assert FAKETIME, "libfaketime is not installed (Debian: apt install faketime)"
        return {
            "LD_PRELOAD": str(FAKETIME),
            "FAKETIME": f"{self._ahead_s:+g}s",
            "FAKETIME_DONT_FAKE_MONOTONIC": "1",
        }


@contextmanager
def own_database() -> Iterator[Server]:
    """Make this process use a server with a copy of the test database, which can be killed."""
    name = str(connection.settings_dict["NAME"])
    with own_postgres() as server:
        # What a killed server has to read again is what was written since its last checkpoint.
        server.execute("ALTER SYSTEM SET checkpoint_timeout = '30s'", "SELECT pg_reload_conf()")
        server.execute(f'CREATE DATABASE "{name}"')
        copy_database(database_url(name), server.url(name))
        with using(server.url(name)):
            yield server


@contextmanager
def site(folder: Path, queue_type: str, database: Server, ahead_s: float = AHEAD_S) -> Iterator[Site]:
    """Start both machines on this database, with a Redis and a queue of this type; end them with the block."""
    with ExitStack() as stack:
        redis = stack.enter_context(own_valkey(folder / "redis"))
        queue = QUEUES[queue_type](folder, redis)
        queue.start()
        stack.callback(queue.stop)
        name = str(connection.settings_dict["NAME"])
        given = {**HURRIED, "REDIS_URL": redis.url, "DATABASE_URL": database.url(name), **queue.variables()}
        made = Site(environment(name, **given), database, queue, ahead_s)
        stack.callback(made.stop)
        made.revive()
        yield made
