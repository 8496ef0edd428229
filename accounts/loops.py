"""What is kept for a time and then forgotten: answers to idempotent requests, and records of sign-ins."""

from __future__ import annotations

from datetime import timedelta

from axes.models import AccessAttempt, AccessLog

from dispatch.core import clock
from dispatch.core.idempotency import forget_old_answers
from dispatch.core.loops import Loop

BATCH = 1000
SIGN_INS_KEPT = timedelta(days=30)


def forget() -> float | None:
    """Deletes one small batch of each; again at once while a batch was full."""
    most = max(forget_old_answers(BATCH), _forget(AccessLog), _forget(AccessAttempt))
    return 0 if most >= BATCH else None


def _forget(model: type[AccessLog] | type[AccessAttempt]) -> int:
    old = model.objects.filter(attempt_time__lt=clock.now() - SIGN_INS_KEPT).order_by("pk")
    return model.objects.filter(pk__in=list(old.values_list("pk", flat=True)[:BATCH])).delete()[0]


LOOPS = [Loop("forget_answers", forget, interval_s=60.0, elected=True)]
