"""What is kept for a time and then forgotten: whatever slices registered in `core.retention`, and records of
sign-ins."""

from __future__ import annotations

import time
from datetime import timedelta

import structlog
from axes.models import AccessAttempt, AccessLog
from django.conf import settings
from django.db import transaction

from accounts.models import Organization, RetentionRule
from dispatch.core import clock, metrics, retention
from dispatch.core.loops import Loop
from dispatch.core.retention import FOREVER

log = structlog.get_logger(__name__)

BATCH = 1000
SIGN_INS_KEPT = timedelta(days=30)
# One pass ends after this long, for its leadership is to be handed over at a stop; the next goes on soon.
LONGEST_PASS_S = 5.0
PAUSE_S = 1.0


def forget() -> float | None:
    """Deletes one small batch of each; again at once while a batch was full."""
    most = max(_forget(AccessLog), _forget(AccessAttempt))
    return 0 if most >= BATCH else None


def _forget(model: type[AccessLog] | type[AccessAttempt]) -> int:
    old = model.objects.filter(attempt_time__lt=clock.now() - SIGN_INS_KEPT).order_by("pk")
    return model.objects.filter(pk__in=list(old.values_list("pk", flat=True)[:BATCH])).delete()[0]


def age() -> float | None:
    """Deletes one small batch of everything registered, of each organization; soon again while a batch was full.

    What fails is logged and does not stop the rest."""
    own = {(rule.organization_id, rule.what): rule.days for rule in RetentionRule.objects.all()}
    deadline, is_full = time.monotonic() + LONGEST_PASS_S, False
    for organization_id in Organization.objects.order_by("?").values_list("pk", flat=True):
        for name, kept in retention.kept.items():
            days = own.get((organization_id, name), retention.default_days(name))
            if days == FOREVER:
                continue
            if time.monotonic() > deadline:
                return PAUSE_S
            before = clock.now() - timedelta(days=max(days, kept.shortest_days))
            try:
                with transaction.atomic():
                    count = kept.delete_batch(organization_id, before, BATCH)
            except Exception:
                log.exception("what is too old could not be deleted", what=name, organization=organization_id)
                continue
            metrics.forgotten.labels(name).inc(count)
            is_full |= count >= BATCH
    return PAUSE_S if is_full else None


LOOPS = [
    Loop("forget_sign_ins", forget, interval_s=60.0, elected=True),
    Loop("retention", age, interval_s=settings.RETENTION_INTERVAL_S, elected=True),
]
