"""Open the queue that carries pointers, chosen by OUTBOX_QUEUE_TYPE: `embedded`, `redis`, `sqs` or `activemq`.

Example:
    with queues.publisher() as publisher:
        publisher.publish(pointer, dedup_id)
    for delivery in queues.consumer("router-1").receive(10, wait_s=1.0):
        delivery.ack()
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

import structlog
from django.conf import settings
from django.core.exceptions import ImproperlyConfigured

from dispatch.outbox.queues.base import Consumer, Delivery, Publication, Publisher, QueueUnavailable

__all__ = [
    "Consumer",
    "Delivery",
    "Publication",
    "Publisher",
    "QueueUnavailable",
    "consumer",
    "publisher",
    "warn_if_unreachable",
]

log = structlog.get_logger(__name__)

# Each module has `publisher(place)` and `consumer(place, name)`, and imports its library, which may be optional.
TYPES = {
    "embedded": "dispatch.outbox.queues.embedded",
    "redis": "dispatch.outbox.queues.redis_streams",
    "sqs": "dispatch.outbox.queues.sqs",
    "activemq": "dispatch.outbox.queues.activemq",
}
# The optional libraries of these types, as pip names them.
PACKAGES = {"sqs": "boto3", "activemq": "stomp.py"}


def publisher() -> Publisher:
    """Return a publisher to the configured queue. Makes no network connection. Raises ImproperlyConfigured."""
    return _module().publisher(_place())


def consumer(name: str) -> Consumer:
    """Return a consumer of the configured queue; `name` must be unique among running consumers.

    Makes no network connection. Raises ImproperlyConfigured.
    """
    return _module().consumer(_place(), name)


def warn_if_unreachable() -> bool:
    """Check the queue when a process starts; log a warning and return False if it is unreachable.

    Publishers and consumers keep retrying in any case.
    """
    try:
        with publisher() as connection:
            connection.ping()
    except QueueUnavailable as error:
        log.warning("queue_unreachable", queue=settings.OUTBOX_QUEUE_TYPE, error=str(error))
        return False
    return True


def _module() -> Any:
    kind = settings.OUTBOX_QUEUE_TYPE
    if kind not in TYPES:
        raise ImproperlyConfigured(f"OUTBOX_QUEUE_TYPE is {kind!r}; it can be {', '.join(TYPES)}.")
    try:
        return import_module(TYPES[kind])
    except ModuleNotFoundError as error:
        package = PACKAGES.get(kind, error.name)
        raise ImproperlyConfigured(
            f"OUTBOX_QUEUE_TYPE={kind} needs the package {package}, which is not installed. "
            f"Run: .venv/bin/pip install -c constraints.txt {package}"
        ) from None


def _place() -> str:
    """Return where the queue is: a file for `embedded`, else a URL; empty selects the type's default."""
    kind = settings.OUTBOX_QUEUE_TYPE
    place = str(settings.OUTBOX_EMBEDDED_FILE) if kind == "embedded" else settings.OUTBOX_QUEUE_URL
    if not place and kind != "redis":
        name = "OUTBOX_EMBEDDED_FILE" if kind == "embedded" else "OUTBOX_QUEUE_URL"
        raise ImproperlyConfigured(f"OUTBOX_QUEUE_TYPE={kind} needs {name}.")
    return place
