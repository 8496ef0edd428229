"""Create, change and delete concurrency limits."""

from __future__ import annotations

from typing import Any

from django.db import IntegrityError, transaction
from django.db.models import Q

from dispatch.core import clock, events
from dispatch.core.api.problems import Conflict
from dispatch.core.events import Actor
from dispatch.core.languages import gettext as _
from dispatch.schedules.models import ConcurrencyLimit, Run, RunStatus, Schedule
from dispatch.schedules.services.admission import admit_runs

# How many schedules the refusal to delete a limit names.
MAX_NAMED = 5
# How many limits an organization has at most.
MAX_LIMITS = 1000


def create_limit(organization_id: int, key: str, max_runs: int, *, actor: Actor) -> ConcurrencyLimit:
    """Create a limit. Raises Conflict if the key exists, or if the organization has too many limits."""
    if ConcurrencyLimit.objects.of(organization_id).count() >= MAX_LIMITS:
        words = _("An organization has at most {most} concurrency limits.")
        raise Conflict(words.format(most=f"{MAX_LIMITS:,}"), code="too_many")
    try:
        with transaction.atomic():
            limit = ConcurrencyLimit.objects.create(
                organization_id=organization_id, key=key, max_runs=max_runs, created_at=clock.now()
            )
            _append_event(limit, "created", actor, max_runs=max_runs)
    except IntegrityError:
        raise Conflict(_("A concurrency limit with this key already exists."), code="duplicate") from None
    return limit


def change_limit(limit_id: int, max_runs: int, *, actor: Actor) -> ConcurrencyLimit:
    """Change how many runs may be in progress at once. Waiting runs get new slots at once.

    After a decrease, runs in progress continue, and none begins until enough of them have ended.
    """
    with transaction.atomic():
        limit = ConcurrencyLimit.objects.select_for_update(no_key=True).get(pk=limit_id)
        if limit.max_runs == max_runs:
            return limit
        before, limit.max_runs = limit.max_runs, max_runs
        limit.save(update_fields=["max_runs"])
        _append_event(limit, "changed", actor, max_runs=max_runs, before=before)
        admit_runs([limit.pk], clock.now())
    return limit


def delete_limit(limit_id: int, *, actor: Actor) -> None:
    """Delete a limit. Raises Conflict while a schedule or a run in progress uses it."""
    with transaction.atomic():
        limit = ConcurrencyLimit.objects.select_for_update().get(pk=limit_id)
        users = Schedule.objects.filter(concurrency_limit=limit)
        active = users.exclude(status=Schedule.Status.DELETED).order_by("name")
        names = list(active.values_list("name", flat=True)[: MAX_NAMED + 1])
        if names:
            words = _("In use by {names} and others.") if len(names) > MAX_NAMED else _("In use by {names}.")
            raise Conflict(words.format(names=", ".join(names[:MAX_NAMED])), code="in_use")
        held = Q(status__in=[RunStatus.IN_PROGRESS, RunStatus.RUNNING], concurrency_slot__isnull=False)
        waiting = Q(status=RunStatus.RETRYING, waiting_for="concurrency")
        if any(Run.objects.filter(which, concurrency_limit=limit).exists() for which in (held, waiting)):
            raise Conflict(_("In use by runs that are in progress or waiting."), code="in_use")
        users.update(concurrency_limit=None)
        _append_event(limit, "deleted", actor)
        limit.delete()


def _append_event(limit: ConcurrencyLimit, verb: str, actor: Actor, **data: Any) -> None:
    events.append(limit.organization_id, f"concurrencylimit.{verb}", limit.pk, actor=actor, name=limit.key, **data)
