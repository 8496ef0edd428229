"""One election for all: who leads what, by a row in Postgres.

The lease runs on the database's clock, so the machines' clocks need not agree. Leadership is economy; a leader
that writes something only a leader may write ends its transaction with `fence()`."""

from __future__ import annotations

import os
import socket
import time
import uuid
from collections.abc import Iterable
from datetime import datetime

import structlog
from django.conf import settings
from django.db import connection

from dispatch.core import clock, metrics

log = structlog.get_logger(__name__)

# Takes a free or lapsed leadership, or renews one's own. A lapsed one gets a new epoch, also in the same hands,
# for writes of the earlier term may still be on their way.
_STEP = """
INSERT INTO core_leadership AS l (name, holder, epoch, expires_at)
VALUES (%(name)s, %(holder)s, 1, %(now)s + make_interval(secs => %(lease)s))
ON CONFLICT (name) DO UPDATE
SET holder = EXCLUDED.holder,
    expires_at = EXCLUDED.expires_at,
    epoch = CASE WHEN l.holder = EXCLUDED.holder AND l.expires_at > %(now)s THEN l.epoch ELSE l.epoch + 1 END
WHERE l.holder = EXCLUDED.holder OR l.expires_at <= %(now)s
RETURNING epoch
"""
_DATABASE_NOW = "(clock_timestamp() + make_interval(secs => %(offset)s))"
_RESIGN = """
UPDATE core_leadership l SET expires_at = to_timestamp(0), holder = ''
FROM unnest(%s::text[], %s::text[], %s::bigint[]) AS held (name, holder, epoch)
WHERE l.name = held.name AND l.holder = held.holder AND l.epoch = held.epoch
"""
_FENCE = "SELECT 1 FROM core_leadership WHERE name = %s AND epoch = %s FOR SHARE"


class Deposed(Exception):
    """Another leader has taken over; this transaction must not commit."""


class Election:
    """One candidate for one leadership. Used by one thread at a time; `is_leader` may be asked from any."""

    def __init__(self, name: str, *, holder: str | None = None, lease_s: float | None = None) -> None:
        self.name = name
        self.holder = holder or f"{socket.gethostname()}:{os.getpid()}:{uuid.uuid4().hex[:8]}"
        self.lease_s = settings.LEADER_LEASE_S if lease_s is None else lease_s
        self.epoch: int | None = None
        self._until = 0.0

    @property
    def is_leader(self) -> bool:
        """Whether the lease, as last seen, still runs. True needs no question to the database."""
        return self.epoch is not None and _ticks() < self._until

    def step(self, now: datetime | None = None) -> int | None:
        """Takes or renews the leadership; its epoch, or None while somebody else leads.

        `now` replaces the database's clock (tests). Raises django.db.Error when the database is gone."""
        asked = _ticks()  # before the question: the lease can only be longer than we believe
        with connection.cursor() as cursor:
            cursor.execute(
                _STEP.replace("%(now)s", "%(now)s::timestamptz" if now else _DATABASE_NOW),
                {
                    "name": self.name,
                    "holder": self.holder,
                    "lease": self.lease_s,
                    "now": now,
                    "offset": clock.offset_ms() / 1000,
                },
            )
            row = cursor.fetchone()
        epoch = row[0] if row else None
        if epoch != self.epoch:
            metrics.leadership_changes.labels(self.name, "won" if epoch else "lost").inc()
            if epoch:
                log.debug("leads", leadership=self.name, epoch=epoch)
            else:
                log.warning("leads no longer", leadership=self.name, epoch=self.epoch)
        self.epoch, self._until = epoch, asked + self.lease_s
        return epoch

    def resign(self) -> None:
        """Hands the leadership over at once, if it is held. Raises django.db.Error when the database is gone."""
        resign([self])


def resign(elections: Iterable[Election]) -> None:
    """Hands over, at once and together, those of these leaderships that are held. Raises django.db.Error when the
    database is gone."""
    held = [(one, one.epoch) for one in elections if one.epoch is not None]
    for one, _ in held:
        one.epoch = None
    if not held:
        return
    with connection.cursor() as cursor:
        names, holders, epochs = zip(*((one.name, one.holder, epoch) for one, epoch in held), strict=True)
        cursor.execute(_RESIGN, [list(names), list(holders), list(epochs)])
    for one, epoch in held:
        metrics.leadership_changes.labels(one.name, "lost").inc()
        log.debug("resigned", leadership=one.name, epoch=epoch)


def fence(name: str, epoch: int | None) -> None:
    """The last statement of a leader's transaction: holds the leadership's row until commit, so that nobody can
    take over in between. Raises Deposed when `epoch` is no longer the present one."""
    with connection.cursor() as cursor:
        cursor.execute(_FENCE, [name, epoch])
        if cursor.fetchone() is None:
            raise Deposed(f"{name}: epoch {epoch} is over.")


def _ticks() -> float:
    """Seconds that never jump, moved along with the tests' clock."""
    return time.monotonic() + clock.offset_ms() / 1000
