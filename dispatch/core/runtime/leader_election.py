"""Elect leaders with leases in PostgreSQL, with fencing epochs.

The lease runs on the database's clock, so the machines' clocks need not agree. Leadership saves work; it is not a
lock. A leader ends a transaction that only a leader may commit with `fence()`.
"""

from __future__ import annotations

import os
import socket
import time
import uuid
from collections.abc import Iterable, Sequence
from datetime import timedelta
from typing import Any

import structlog
from django.conf import settings
from django.db import connection
from django.db.models import Q

from dispatch.core import clock
from dispatch.core.models import Leadership
from dispatch.core.observability import metrics

log = structlog.get_logger(__name__)

# How long a leadership is shown as given up although another process holds it.
GIVEN_UP_SHOWN = timedelta(minutes=2)
PATIENCE_RENEWALS = 2  # renewal intervals; a healthy candidate claims within one

_DATABASE_NOW = "(clock_timestamp() + make_interval(secs => %(offset)s))"
# Claims free or expired leaderships and renews held ones in one statement. An expired one gets a new epoch even if
# the holder stays the same, because writes of the earlier term may still be in flight. A locked row (its leader is
# committing a fenced transaction, or was paused during it) is skipped, so that it delays no other row. A candidate
# that stands back claims only leaderships that have been free for longer than its `patience`.
_RENEW = f"""
WITH wanted AS (
    SELECT * FROM unnest(%(names)s::text[], %(holders)s::text[], %(leases)s::float8[], %(patience)s::float8[])
        AS w (name, holder, lease, patience)
), free AS (
    SELECT l.name FROM core_leadership l JOIN wanted w ON w.name = l.name
    WHERE (w.patience = 0 AND l.holder = w.holder)
       OR l.expires_at <= {_DATABASE_NOW} - make_interval(secs => w.patience)
    FOR NO KEY UPDATE OF l SKIP LOCKED
), taken AS (
    UPDATE core_leadership l
    SET holder = w.holder,
        expires_at = {_DATABASE_NOW} + make_interval(secs => w.lease),
        epoch = CASE WHEN l.holder = w.holder AND l.expires_at > {_DATABASE_NOW} THEN l.epoch ELSE l.epoch + 1 END
    FROM free JOIN wanted w ON w.name = free.name
    WHERE l.name = free.name
    RETURNING l.name, l.epoch
), made AS (
    INSERT INTO core_leadership (name, holder, epoch, expires_at)
    SELECT w.name, w.holder, 1, {_DATABASE_NOW} + make_interval(secs => w.lease) FROM wanted w
    WHERE NOT EXISTS (SELECT 1 FROM core_leadership l WHERE l.name = w.name)
    ON CONFLICT DO NOTHING
    RETURNING name, epoch
)
SELECT name, epoch, true FROM taken
UNION ALL SELECT name, epoch, true FROM made
UNION ALL SELECT l.name, l.epoch, false FROM core_leadership l
    JOIN wanted w ON w.name = l.name AND w.holder = l.holder
    WHERE NOT EXISTS (SELECT 1 FROM taken t WHERE t.name = l.name)
"""
_RESIGN = f"""
UPDATE core_leadership l SET expires_at = least(l.expires_at, {_DATABASE_NOW}), holder = ''
FROM unnest(%(names)s::text[], %(holders)s::text[], %(epochs)s::bigint[]) AS held (name, holder, epoch)
WHERE l.name = held.name AND l.holder = held.holder AND l.epoch = held.epoch
"""
_FENCE = "SELECT 1 FROM core_leadership WHERE name = %s AND epoch = %s FOR SHARE"


class LeadershipLost(Exception):
    """Another leader has taken over; this transaction must not commit."""


class Election:
    """A candidate for one leadership. One thread at a time uses it; any thread may read `is_leader`."""

    def __init__(self, name: str, *, holder: str | None = None, lease_s: float | None = None) -> None:
        self.name = name
        self.holder = holder or f"{socket.gethostname()}:{os.getpid()}:{uuid.uuid4().hex[:8]}"
        self.lease_s = settings.LEADER_LEASE_S if lease_s is None else lease_s
        self.epoch: int | None = None
        self._until = 0.0
        self._stands_back_until = 0.0

    @property
    def is_leader(self) -> bool:
        """Return whether the last known lease is still valid, without contacting the database."""
        return self.epoch is not None and _ticks() < self._until

    def step(self) -> int | None:
        """Claim or renew the leadership; return its epoch, or None while another process leads.

        Raises django.db.Error if the database is unavailable.
        """
        renew([self])
        return self.epoch

    def stand_back(self, seconds: float) -> None:
        """For the next `seconds`, claim the leadership only if it has been free for a while.

        This candidate failed as the leader; another candidate may succeed.
        """
        self._stands_back_until = _ticks() + seconds

    def patience(self) -> float:
        """Return how many seconds the leadership must have been free before this candidate claims it."""
        stands_back = self.epoch is None and _ticks() < self._stands_back_until
        return PATIENCE_RENEWALS * settings.LEADER_RENEW_S if stands_back else 0.0

    def _record_term(self, epoch: int | None, asked: float) -> None:
        if epoch != self.epoch:
            metrics.leadership_changes.labels(self.name.removeprefix("loop:"), "won" if epoch else "lost").inc()
            if epoch:
                log.debug("leadership_acquired", leadership=self.name, epoch=epoch)
            else:
                log.warning("leadership_lost", leadership=self.name, epoch=self.epoch)
        self.epoch, self._until = epoch, asked + self.lease_s

    def resign(self) -> None:
        """Release the leadership immediately, if it is held.

        Raises django.db.Error if the database is unavailable.
        """
        resign([self])


def renew(elections: Sequence[Election]) -> None:
    """Claim or renew these leaderships, in one statement.

    Renewed one by one on a slow database, the last could expire while the first are renewed. Raises
    django.db.Error if the database is unavailable.
    """
    if not elections:
        return
    asked = _ticks()  # before the query: the leases can only be longer than assumed
    parameters: dict[str, Any] = {
        "names": [election.name for election in elections],
        "holders": [election.holder for election in elections],
        "leases": [election.lease_s for election in elections],
        "patience": [election.patience() for election in elections],
        "offset": clock.offset_ms() / 1000,
    }
    with connection.cursor() as cursor:
        cursor.execute(_RENEW, parameters)
        epochs = {name: (epoch, renewed) for name, epoch, renewed in cursor.fetchall()}
    for election in elections:
        epoch, renewed = epochs.get(election.name, (None, True))
        if renewed:
            election._record_term(epoch, asked)
        elif epoch != election.epoch:  # the same holder, but another term: not held
            election._record_term(None, asked)


def resign(elections: Iterable[Election]) -> None:
    """Release immediately, and together, those of these leaderships that are held.

    Raises django.db.Error if the database is unavailable.
    """
    held = [(election, election.epoch) for election in elections if election.epoch is not None]
    for election, _ in held:
        election.epoch = None
    if not held:
        return
    with connection.cursor() as cursor:
        names, holders, epochs = zip(
            *((election.name, election.holder, epoch) for election, epoch in held), strict=True
        )
        parameters: dict[str, Any] = {"names": list(names), "holders": list(holders), "epochs": list(epochs)}
        cursor.execute(_RESIGN, {**parameters, "offset": clock.offset_ms() / 1000})
    for election, epoch in held:
        metrics.leadership_changes.labels(election.name.removeprefix("loop:"), "lost").inc()
        log.debug("leadership_released", leadership=election.name, epoch=epoch)


def record_given_up(name: str, reason: str) -> None:
    """Record that a leader released the leadership because its steps failed or took too long."""
    Leadership.objects.filter(name=name).update(given_up_at=clock.now(), given_up_because=reason[:1000])


def given_up() -> dict[str, str]:
    """Return the reasons, by name, of leaderships that were given up and are not held since, or were just now."""
    now = clock.now()
    rows = Leadership.objects.filter(
        Q(expires_at__lt=now) | Q(given_up_at__gt=now - GIVEN_UP_SHOWN), given_up_at__gt=now - timedelta(days=1)
    )
    return dict(rows.order_by("name").values_list("name", "given_up_because"))


def fence(name: str, epoch: int | None) -> None:
    """Lock the leadership until the transaction's commit, so that no other process can take over before it.

    Call it at the end of a leader's transaction. Raises LeadershipLost if `epoch` is no longer the current epoch.
    """
    with connection.cursor() as cursor:
        cursor.execute(_FENCE, [name, epoch])
        if cursor.fetchone() is None:
            raise LeadershipLost(f"{name}: epoch {epoch} is over.")


def _ticks() -> float:
    """Return monotonic seconds, shifted with the clock that tests move."""
    return time.monotonic() + clock.offset_ms() / 1000
