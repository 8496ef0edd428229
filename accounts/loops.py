"""Delete expired data: everything that slices registered in `core.privacy.retention`, and sign-in records.

Sessions and the admin's log belong to the installation: an organization's rule does not apply to them.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from datetime import datetime, timedelta
from functools import partial
from itertools import product
from typing import Any

import structlog
from allauth.usersessions.models import UserSession
from axes.models import AccessAttempt, AccessLog
from django.conf import settings
from django.contrib.admin.models import LogEntry
from django.contrib.sessions.models import Session
from django.db import transaction
from django.db.models import QuerySet

from accounts.auth import security_mail
from accounts.models import Organization, RetentionRule
from dispatch.core import clock
from dispatch.core.observability import metrics
from dispatch.core.privacy import retention
from dispatch.core.privacy.retention import FOREVER, DeleteShared
from dispatch.core.runtime.loops import Loop

log = structlog.get_logger(__name__)

BATCH = 1000
SIGN_IN_RETENTION = timedelta(days=30)
SESSION_DAYS, ADMIN_LOG_DAYS = 1, 400
# Limits one pass, so that leadership can be handed over at shutdown; the next pass goes on soon.
MAX_PASS_S = 5.0
PAUSE_S = 1.0

_Visit = tuple[int, str]  # of an organization, for a kind of row


def delete_old_sign_ins() -> float | None:
    """Delete one small batch of each kind of old sign-in record. Ask to run again immediately if one was full.

    Descriptions of sessions are among them. Expired sessions have a retention of their own (`delete_sessions`).
    """
    old = clock.now() - SIGN_IN_RETENTION
    batches = (
        AccessLog.objects.filter(attempt_time__lt=old),
        AccessAttempt.objects.filter(attempt_time__lt=old),
        UserSession.objects.filter(last_seen_at__lt=old),
    )
    return 0 if max(map(_delete_batch, batches)) >= BATCH else None


def _delete_batch(rows: QuerySet[Any]) -> int:
    """Delete the first rows that no other session has locked. Return how many."""
    with transaction.atomic():
        free = rows.select_for_update(skip_locked=True, no_key=True).order_by("pk")
        ids = list(free.values_list("pk", flat=True)[:BATCH])
        return rows.model._default_manager.filter(pk__in=ids).delete()[0]


def delete_expired_shared() -> float | None:
    """Delete one small batch of each kind of row of the installation. Ask to run again soon if one was full."""
    is_full = False
    for name, kind in retention.shared.items():
        days = retention.shared_days(name)
        if days == FOREVER:
            continue
        is_full |= _delete_expired_batch(name, days, kind.delete_batch)
    return PAUSE_S if is_full else None


def delete_sessions(before: datetime, limit: int) -> int:
    """Delete sessions that expired before this time."""
    ids = Session.objects.filter(expire_date__lt=before).order_by("expire_date").values_list("pk", flat=True)
    return Session.objects.filter(pk__in=list(ids[:limit])).delete()[0]


def delete_admin_log(before: datetime, limit: int) -> int:
    """Delete entries of the admin's log from the beginning, until one is younger."""
    oldest = LogEntry.objects.order_by("pk").values_list("pk", "action_time")[:limit]
    return LogEntry.objects.filter(pk__in=[pk for pk, at in oldest if at < before]).delete()[0]


def register() -> None:
    """Register the retention of the installation's rows. Called from AppConfig.ready()."""
    retention.register_shared("sessions", SESSION_DAYS, delete_sessions)
    retention.register_shared("admin_log", ADMIN_LOG_DAYS, delete_admin_log)


class RetentionWalk:
    """Visit each kind of row of each organization, in random order, over as many passes as that takes.

    After a walk, rounds visit those whose batch was full, until the next walk is due: RETENTION_INTERVAL_S after
    the last one began. No round takes longer than a walk of as many full batches, so every organization is visited
    within a known time. A new process begins with a walk.
    """

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Begin with a walk, as in a new process (tests)."""
        self._left: Iterator[_Visit] | None = None  # the rest of the walk or round
        self._full: list[_Visit] = []
        self._walk_at = -math.inf  # when the next walk is due, in monotonic seconds

    def step(self) -> float | None:
        """Delete one small batch per visit. Ask to run again soon if visits are left or a batch was full.

        A failure is logged and does not stop the other deletions.
        """
        own = {(rule.organization_id, rule.what): rule.days for rule in RetentionRule.objects.all()}
        deadline = time.monotonic() + MAX_PASS_S
        if self._left is None:
            self._left = self._begin()
        for organization_id, name in self._left:
            days = retention.effective_days(name, own.get((organization_id, name)))
            if days == FOREVER:
                continue
            delete = partial(retention.kept[name].delete_batch, organization_id)
            if _delete_expired_batch(name, days, delete, organization=organization_id):
                self._full.append((organization_id, name))
            if time.monotonic() >= deadline:
                return PAUSE_S
        self._left = None
        return PAUSE_S if self._full else None

    def _begin(self) -> Iterator[_Visit]:
        """Return the visits of a round to those whose batch was full, or of a walk to all."""
        full, self._full = self._full, []
        if full and time.monotonic() < self._walk_at:
            return iter(full)
        self._walk_at = time.monotonic() + settings.RETENTION_INTERVAL_S
        organizations = list(Organization.objects.order_by("?").values_list("pk", flat=True))
        return product(organizations, retention.kept)


walk = RetentionWalk()


def delete_expired() -> float | None:
    """Delete one part of what has expired of organizations. Return the seconds until the next, if it is soon."""
    return walk.step()


def _delete_expired_batch(name: str, days: int, delete: DeleteShared, **where: int) -> bool:
    """Delete one batch of this kind in a transaction, and return whether it was full. A failure is logged."""
    try:
        with transaction.atomic():
            count = delete(clock.now() - timedelta(days=days), BATCH)
    except Exception:
        log.exception("retention_failed", what=name, **where)
        return False
    metrics.forgotten.labels(name).inc(count)
    return count >= BATCH


LOOPS = [
    Loop(
        "security_mail",
        security_mail.send_due_mail,
        interval_s=2.0,
        elected=True,
        limit_s=300.0,
        due=security_mail.IS_ANY_DUE,
    ),
    Loop("forget_sign_ins", delete_old_sign_ins, interval_s=60.0, elected=True),
    Loop("retention", delete_expired, interval_s=settings.RETENTION_INTERVAL_S, elected=True),
    Loop("shared_retention", delete_expired_shared, interval_s=settings.RETENTION_INTERVAL_S, elected=True),
]
