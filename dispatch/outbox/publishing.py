"""Putting claimed messages' pointers on the queue, after the commit that made them QUEUED."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from datetime import datetime, timedelta

import structlog
from django.conf import settings
from django.urls import reverse

from dispatch.core import faults
from dispatch.core.sparing import Spared
from dispatch.outbox import metrics, queues, sql
from dispatch.outbox.pointer import HTTP, MessagePointer, make_token
from dispatch.outbox.queues import Publisher
from dispatch.outbox.services.claims import Claim, claim_of
from dispatch.outbox.services.putting_back import Return, put_back

log = structlog.get_logger(__name__)

# After a failure a process claims nothing for this long, or it would only put everything back again.
_spared = Spared(5.0)


def publish(claims: Sequence[Claim]) -> bool:
    """Publishes the pointers, OUTBOX_GROUPS_AT_ONCE at a time; those that fail, and all after them, are put
    back to
    PENDING, nothing spent. False when any did."""
    at_once = settings.OUTBOX_GROUPS_AT_ONCE
    for first in range(0, len(claims), at_once):
        some = claims[first : first + at_once]
        faults.point("outbox.publish.before")
        errors = _publisher().publish_many([(pointer_of(claim), f"{claim.id}-{claim.epoch}") for claim in some])
        faults.point("outbox.publish.after")
        failed = [claim for claim, error in zip(some, errors, strict=True) if error is not None]
        metrics.published.labels("published").inc(len(some) - len(failed))
        if failed:
            failed += claims[first + at_once :]
            _spared.failed()
            metrics.published.labels("failed").inc(len(failed))
            error = next(error for error in errors if error is not None)
            log.warning("the queue did not take pointers, they wait", messages=len(failed), error=str(error))
            _put_back(failed)
            return False
    return True


def is_down() -> bool:
    """Whether the queue refused a moment ago."""
    return bool(_spared)


def publish_lost() -> None:
    """Called when the application's Redis was found empty."""
    if settings.OUTBOX_ENABLED and settings.OUTBOX_QUEUE_TYPE == "redis" and not settings.OUTBOX_QUEUE_URL:
        publish_again()


def publish_again() -> None:
    """Publishes every QUEUED message once more, in its epoch: a queue that lost its data lost their pointers.
    Those that were not lost are duplicates of an epoch, and do nothing."""
    after = 0
    while rows := sql.rows(sql.QUEUED_NOW, {"after": after, "limit": 500}):
        _publisher().publish_many(
            [(pointer_of(claim_of(row, row[6])), f"{row[0]}-{row[1]}-again") for row in rows]
        )
        after = rows[-1][0]


def pointer_of(claim: Claim) -> MessagePointer:
    """What travels: the token is good until stale recovery has certainly taken the message back."""
    return MessagePointer(
        id=str(claim.id),
        poolCode=claim.pool_code,
        authToken=make_token(claim.id, claim.epoch, token_expiry(claim.queued_at)),
        mediationType=HTTP,
        mediationTarget=process_url(),
        messageGroupId=claim.group_hash,
    )


def token_expiry(queued_at: datetime) -> datetime:
    return queued_at + timedelta(seconds=settings.OUTBOX_STALE_AFTER_S + 2 * settings.OUTBOX_STALE_INTERVAL_S)


def process_url() -> str:
    """Where a router, ours or somebody's, posts a pointer."""
    return settings.OUTBOX_PROCESS_URL or settings.PUBLIC_BASE_URL + _process_path()


@functools.cache
def _process_path() -> str:
    return reverse("outbox_process")


def _put_back(claims: Sequence[Claim]) -> None:
    put_back(
        [
            Return(
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
    """One connection per process and queue."""
    return queues.publisher()


def reset() -> None:
    """Forgets connections and outages (tests)."""
    _spared.believe_again()
    _publisher_to.cache_clear()
