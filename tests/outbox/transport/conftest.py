from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from moto.server import ThreadedMotoServer

from dispatch.outbox.pointer import HTTP, MessagePointer, group_hash

from . import brokers

Make = Callable[..., MessagePointer]


@pytest.fixture
def make_pointer() -> Make:
    """Make a pointer as the poller would, each for a different message by default."""
    numbers = count(1)

    def make(message: int | None = None, group: str = "job 7", epoch: int = 1) -> MessagePointer:
        number = next(numbers) if message is None else message
        target = "https://dispatch.example/api/v1/dispatch/process/"
        return MessagePointer(str(number), "DISPATCH-POOL", f"{epoch}.2.x", HTTP, target, group_hash(1, 2, group))

    return make


@pytest.fixture(scope="session")
def sqs_server() -> Iterator[str]:
    """Run an SQS-compatible server on a free port, with credentials that are valid nowhere else."""
    logging.getLogger("werkzeug").setLevel(logging.WARNING)
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("AWS_ACCESS_KEY_ID", "testing")
        patch.setenv("AWS_SECRET_ACCESS_KEY", "testing")
        patch.setenv("AWS_DEFAULT_REGION", "us-east-1")
        patch.setenv("AWS_EC2_METADATA_DISABLED", "true")
        server.start()
        host, port = server.get_host_and_port()
        yield f"http://{host}:{port}"
        server.stop()


def _activemq(folder: Path, *, scheduler: bool) -> Iterator[brokers.ActiveMqServer]:
    brokers.require_activemq()
    server = brokers.ActiveMqServer(folder, scheduler=scheduler)
    server.start()
    yield server
    server.stop()


@pytest.fixture(scope="session")
def activemq_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[brokers.ActiveMqServer]:
    """Run Debian's ActiveMQ in its default configuration."""
    yield from _activemq(tmp_path_factory.mktemp("activemq"), scheduler=False)


@pytest.fixture(scope="session")
def activemq_scheduler_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[brokers.ActiveMqServer]:
    """Run Debian's ActiveMQ with delayed messages enabled."""
    yield from _activemq(tmp_path_factory.mktemp("activemq"), scheduler=True)


@pytest.fixture
def broker(request: Any, settings: Any, tmp_path: Path) -> brokers.Broker:
    """Return the queue that the test's class names by parametrizing `broker` indirectly."""
    settings.OUTBOX_VISIBILITY_S = 60.0
    match request.param:
        case "embedded":
            return brokers.File(settings, tmp_path)
        case "redis":
            return brokers.Redis(settings)
        case "sqs":
            return brokers.Sqs(settings, request.getfixturevalue("sqs_server"))
        case "activemq" | "activemq_scheduler" as kind:
            return brokers.ActiveMq(settings, request.getfixturevalue(f"{kind}_server"))
    raise AssertionError(request.param)
