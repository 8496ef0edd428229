"""Run real brokers for tests: a file, the tests' Redis, an SQS-compatible server, Debian's ActiveMQ."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import time
import uuid
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from django.conf import settings as django_settings

from dispatch.core.redis import client
from dispatch.outbox import queues
from dispatch.outbox.queues import Consumer, Delivery, Publisher
from tests.support.processes import free_port
from tests.support.waiting import PATIENCE, wait_until

_SPRING, _BROKER = "http://www.springframework.org/schema/beans", "http://activemq.apache.org/schema/core"
_SCHEMAS = (_SPRING, f"{_SPRING}/spring-beans-2.0.xsd", _BROKER, f"{_BROKER}/activemq-core.xsd")
KEYS_PASSWORD = "rain on a tin roof"
ACTIVEMQ_JAR = Path("/usr/share/activemq/bin/activemq.jar")
QUICK_START = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC")  # half the CPU of a broker that runs for seconds


class Broker(ABC):
    """One empty queue, configured in `settings` as a deployment would."""

    kind: str

    def __init__(self, settings: Any) -> None:
        settings.OUTBOX_QUEUE_TYPE = self.kind

    def publisher(self) -> Publisher:
        return queues.publisher()

    def consumer(self, name: str = "one") -> Consumer:
        return queues.consumer(name)

    def die(self, consumer: Consumer) -> None:  # noqa: B027
        """Kill the consumer's process; by default only the passing of time reveals it."""

    @abstractmethod
    def put_raw(self, text: str) -> None:
        """Put something on the queue that our publisher would not."""

    @abstractmethod
    def left(self) -> int:
        """Return how many pointers are on the queue, including held ones.

        Call it when all consumers are closed.
        """

    @contextmanager
    @abstractmethod
    def away(self) -> Iterator[None]:
        """Make the broker unreachable while the block runs."""


class File(Broker):
    kind = "embedded"

    def __init__(self, settings: Any, folder: Path) -> None:
        super().__init__(settings)
        self.file = folder / "queue" / "pointers.sqlite3"
        settings.OUTBOX_EMBEDDED_FILE = str(self.file)

    def put_raw(self, text: str) -> None:
        import sqlite3

        self.publisher().ping()  # makes the tables
        with sqlite3.connect(self.file) as connection:
            connection.execute("INSERT INTO pointer (body, visible_at) VALUES (?, 0)", (text,))
        connection.close()

    def left(self) -> int:
        import sqlite3

        connection = sqlite3.connect(self.file)
        (count,) = connection.execute("SELECT count(*) FROM pointer").fetchone()
        connection.close()
        return int(count)

    @contextmanager
    def away(self) -> Iterator[None]:
        assert not self.file.parent.exists(), "use it before anything is published"
        self.file.parent.write_text("not a folder")
        yield
        self.file.parent.unlink()


class Redis(Broker):
    kind = "redis"

    def __init__(self, settings: Any) -> None:
        super().__init__(settings)
        settings.OUTBOX_QUEUE_URL = ""
        self.settings = settings

    def put_raw(self, text: str) -> None:
        client.client().xadd(client.key("outbox", "pointers"), {"pointer": text})

    def left(self) -> int:
        server = client.client()
        return int(server.xlen(client.key("outbox", "pointers")) + server.zcard(client.key("outbox", "delayed")))

    @contextmanager
    def away(self) -> Iterator[None]:
        # Other tests share the server: it is made unusable for this test, not stopped.
        stream = client.key("outbox", "pointers")
        client.client().set(stream, "in the way")
        yield
        client.client().delete(stream)


class Sqs(Broker):
    kind = "sqs"

    def __init__(self, settings: Any, server_url: str) -> None:
        super().__init__(settings)
        self.client = self._client(server_url)
        made = self.client.create_queue(QueueName=f"{uuid.uuid4().hex}.fifo", Attributes={"FifoQueue": "true"})
        settings.OUTBOX_QUEUE_URL = self.url = made["QueueUrl"]
        self.settings = settings

    @staticmethod
    def _client(server_url: str) -> Any:
        import boto3

        return boto3.session.Session().client("sqs", endpoint_url=server_url)

    def put_raw(self, text: str) -> None:
        self.client.send_message(
            QueueUrl=self.url, MessageBody=text, MessageGroupId="raw", MessageDeduplicationId=uuid.uuid4().hex
        )

    def left(self) -> int:
        names = ["ApproximateNumberOfMessages", "ApproximateNumberOfMessagesNotVisible"]
        told = self.client.get_queue_attributes(QueueUrl=self.url, AttributeNames=names)["Attributes"]
        return sum(int(told[name]) for name in names)

    @contextmanager
    def away(self) -> Iterator[None]:
        attributes = self.client.get_queue_attributes(QueueUrl=self.url, AttributeNames=["QueueArn"])
        name = attributes["Attributes"]["QueueArn"].rpartition(":")[2]
        self.client.delete_queue(QueueUrl=self.url)
        yield
        self.client.create_queue(QueueName=name, Attributes={"FifoQueue": "true"})


class ActiveMq(Broker):
    kind = "activemq"

    def __init__(self, settings: Any, server: ActiveMqServer) -> None:
        super().__init__(settings)
        self.server = server
        self.name = uuid.uuid4().hex
        settings.OUTBOX_QUEUE_URL = f"stomp://127.0.0.1:{server.port}/{self.name}"

    def die(self, consumer: Consumer) -> None:
        consumer._link._connection.transport.disconnect_socket()  # type: ignore[attr-defined]

    def put_raw(self, text: str) -> None:
        from dispatch.outbox.queues.activemq import Link, Place

        link = Link(Place.parse(django_settings.OUTBOX_QUEUE_URL))
        link.transact(lambda wire, work: wire.send(f"/queue/{self.name}", text, transaction=work))
        link.close()

    def left(self) -> int:
        with self.consumer("counting") as consumer:
            return len(consumer.receive(1000, wait_s=1.0))

    @contextmanager
    def away(self) -> Iterator[None]:
        self.server.stop()
        yield
        self.server.start()


def take(consumer: Consumer, how_many: int, within_s: float = PATIENCE) -> list[Delivery]:
    """Take this many deliveries, in order of arrival."""
    found: list[Delivery] = []
    deadline = time.monotonic() + within_s
    while len(found) < how_many and time.monotonic() < deadline:
        found += consumer.receive(how_many - len(found), wait_s=0.5)
    assert len(found) == how_many
    return found


def require_activemq() -> None:
    """Skip the test if ActiveMQ is not installed; fail it in CI, where `.ci/run` installs it."""
    if not ActiveMqServer.installed():
        reason = "ActiveMQ is not installed (Debian: apt install activemq)"
        (pytest.fail if os.environ.get("CI") else pytest.skip)(reason)


class ActiveMqServer:
    """Debian's ActiveMQ with one STOMP connector on a free port; over TLS with the keys of a PKCS #12 file."""

    def __init__(self, folder: Path, scheduler: bool, keys: Path | None = None) -> None:
        self.port, self.folder = free_port(), folder
        scheme, tls = "stomp", ""
        if keys is not None:
            scheme = "stomp+ssl"
            store = f'keyStore="file:{keys}" keyStorePassword="{KEYS_PASSWORD}" keyStoreType="pkcs12"'
            tls = f"<sslContext><sslContext {store}/></sslContext>"
        self._process: subprocess.Popen[bytes] | None = None
        (folder / "broker.xml").write_text(
            f"""<beans xmlns="http://www.springframework.org/schema/beans"
                 xmlns:xsi="http://www.w3.org/2001/XMLSchema-instance"
                 xsi:schemaLocation="{" ".join(_SCHEMAS)}">
            <broker xmlns="http://activemq.apache.org/schema/core" brokerName="tests" useJmx="false"
                    dataDirectory="{folder}/data" schedulerSupport="{str(scheduler).lower()}">
              {tls}
              <transportConnectors>
                <transportConnector name="stomp" uri="{scheme}://127.0.0.1:{self.port}"/>
              </transportConnectors>
            </broker></beans>"""
        )

    @staticmethod
    def installed() -> bool:
        return ACTIVEMQ_JAR.exists() and shutil.which("java") is not None

    def start(self) -> None:
        properties = [f"-Dactivemq.{name}={self.folder}" for name in ("base", "conf", "data")]
        with (self.folder / "log").open("ab") as out:
            self._process = subprocess.Popen(
                ["java", *QUICK_START, "-Xmx256m", "-Dactivemq.home=/usr/share/activemq", *properties,
                 "-jar", str(ACTIVEMQ_JAR), "start", f"xbean:file:{self.folder}/broker.xml"],
                cwd=self.folder, stdout=out, stderr=out,
            )  # fmt: skip
        try:
            wait_until(self._answers, message=lambda: (self.folder / "log").read_text()[-2000:], interval=0.2)
        except AssertionError:
            self.stop()
            raise

    def stop(self) -> None:
        if self._process is not None:
            self._process.terminate()
            self._process.wait(30)
            self._process = None

    def kill(self) -> None:
        """Kill it with SIGKILL, like a power cut."""
        if self._process is not None:
            self._process.kill()
            self._process.wait(30)
            self._process = None

    def delete_messages(self) -> None:
        """Delete what it keeps on disk. Call it while it does not run."""
        shutil.rmtree(self.folder / "data", ignore_errors=True)

    def _answers(self) -> bool:
        if self._process is None or self._process.poll() is not None:
            raise RuntimeError((self.folder / "log").read_text()[-2000:])
        with socket.socket() as probe:
            probe.settimeout(1)
            return probe.connect_ex(("127.0.0.1", self.port)) == 0
