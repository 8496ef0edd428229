"""Recover stuck messages: pointers that led to no attempt, lapsed leases, and messages past their expiry."""

from __future__ import annotations

from datetime import timedelta

import structlog
from django.conf import settings
from django.db import transaction

from dispatch.core import clock, fault_injection
from dispatch.core.db.prepared import fetch_by_index
from dispatch.outbox import sql
from dispatch.outbox.rules.responses import LAPSED
from dispatch.outbox.services.scheduling import (
    Claim,
    Ending,
    RequeuedMessage,
    claim_next,
    end_messages,
    requeue,
    reschedule_groups,
    try_lock_groups,
)

log = structlog.get_logger(__name__)

BATCH = 100
# How many groups one pass of `requeue_missing_groups` checks, and the last group checked.
GROUPS_CHECKED = 5000
_checked_to = 0
# Delay before the next try after a crash during an attempt: limits how often one message can crash routers.
AFTER_LAPSE_S = 5.0


def recover_stale() -> int:
    """Requeue messages that were QUEUED for longer than OUTBOX_STALE_AFTER_S; return how many.

    At most OUTBOX_STALE_BATCH become PENDING. A pointer that arrives later has an old epoch.
    """
    now = clock.now()
    before = now - timedelta(seconds=settings.OUTBOX_STALE_AFTER_S)
    with transaction.atomic():
        stale = sql.fetch_all(sql.STALE, {"before": before, "limit": settings.OUTBOX_STALE_BATCH})
        requeue(
            [
                RequeuedMessage(message_id, epoch, group_id, mode, waiting_for="stale", verb="recovered")
                for message_id, epoch, group_id, mode in stale
            ]
        )
    if stale:
        log.warning("stale_messages_requeued", messages=len(stale))
    return len(stale)


def recover_lapsed() -> tuple[int, list[Claim]]:
    """Recover attempts whose lease has ended without a result; return how many, and the claims to publish.

    Their messages return to PENDING without spending a retry, or become ERROR after OUTBOX_LAPSES such leases.
    A canceled message only unblocks its group.
    """
    now = clock.now()
    if not fetch_by_index(sql.LAPSED, {"limit": 1}):  # most passes find none
        return 0, []
    with transaction.atomic():
        candidates = sql.fetch_all(sql.LAPSED, {"limit": BATCH})
        if not candidates:
            return 0, []
        groups = {group_id for _, group_id, mode in candidates if mode != "IMMEDIATE"}
        lapsed = sql.fetch_all(sql.LOCK_LAPSED, {"ids": [row[0] for row in candidates]})
        endings, attempts = [], []
        for message_id, epoch, _, calls, lapses, organization_id, started_at in lapsed:
            given_up = lapses + 1 >= settings.OUTBOX_LAPSES
            endings.append(
                Ending(
                    message_id, epoch, "ERROR" if given_up else "PENDING",
                    now + timedelta(seconds=AFTER_LAPSE_S), lapsed=1,
                    error=f"{lapses + 1} attempts in a row ended without a result." if given_up else "",
                    waiting_for="" if given_up else "lease", verb="failed" if given_up else "recovered",
                )
            )  # fmt: skip
            attempts.append(
                (organization_id, message_id, calls, epoch, "", started_at, now, 0.0, LAPSED, None, "",
                "lease_lapsed",
                 "The attempt's lease ended without a result.", False, False)
            )  # fmt: skip
        end_messages(endings, ["PROCESSING", "CANCELLED"], now)
        names = ("organizations", "ids", "numbers", "epochs", "urls", "starts", "ends", "elapsed", "outcomes",
                 "codes", "answers", "classes", "errors", "spents", "lates")  # fmt: skip
        sql.execute(sql.ADD_ATTEMPTS, dict(zip(names, sql.columns(attempts, len(names)), strict=True)))
        claims, _ = claim_next(now, own=groups, pools=[])
        fault_injection.crash_point("outbox.lapsed.before_commit")
    log.warning("leases_lapsed", messages=len(lapsed))
    return len(lapsed), claims


def expire_messages() -> tuple[int, list[Claim]]:
    """Expire a batch of PENDING messages past their expiry; return how many, and the claims that replace them."""
    now = clock.now()
    if not fetch_by_index(sql.EXPIRED, {"now": now, "limit": 1}):
        return 0, []
    with transaction.atomic():
        candidates = sql.fetch_all(sql.EXPIRED, {"now": now, "limit": BATCH})
        if not candidates:
            return 0, []
        groups = {group_id for _, group_id, mode in candidates if mode != "IMMEDIATE"}
        gone = sql.fetch_all(sql.EXPIRE, {"ids": [row[0] for row in candidates], "now": now})
        claims, _ = claim_next(now, own=groups, pools=[])
    return len(gone), claims


def requeue_missing_groups() -> int:
    """Queue groups that have messages to send but are missing from the queue; return how many.

    The expected number is 0. Each call checks the next GROUPS_CHECKED groups with waiting messages.
    """
    global _checked_to
    now = clock.now()
    groups = sql.fetch_all(sql.OPEN_GROUPS, {"after": _checked_to, "limit": GROUPS_CHECKED})
    _checked_to = groups[-1][0] if len(groups) == GROUPS_CHECKED else 0
    ids = [group_id for group_id, is_missing in groups if is_missing]
    if not ids:
        return 0
    with transaction.atomic():
        reschedule_groups(try_lock_groups(ids), now)
    # Exceptions are expected: a group whose last message just expired, or that was queued in the meantime.
    return len(ids)
