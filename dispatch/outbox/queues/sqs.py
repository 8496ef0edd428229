"""Carry pointers in an Amazon SQS FIFO queue (or a compatible server).

MessageGroupId is the pointer's messageGroupId, so that SQS also delivers one pointer of a group at a time;
MessageDeduplicationId drops duplicates for five minutes.

OUTBOX_QUEUE_URL is the queue's URL, which ends in `.fifo`. Credentials and region come from boto3's usual
sources; the region of an amazonaws.com host comes from its name.
"""

from __future__ import annotations

import hashlib
import math
import re
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import Any, TypeVar
from urllib.parse import urlsplit

import boto3
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError
from django.conf import settings
from django.core.exceptions import ImproperlyConfigured

from dispatch.outbox.queues.base import Consumer, Delivery, Publication, Publisher, QueueUnavailable

BATCH = 10  # SQS's limit per request
MAX_POLL_S = 20
MAX_VISIBILITY_S = 43_200
MAX_DEDUP_ID_LENGTH = 128
_CLIENT_ERRORS = (BotoCoreError, ClientError, OSError)
T = TypeVar("T")


def publisher(url: str) -> Publisher:
    """Return a publisher to the queue `url`."""
    return SqsPublisher(_Queue(url))


def consumer(url: str, name: str) -> Consumer:
    """Return a consumer of the queue `url`."""
    return SqsConsumer(_Queue(url), name)


class _Queue:
    """One queue and its client, which is created on first use and may be shared by threads."""

    def __init__(self, url: str) -> None:
        if not url.endswith(".fifo"):
            raise ImproperlyConfigured("OUTBOX_QUEUE_URL must name a FIFO queue: its URL ends in .fifo.")
        self.url = url
        self._lock = threading.Lock()
        self._client: Any = None

    def call(self, operation: str, **arguments: Any) -> dict[str, Any]:
        """Call an operation. Raises QueueUnavailable."""
        try:
            return getattr(self._connected_client(), operation)(QueueUrl=self.url, **arguments)
        except _CLIENT_ERRORS as error:
            raise QueueUnavailable(f"SQS: {error}") from error

    def close(self) -> None:
        with self._lock:
            if self._client is not None:
                self._client.close()
                self._client = None

    def _connected_client(self) -> Any:
        with self._lock:
            if self._client is None:
                place = urlsplit(self.url)
                match = re.fullmatch(r"sqs\.([a-z0-9-]+)\.amazonaws\.com(\.cn)?", place.hostname or "")
                self._client = boto3.session.Session().client(
                    "sqs",
                    endpoint_url=f"{place.scheme}://{place.netloc}",
                    region_name=match[1] if match else None,
                    config=Config(
                        connect_timeout=5,
                        read_timeout=MAX_POLL_S + 5,
                        retries={"mode": "standard", "total_max_attempts": 2},
                        max_pool_connections=20,
                    ),
                )
            return self._client


class SqsPublisher(Publisher):
    """Publish ten pointers per request."""

    def __init__(self, queue: _Queue) -> None:
        self._queue = queue

    def publish_many(self, publications: Sequence[Publication]) -> list[Exception | None]:
        outcomes: list[Exception | None] = []
        for batch in _batches(publications):
            outcomes += self._publish(batch)
        return outcomes

    def ping(self) -> None:
        self._queue.call("get_queue_attributes", AttributeNames=["QueueArn"])

    def close(self) -> None:
        self._queue.close()

    def _publish(self, batch: Sequence[Publication]) -> list[Exception | None]:
        entries = [
            {
                "Id": str(number),
                "MessageBody": pointer.to_json(),
                "MessageGroupId": pointer.messageGroupId,
                "MessageDeduplicationId": _dedup_id(dedup_id),
            }
            for number, (pointer, dedup_id) in enumerate(batch)
        ]
        try:
            answer = self._queue.call("send_message_batch", Entries=entries)
        except QueueUnavailable as error:
            return [error] * len(batch)
        refused = {entry["Id"]: entry for entry in answer.get("Failed", ())}
        return [_refusal(refused[entry["Id"]]) if entry["Id"] in refused else None for entry in entries]


class SqsConsumer(Consumer):
    """Receive ten pointers per request with long polling."""

    def __init__(self, queue: _Queue, name: str) -> None:
        super().__init__(name)
        self._queue = queue

    def receive(self, max_n: int, wait_s: float) -> list[Delivery]:
        deadline = time.monotonic() + wait_s
        while True:
            # SQS waits whole seconds; the remaining fraction is slept.
            poll_s = min(MAX_POLL_S, int(max(0.0, deadline - time.monotonic())))
            deliveries = self._receive(min(BATCH, max_n), poll_s)
            while deliveries and len(deliveries) % BATCH == 0 and len(deliveries) < max_n:
                more = self._receive(min(BATCH, max_n - len(deliveries)), 0)
                if not more:
                    break
                deliveries += more
            left = deadline - time.monotonic()
            if deliveries or left <= 0:
                return deliveries
            if left < 1:
                time.sleep(left)

    def close(self) -> None:
        self._queue.close()

    def _receive(self, count: int, poll_s: int) -> list[Delivery]:
        answer = self._queue.call(
            "receive_message",
            MaxNumberOfMessages=count,
            WaitTimeSeconds=poll_s,
            VisibilityTimeout=_seconds(settings.OUTBOX_VISIBILITY_S),
        )
        return [
            Delivery(message["Body"], message["ReceiptHandle"], self._ack, self._release)
            for message in answer.get("Messages", ())
        ]

    def _ack(self, deliveries: Sequence[Delivery]) -> None:
        refused: list[dict[str, Any]] = []
        for batch in _batches(deliveries):
            entries = [{"Id": str(n), "ReceiptHandle": delivery.receipt} for n, delivery in enumerate(batch)]
            refused += self._queue.call("delete_message_batch", Entries=entries).get("Failed", ())
        if refused:
            raise _refusal(refused[0])

    def _release(self, delivery: Delivery, delay_s: float) -> None:
        self._queue.call(
            "change_message_visibility", ReceiptHandle=delivery.receipt, VisibilityTimeout=_seconds(delay_s)
        )


def _batches(items: Iterable[T]) -> Iterator[list[T]]:
    rest = iter(items)
    while batch := list(islice(rest, BATCH)):
        yield batch


def _seconds(seconds: float) -> int:
    return min(MAX_VISIBILITY_S, math.ceil(seconds))


def _dedup_id(dedup_id: str) -> str:
    return dedup_id if len(dedup_id) <= MAX_DEDUP_ID_LENGTH else hashlib.sha256(dedup_id.encode()).hexdigest()


def _refusal(entry: dict[str, Any]) -> QueueUnavailable:
    return QueueUnavailable(f"SQS: {entry.get('Code', 'refused')}: {entry.get('Message', '')}")
