"""Import many schedules: store their rows in parts; a worker validates and creates each part in a transaction.

A part is deleted in the transaction that creates its schedules, and a row creates at most one schedule (unique
constraint), so if a worker dies at any time, another one continues. Queue messages only make it prompt: imports
without progress are enqueued again. Lock order: one cancellation at a time, parts by their first row (after those
that no other session has locked), then the import.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import structlog
from django.conf import settings
from django.db import transaction
from django.db.models import F
from rest_framework.exceptions import APIException

from accounts.api.base import each_row_found_once
from accounts.models import Organization
from dispatch.core import clock, events, fault_injection
from dispatch.core.api.problems import ProblemFormatter
from dispatch.core.db import prepared
from dispatch.core.events import Actor
from dispatch.core.languages import gettext as _
from dispatch.core.runtime import queues
from dispatch.schedules.api.serializers import ScheduleFormSerializer
from dispatch.schedules.models import BulkError, BulkImport, BulkPart
from dispatch.schedules.services.schedules import NotInThisStatus, check_schedule_limit, create_schedules

log = structlog.get_logger(__name__)

TASK = "dispatch.schedules.tasks.bulk_create"
PART = 500
# Share of RQ's job time limit after which no further part is begun.
SHARE_OF_JOB = 0.4
# Share of it after which a part is divided: rows may take long, such as those with many excluded times. To create
# the schedules takes about as long as to validate them.
SHARE_OF_PART = 0.2
STALLED_AFTER = timedelta(seconds=60)
# Otherwise, two cancellations could wait for each other, each with parts that the other needs.
_LOCK_CANCELLATION = "SELECT pg_advisory_xact_lock(hashtextextended('bulk import:' || %(bulk)s::text, 0))"


@dataclass(frozen=True)
class _RequestStandIn:
    """A stand-in for the request in the serializer, which reads only its organization."""

    organization: Organization


def accept_import(
    organization: Organization,
    defaults: dict[str, Any],
    items: Sequence[dict[str, Any]],
    *,
    actor: Actor,
    scopes: Sequence[str],
) -> BulkImport:
    """Store the rows; after the commit, enqueue the import. `scopes` are the caller's. Raises LimitReached."""
    check_schedule_limit(organization.pk, len(items))
    with transaction.atomic():
        bulk = BulkImport.objects.create(
            organization=organization,
            total=len(items),
            actor={"type": actor.type, "id": actor.id, "label": actor.label},
            scopes=list(scopes),
        )
        BulkPart.objects.bulk_create(
            BulkPart(bulk=bulk, first_row=first, rows=[{**defaults, **row} for row in items[first : first + PART]])
            for first in range(0, len(items), PART)
        )
        events.append(organization.pk, "bulk.received", bulk.pk, actor=actor, total=bulk.total)
        _enqueue(bulk)
    return bulk


def work_import(bulk_id: int) -> int:
    """Process as many parts as fit into one RQ job, and enqueue the next job; return how many."""
    began, done = time.monotonic(), 0
    while time.monotonic() - began < _job_seconds() * SHARE_OF_JOB:
        if not work_part(bulk_id):
            return done
        done += 1
    _enqueue(BulkImport.objects.get(pk=bulk_id))
    return done


def work_part(bulk_id: int) -> bool:
    """Process one part; return False if no part is left that another worker has not locked.

    Rows that do not fit into its time stay in the part.
    """
    with transaction.atomic():
        part = (
            BulkPart.objects.select_for_update(skip_locked=True, no_key=True)
            .filter(bulk_id=bulk_id)
            .order_by("first_row")
            .first()
        )
        if part is None:
            return False
        bulk = BulkImport.objects.select_related("organization").get(pk=bulk_id)
        if bulk.status not in BulkImport.OPEN:
            return False
        with each_row_found_once():
            good, errors = _validate_rows(bulk, part)
        actor = Actor(**bulk.actor)
        create_schedules(
            bulk.organization_id,
            [given for _, given in good],
            actor=actor,
            bulk=(bulk.pk, [row for row, _ in good]),
        )
        BulkError.objects.bulk_create(BulkError(bulk=bulk, row=row, errors=problems) for row, problems in errors)
        done = len(good) + len(errors)
        if done == len(part.rows):
            part.delete()
        else:
            part.first_row, part.rows = part.first_row + done, part.rows[done:]
            part.save(update_fields=["first_row", "rows"])
        fault_injection.crash_point("schedules.bulk.before_commit")
        _record_progress(bulk, len(good), len(errors), actor)
    fault_injection.crash_point("schedules.bulk.committed")
    return True


def cancel_import(bulk_id: int, *, actor: Actor) -> BulkImport:
    """Cancel an import; schedules created so far are kept. Raises NotInThisStatus if it has ended.

    Waits for the parts that workers process at this moment. They get no other parts.
    """
    with transaction.atomic():
        prepared.execute(_LOCK_CANCELLATION, {"bulk": bulk_id})
        parts = BulkPart.objects.filter(bulk_id=bulk_id)
        list(parts.select_for_update(no_key=True, skip_locked=True).values_list("pk", flat=True))
        list(parts.select_for_update(no_key=True).order_by("first_row").values_list("pk", flat=True))
        bulk = BulkImport.objects.select_for_update(no_key=True).get(pk=bulk_id)
        if bulk.status not in BulkImport.OPEN:
            raise NotInThisStatus(
                _("This bulk import is {status}.").format(status=_(bulk.get_status_display()).lower())
            )
        bulk.status, bulk.ended_at = BulkImport.Status.CANCELLED, clock.now()
        bulk.save(update_fields=["status", "ended_at"])
        parts.delete()
        events.append(bulk.organization_id, "bulk.cancelled", bulk.pk, actor=actor, created=bulk.created)
    return bulk


def enqueue_stalled() -> int:
    """Enqueue the imports that have made no progress for STALLED_AFTER; return how many."""
    before = clock.now() - STALLED_AFTER
    waiting = BulkImport.objects.filter(status__in=BulkImport.OPEN, parts__isnull=False).distinct()
    stalled = [bulk for bulk in waiting if (bulk.worked_at or bulk.created_at) < before]
    for bulk in stalled:
        BulkImport.objects.filter(pk=bulk.pk).update(worked_at=clock.now())
        _enqueue(bulk)
    return len(stalled)


def _enqueue(bulk: BulkImport) -> None:
    """Enqueue the import after the commit, in the turn of its organization."""
    queues.enqueue(settings.SCHEDULE_IMPORT_QUEUE, TASK, bulk.pk, organization_id=bulk.organization_id)


def _validate_rows(
    bulk: BulkImport, part: BulkPart
) -> tuple[list[tuple[int, dict[str, Any]]], list[tuple[int, list[dict[str, Any]]]]]:
    """Split a part into (row, values) of valid rows and (row, problems) of the others.

    The rows after SHARE_OF_PART are left out; at least one is validated.
    """
    good: list[tuple[int, dict[str, Any]]] = []
    errors: list[tuple[int, list[dict[str, Any]]]] = []
    until = time.monotonic() + _job_seconds() * SHARE_OF_PART
    scopes = frozenset(bulk.scopes)
    # One serializer for all rows: most of its cost is its construction.
    form = ScheduleFormSerializer(context=_context(bulk.organization, scopes.__contains__))
    for row, given in enumerate(part.rows, part.first_row):
        if row > part.first_row and time.monotonic() > until:
            break
        try:
            good.append((row, dict(form.run_validation(given))))
        except APIException as error:
            errors.append((row, _problems(error)))
    return good, errors


def _job_seconds() -> float:
    """Return the time after which RQ stops a job of the import queue."""
    return float(settings.RQ_QUEUES[settings.SCHEDULE_IMPORT_QUEUE]["DEFAULT_TIMEOUT"])


def _context(organization: Organization, may: Callable[[str], bool]) -> dict[str, Any]:
    return {"request": _RequestStandIn(organization), "may": may}


def _problems(error: APIException) -> list[dict[str, Any]]:
    """Format the errors as in the API's problem details."""
    context: Any = {}
    errors: list[dict[str, Any]] = ProblemFormatter(error, context, error).run()["errors"]
    return errors


def _record_progress(bulk: BulkImport, created: int, refused: int, actor: Actor) -> None:
    now = clock.now()
    BulkImport.objects.filter(pk=bulk.pk).update(
        created=F("created") + created,
        refused=F("refused") + refused,
        worked_at=now,
        status=BulkImport.Status.RUNNING,
    )
    # The update locked the row, so exactly one worker sees the final counts.
    bulk.refresh_from_db(fields=["created", "refused"])
    if bulk.created + bulk.refused == bulk.total:
        BulkImport.objects.filter(pk=bulk.pk).update(status=BulkImport.Status.DONE, ended_at=now)
        events.append(
            bulk.organization_id, "bulk.done", bulk.pk, actor=actor, created=bulk.created, refused=bulk.refused
        )
