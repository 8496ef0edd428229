"""Publish the pointers of claimed messages, after the commit that made them QUEUED."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any

import structlog
from django.conf import settings
from django.urls import reverse

from dispatch.core import clock, fault_injection
from dispatch.core.circuit_breaker import CircuitBreaker
from dispatch.outbox import metrics, queues, sql
from dispatch.outbox.pointer import HTTP, MessagePointer, make_token
from dispatch.outbox.queues import Publisher
from dispatch.outbox.services.scheduling import Claim, RequeuedMessage, claim_of, requeue

log = structlog.get_logger(__name__)

PAGE = 500
# Attempts that started within this time show how far behind the queue is. Also the margin added to that lag.
LAG_WINDOW_S = 10.0
# How often a QUEUED message, (id, epoch), has been published again; the interval doubles each time.
_copies: dict[tuple[int, int], int] = {}


def publish_pointers(claims: Sequence[Claim]) -> bool:
    """Publish the pointers, OUTBOX_GROUPS_AT_ONCE at a time; return False if any failed.

    Messages whose pointer failed, and all after them, return to PENDING without spending a retry.
    """
    at_once = settings.OUTBOX_GROUPS_AT_ONCE
    for first in range(0, len(claims), at_once):
        batch = claims[first : first + at_once]
        fault_injection.crash_point("outbox.publish.before")
        errors = _publisher().publish_many([(pointer_of(claim), f"{claim.id}-{claim.epoch}") for claim in batch])
        fault_injection.crash_point("outbox.publish.after")
        failed = [claim for claim, error in zip(batch, errors, strict=True) if error is not None]
        metrics.published.labels("published").inc(len(batch) - len(failed))
        if failed:
            failed += claims[first + at_once :]
            metrics.published.labels("failed").inc(len(failed))
            error = next(error for error in errors if error is not None)
            if not _publisher().breaker.is_open:
                _publisher().breaker.record_failure(error)
            log.warning("pointers_not_published", messages=len(failed), error=str(error))
            _requeue(failed)
            return False
        _publisher().breaker.record_success()
    return True


def is_down() -> bool:
    """Return whether the queue failed a moment ago: a message claimed now would only be requeued."""
    return _publisher().breaker.is_open


def is_working() -> bool:
    """Return whether no failure of the queue is known since the last pointer was published."""
    return _publisher().breaker.is_closed


def publish_lost() -> None:
    """Publish every QUEUED message again after the application's Redis was flushed.

    Also done if OUTBOX_QUEUE_URL is set, since it may name the same server.
    """
    if settings.OUTBOX_ENABLED and settings.OUTBOX_QUEUE_TYPE == "redis":
        publish_again()


def publish_again() -> bool:
    """Publish every QUEUED message again, in its epoch. Return False if the queue refused any.

    Pointers that were not lost are duplicates of their epoch and have no effect.
    """
    after, done = 0, True
    while rows := sql.fetch_all(sql.QUEUED_NOW, {"after": after, "limit": PAGE}):
        done = not _publish_copies(rows) and done
        after = rows[-1][0]
    return done


def publish_overdue() -> int:
    """Publish again, in their epoch, messages that have been QUEUED for too long; return how many.

    A message is overdue after OUTBOX_REPUBLISH_AFTER_S, then after twice that time, and so on. Recently started
    attempts show how far behind the queue is; a message is then overdue only if it has waited clearly longer.
    """
    if is_down():
        return 0
    now, again_after = clock.now(), settings.OUTBOX_REPUBLISH_AFTER_S
    lag_s = sql.fetch_all(sql.QUEUE_LAG, {"since": now - timedelta(seconds=LAG_WINDOW_S)})[0][0] or 0.0
    is_behind = lag_s > again_after + LAG_WINDOW_S
    threshold_s = lag_s + LAG_WINDOW_S if is_behind else again_after
    before, after = now - timedelta(seconds=threshold_s), 0
    known = dict(_copies)
    _copies.clear()
    published = 0
    while rows := sql.fetch_all(sql.QUEUED_BEFORE, {"before": before, "after": after, "limit": PAGE}):
        ages = {(row[0], row[1]): (now - row[6]).total_seconds() for row in rows}
        _copies.update({key: known[key] for key in ages if key in known})
        due = [row for row in rows if ages[row[0], row[1]] >= again_after * 2 ** known.get((row[0], row[1]), 0)]
        refused = _publish_copies(due)
        for row in due:
            key = row[0], row[1]
            if key not in refused:
                _copies[key] = 1 + int(math.log2(max(1.0, ages[key] / again_after)))
        published += len(due) - len(refused)
        after = rows[-1][0]
    if published:
        metrics.published.labels("again").inc(published)
        log.warning("pointers_published_again", messages=published)
    return published


def _publish_copies(rows: Sequence[tuple[Any, ...]]) -> set[tuple[int, int]]:
    """Publish rows of QUEUED_NOW or QUEUED_BEFORE; return the (id, epoch) of those that the queue refused.

    The deduplication id differs, so that the queue does not drop the copy as a duplicate of the first
    publication.
    """
    mark = clock.now_ms()
    errors = _publisher().publish_many(
        [(pointer_of(claim_of(row, row[6])), f"{row[0]}-{row[1]}-{mark}") for row in rows]
    )
    refused = {(row[0], row[1]) for row, error in zip(rows, errors, strict=True) if error is not None}
    if refused:
        error = next(error for error in errors if error is not None)
        log.warning("pointers_refused_by_queue", messages=len(refused), error=str(error))
    return refused


def pointer_of(claim: Claim) -> MessagePointer:
    """Build the pointer of a claim.

    Its token stays valid until stale recovery is certain to have requeued the message.
    """
    return MessagePointer(
        id=str(claim.id),
        poolCode=claim.pool_code,
        authToken=make_token(claim.id, claim.epoch, token_expiry(claim.queued_at)),
        mediationType=HTTP,
        mediationTarget=process_url(),
        messageGroupId=claim.group_hash,
    )


def token_expiry(queued_at: datetime) -> datetime:
    """Return when the token of a message QUEUED at `queued_at` expires."""
    return queued_at + timedelta(seconds=settings.OUTBOX_STALE_AFTER_S + 2 * settings.OUTBOX_STALE_INTERVAL_S)


def process_url() -> str:
    """Return the URL to which a router, built-in or external, posts a pointer."""
    return settings.OUTBOX_PROCESS_URL or settings.PUBLIC_BASE_URL + _process_path()


@functools.cache
def _process_path() -> str:
    return reverse("outbox_process", urlconf="dispatch.outbox.root_urls")


def _requeue(claims: Sequence[Claim]) -> None:
    requeue(
        [
            RequeuedMessage(
                c.id,
                c.epoch,
                c.group_id,
                "" if c.is_ordered else "IMMEDIATE",
                waiting_for="queue",
                verb="unpublished",
            )
            for c in claims
        ]
    )


def _publisher() -> Publisher:
    return _publisher_to(settings.OUTBOX_QUEUE_TYPE, settings.OUTBOX_QUEUE_URL, str(settings.OUTBOX_EMBEDDED_FILE))


@functools.lru_cache(maxsize=4)
def _publisher_to(kind: str, url: str, file: str) -> Publisher:
    """Return the publisher; one connection per process and queue."""
    return queues.publisher()


def reset() -> None:
    """Reset cached connections and circuit breakers (tests)."""
    CircuitBreaker.reset_all()
    _publisher_to.cache_clear()
    _copies.clear()
