"""Taking back what got stuck: pointers that led to nothing, calls whose lease lapsed, what expired meanwhile."""

from __future__ import annotations

from datetime import timedelta

import structlog
from django.conf import settings
from django.db import transaction

from dispatch.core import clock, faults
from dispatch.outbox import sql
from dispatch.outbox.rules.calls import LAPSED
from dispatch.outbox.services.claims import Claim, advance, lock_groups, settle
from dispatch.outbox.services.putting_back import Ending, Return, end, put_back

log = structlog.get_logger(__name__)

BATCH = 100
# Breath between a crash under a message and the next try, so that a message that kills routers does it slowly.
AFTER_LAPSE_S = 5.0


def recover_stale() -> int:
    """QUEUED for longer than OUTBOX_STALE_AFTER_S → PENDING, at most OUTBOX_STALE_BATCH; how many. Its pointer,
    should it still come, is of an old epoch."""
    now = clock.now()
    before = now - timedelta(seconds=settings.OUTBOX_STALE_AFTER_S)
    found = sql.rows(sql.STALE, {"before": before, "limit": settings.OUTBOX_STALE_BATCH})
    put_back(
        [
            Return(message_id, epoch, group_id, mode, waiting_for="stale", verb="recovered")
            for message_id, epoch, group_id, mode in found
        ]
    )
    if found:
        log.warning("pointers led to nothing and are published anew", messages=len(found))
    return len(found)


def recover_lapsed() -> tuple[int, list[Claim]]:
    """Calls whose lease has ended: nobody knows what came of them. Back to PENDING, spending no retry, or ERROR
    after OUTBOX_LAPSES of them; a cancelled one only lets its group go. How many, and what is to be published."""
    now = clock.now()
    found = sql.rows(sql.LAPSED, {"limit": BATCH})
    if not found:
        return 0, []
    with transaction.atomic():
        groups = {group_id for _, group_id, mode in found if mode != "IMMEDIATE"}
        lock_groups(groups)
        lapsed = sql.rows(sql.LOCK_LAPSED, {"ids": [row[0] for row in found]})
        endings, attempts = [], []
        for message_id, epoch, _, calls, lapses, organization_id, started_at in lapsed:
            given_up = lapses + 1 >= settings.OUTBOX_LAPSES
            endings.append(
                Ending(
                    message_id, epoch, "ERROR" if given_up else "PENDING",
                    now + timedelta(seconds=AFTER_LAPSE_S), lapsed=1,
                    error=f"{lapses + 1} calls in a row ended without a result." if given_up else "",
                    waiting_for="" if given_up else "lease", verb="failed" if given_up else "recovered",
                )
            )  # fmt: skip
            attempts.append(
                (organization_id, message_id, calls, epoch, "", started_at, now, 0.0, LAPSED, None, "",
                "lease_lapsed",
                 "The call's lease ended without a result.", False, False)
            )  # fmt: skip
        end(endings, ["PROCESSING", "CANCELLED"], now)
        names = ("organizations", "ids", "numbers", "epochs", "urls", "starts", "ends", "elapsed", "outcomes",
                 "codes", "answers", "classes", "errors", "spents", "lates")  # fmt: skip
        sql.do(sql.ADD_ATTEMPTS, dict(zip(names, sql.columns(attempts, len(names)), strict=True)))
        claims, _ = advance(now, own=groups, pools=[])
        faults.point("outbox.lapsed.before_commit")
    log.warning("calls ended without a result", messages=len(lapsed))
    return len(lapsed), claims


def expire() -> tuple[int, list[Claim]]:
    """PENDING past its time → EXPIRED, at most a batch; how many, and what is to be published instead."""
    now = clock.now()
    found = sql.rows(sql.EXPIRED, {"now": now, "limit": BATCH})
    if not found:
        return 0, []
    with transaction.atomic():
        groups = {group_id for _, group_id, mode in found if mode != "IMMEDIATE"}
        lock_groups(groups)
        gone = sql.rows(sql.EXPIRE, {"ids": [row[0] for row in found], "now": now})
        claims, _ = advance(now, own=groups, pools=[])
    return len(gone), claims


def find_forgotten() -> int:
    """Puts groups in line that have something to do and are in none; how many. There should never be one."""
    now = clock.now()
    ids = [row[0] for row in sql.rows(sql.FORGOTTEN, {"limit": BATCH})]
    if not ids:
        return 0
    with transaction.atomic():
        lock_groups(ids)
        settle(ids, now)
    # A group whose last message has just expired, or that has begun meanwhile, is no news.
    return len(ids)
