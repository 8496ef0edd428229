"""Choose the pool from which a dialer claims next."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator

import structlog
from django.conf import settings

from dispatch.capacity.models import DispatchPool
from dispatch.core.runtime import reachability
from dispatch.leads import redis_queue
from dispatch.leads.services import claim_failures, claims
from dispatch.leads.services.claim_batches import ClaimResult

log = structlog.get_logger(__name__)

# Pause while nothing is ready. A wakeup ends it earlier; the timeout is for a missed wakeup.
DIALER = "leads_dialer"  # the service
IDLE_S = 1.0
TROUBLE_S = 1.0
# An organization has as many leads in progress as it may; how long to wait for an end (seconds).
SHARE_USED, SHARE_S = "share_used", 0.1
EMPTY = "empty"  # no pool has ready leads
NO_LINES = ("lines_busy", "pool_full")
# A pool without free lines is checked again after LEADS_TICK_S, twice as long each time, at most this long
# (seconds), unless a line becomes free. Otherwise thousands of busy pools would keep Redis busy.
MAX_NO_LINES_S = 2.0


class PoolRotation:
    """Choose the next pool in rotation, skipping pools that have to wait."""

    def __init__(self) -> None:
        self._last_pool_id = 0
        self._waiting: dict[int, tuple[float, str]] = {}  # pool → not before (monotonic), why
        self._full: Counter[int] = Counter()  # pool → consecutive checks without a free line
        self._marked: list[int] = []
        self._organizations: dict[int, int] = {}
        self._lock = threading.Lock()

    def claim_batch(
        self, worker: str, limit_of: Callable[[int], int], committed: Callable[[ClaimResult], None]
    ) -> ClaimResult:
        """Claim a batch from the first ready pool in rotation, or return how long to wait.

        `limit_of`: returns how many leads of an organization may be claimed now. `committed`: see
        `claims.claim_leads`.
        """
        if reachability.process.is_relieved(DIALER):  # the dialers of other hosts reach the provider
            return ClaimResult(why="unreachable", wait_s=IDLE_S)
        now, wait_s, why = time.monotonic(), IDLE_S, EMPTY
        for pool_id in self._pools_to_check():
            until, reason = self._waiting.get(pool_id, (0.0, ""))
            if until > now:
                wait_s, why = min(wait_s, until - now), reason
                continue
            self._last_pool_id = pool_id
            most = limit_of(self._organization_of(pool_id))
            if most <= 0:
                wait_s, why = min(wait_s, SHARE_S), SHARE_USED
                continue
            try:
                claimed = claims.claim_leads(worker, pool_id, most, committed)
            except Exception as error:
                if claim_failures.is_outage(error):
                    raise
                log.exception("leads_pool_failed", pool=pool_id)
                claimed = ClaimResult(why="error", wait_s=TROUBLE_S)
            if claimed.wait_s > 0:
                pause_s = min(claimed.wait_s, IDLE_S)
                if claimed.why in NO_LINES:
                    doublings = 0 if claimed.taken else min(self._full[pool_id], 10)
                    pause_s = min(settings.LEADS_TICK_S * 2**doublings, MAX_NO_LINES_S)
                with self._lock:
                    if claimed.why in NO_LINES and not claimed.taken:
                        self._full[pool_id] += 1
                    else:
                        self._full.pop(pool_id, None)
                    self._waiting[pool_id] = (time.monotonic() + pause_s, claimed.why)
                wait_s, why = min(wait_s, pause_s), claimed.why
            if claimed.taken:
                return claimed
        return ClaimResult(why=why, wait_s=wait_s)

    def _organization_of(self, pool_id: int) -> int:
        """Return the pool's organization, which never changes; 0 if the pool no longer exists."""
        if pool_id not in self._organizations:
            rows = DispatchPool.objects.filter(pk=pool_id).values_list("organization_id", flat=True)
            self._organizations[pool_id] = rows.first() or 0
        return self._organizations[pool_id]

    def release_pause(self, pool_id: int) -> None:
        with self._lock:
            self._full.pop(pool_id, None)
            if self._waiting.get(pool_id, (0.0, ""))[1] in NO_LINES:
                del self._waiting[pool_id]

    def mark_ready(self, pool_id: int) -> None:
        """Mark a pool as having a new ready lead, for the next idle puller.

        Busy pullers continue the rotation, because otherwise a pool with a steady trickle of leads would delay the
        others.
        """
        with self._lock:
            self._marked.append(pool_id)

    def _pools_to_check(self) -> Iterator[int]:
        """Yield the pools to check: first those marked as having new leads, then every ready pool in rotation."""
        with self._lock:
            marked, self._marked = dict.fromkeys(self._marked), []
        yield from marked
        yield from (pool_id for pool_id in self._in_rotation(redis_queue.ready_pools()) if pool_id not in marked)

    def _in_rotation(self, pools: list[int]) -> list[int]:
        with self._lock:
            ready = set(pools)
            self._waiting = {pool: until for pool, until in self._waiting.items() if pool in ready}
        return [p for p in pools if p > self._last_pool_id] + [p for p in pools if p <= self._last_pool_id]
