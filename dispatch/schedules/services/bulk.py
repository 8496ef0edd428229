"""Many schedules at once: taken in as parts, which a worker checks and creates, a transaction each.

A part is deleted in the transaction that makes its schedules, and a row makes one schedule at most (unique), so a
worker may die at any time and another goes on. Messages to the queue are hints: what nobody works on is sent
again."""

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

from accounts.models import Organization
from dispatch.core import clock, events, faults, queues
from dispatch.core.events import Actor
from dispatch.core.problems import ProblemFormatter
from dispatch.schedules.models import BulkError, BulkImport, BulkPart
from dispatch.schedules.serializers import ScheduleFormSerializer
from dispatch.schedules.services.managing import NotInThisStatus, create_many

log = structlog.get_logger(__name__)

TASK = "dispatch.schedules.tasks.bulk_create"
PART = 500
# Of RQ's limit for one job, so much may have gone when a further part is begun.
SHARE_OF_JOB = 0.4
FORGOTTEN = timedelta(seconds=60)
_OPEN = (BulkImport.Status.RECEIVED, BulkImport.Status.RUNNING)


@dataclass(frozen=True)
class _Asker:
    """Stands for the request: whose schedules they are."""

    organization: Organization


def accept(
    organization: Organization,
    defaults: dict[str, Any],
    items: Sequence[dict[str, Any]],
    *,
    actor: Actor,
    scopes: Sequence[str],
) -> BulkImport:
    """Stores the rows and, after commit, has a worker begin. `scopes`: of what they may make schedules at all."""
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
        queues.enqueue(settings.SCHEDULE_IMPORT_QUEUE, TASK, bulk.pk)
    return bulk


def work(bulk_id: int) -> int:
    """Works off parts, as many as fit into one job of RQ's, and has the next job go on; how many parts."""
    began, done = time.monotonic(), 0
    limit = settings.RQ_QUEUES[settings.SCHEDULE_IMPORT_QUEUE]["DEFAULT_TIMEOUT"] * SHARE_OF_JOB
    while time.monotonic() - began < limit:
        if not work_part(bulk_id):
            return done
        done += 1
    queues.enqueue(settings.SCHEDULE_IMPORT_QUEUE, TASK, bulk_id)
    return done


def work_part(bulk_id: int) -> bool:
    """One part; False when there is none left that nobody works on."""
    with transaction.atomic():
        part = (
            BulkPart.objects.select_for_update(skip_locked=True)
            .filter(bulk_id=bulk_id)
            .order_by("first_row")
            .first()
        )
        if part is None:
            return False
        bulk = BulkImport.objects.select_related("organization").get(pk=bulk_id)
        if bulk.status not in _OPEN:
            return False
        good, errors = _checked(bulk, part)
        actor = Actor(**bulk.actor)
        create_many(
            bulk.organization_id,
            [given for _, given in good],
            actor=actor,
            bulk=(bulk.pk, [row for row, _ in good]),
        )
        BulkError.objects.bulk_create(BulkError(bulk=bulk, row=row, errors=found) for row, found in errors)
        part.delete()
        faults.point("schedules.bulk.before_commit")
        _progress(bulk, len(good), len(errors), actor)
    faults.point("schedules.bulk.committed")
    return True


def cancel(bulk_id: int, *, actor: Actor) -> BulkImport:
    """Creates no more; what was created stays. Raises NotInThisStatus."""
    with transaction.atomic():
        bulk = BulkImport.objects.select_for_update(no_key=True).get(pk=bulk_id)
        if bulk.status not in _OPEN:
            raise NotInThisStatus(f"This bulk creation is {bulk.get_status_display().lower()}.")
        bulk.status, bulk.ended_at = BulkImport.Status.CANCELLED, clock.now()
        bulk.save(update_fields=["status", "ended_at"])
        bulk.parts.all().delete()
        events.append(bulk.organization_id, "bulk.cancelled", bulk.pk, actor=actor, created=bulk.created)
    return bulk


def send_forgotten() -> int:
    """Has those that nobody has worked on for a minute go on; how many."""
    before = clock.now() - FORGOTTEN
    waiting = BulkImport.objects.filter(status__in=_OPEN, parts__isnull=False).distinct()
    found = [bulk for bulk in waiting if (bulk.worked_at or bulk.created_at) < before]
    for bulk in found:
        BulkImport.objects.filter(pk=bulk.pk).update(worked_at=clock.now())
        queues.enqueue(settings.SCHEDULE_IMPORT_QUEUE, TASK, bulk.pk)
    return len(found)


def _checked(
    bulk: BulkImport, part: BulkPart
) -> tuple[list[tuple[int, dict[str, Any]]], list[tuple[int, list[dict[str, Any]]]]]:
    """(row, values) of the good ones, (row, problems) of the others."""
    good, errors = [], []
    scopes = frozenset(bulk.scopes)
    # One for all rows: most of what a serializer costs is being made.
    form = ScheduleFormSerializer(context=_context(bulk.organization, scopes.__contains__))
    for row, given in enumerate(part.rows, part.first_row):
        try:
            good.append((row, dict(form.run_validation(given))))
        except APIException as error:
            errors.append((row, _problems(error)))
    return good, errors


def _context(organization: Organization, may: Callable[[str], bool]) -> dict[str, Any]:
    return {"request": _Asker(organization), "may": may}


def _problems(error: APIException) -> list[dict[str, Any]]:
    """As the API's problem details have them."""
    context: Any = {}
    found: list[dict[str, Any]] = ProblemFormatter(error, context, error).run()["errors"]
    return found


def _progress(bulk: BulkImport, created: int, refused: int, actor: Actor) -> None:
    now = clock.now()
    BulkImport.objects.filter(pk=bulk.pk).update(
        created=F("created") + created,
        refused=F("refused") + refused,
        worked_at=now,
        status=BulkImport.Status.RUNNING,
    )
    # The row is locked now: whoever finds that nothing is left is the last one.
    bulk.refresh_from_db(fields=["created", "refused"])
    if bulk.created + bulk.refused == bulk.total:
        BulkImport.objects.filter(pk=bulk.pk).update(status=BulkImport.Status.DONE, ended_at=now)
        events.append(
            bulk.organization_id, "bulk.done", bulk.pk, actor=actor, created=bulk.created, refused=bulk.refused
        )
