"""What clients and people do with schedules: create, change, pause, resume, run now, delete."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any

from django.conf import settings
from django.db import transaction

from dispatch.core import clock, events, faults, queues
from dispatch.core.events import Actor
from dispatch.core.models import Event
from dispatch.core.problems import Conflict
from dispatch.core.statements import rows
from dispatch.schedules import sql
from dispatch.schedules.models import SHARDS, Run, RunStatus, Schedule
from dispatch.schedules.rules import timing
from dispatch.schedules.services.shards import EXECUTOR

# What decides when it runs; a change of one makes its next run anew.
WHEN = ("time_zone", "trigger_at", "every", "unit", "cron", "starts_at", "ends_at", "max_occurrences")
CHANGEABLE = (
    "name", "kind", "payload", "headers", *WHEN, "retry_schedule_s", "missed", "missed_after_s", "overlap",
)  # fmt: skip
AT_ONCE = 500
_STATUS = Schedule.Status


class NotInThisStatus(Conflict):
    """409: the schedule's status does not allow it."""

    default_code = "illegal_transition"


def shard_of(schedule_id: int) -> int:
    """Which shard a schedule belongs to: a hash of its id."""
    return zlib.crc32(str(schedule_id).encode()) % SHARDS


def create(organization_id: int, given: dict[str, Any], *, actor: Actor) -> Schedule:
    """Makes a schedule of checked values, and its first run."""
    return create_many(organization_id, [given], actor=actor)[0]


def create_many(
    organization_id: int,
    items: Sequence[dict[str, Any]],
    *,
    actor: Actor,
    bulk: tuple[int, Sequence[int]] | None = None,
) -> list[Schedule]:
    """Makes schedules of checked values, each with its first run and its Event, in one transaction. `bulk`: id of
    the bulk creation, and of which of its rows they are made."""
    now = clock.now()
    with transaction.atomic():
        ids = [row[0] for row in rows(sql.NEW_IDS, {"count": len(items)})]
        made = []
        for place, (schedule_id, given) in enumerate(zip(ids, items, strict=True)):
            schedule = Schedule(
                pk=schedule_id,
                organization_id=organization_id,
                shard=shard_of(schedule_id),
                created_at=now,
                changed_at=now,
                **_with_defaults(given, now),
            )
            if bulk is not None:
                schedule.bulk_id, schedule.bulk_row = bulk[0], bulk[1][place]
            schedule.next_at = timing.first(schedule.timing, now)
            schedule.occurrences = 1 if schedule.next_at else 0
            schedule.status = _STATUS.ACTIVE if schedule.next_at else _STATUS.ENDED
            made.append(schedule)
        Schedule.objects.bulk_create(made, batch_size=AT_ONCE)
        runs = [_next_run(schedule) for schedule in made if schedule.next_at]
        Run.objects.bulk_create(runs, batch_size=AT_ONCE)
        Event.objects.bulk_create([_created(schedule, actor, now) for schedule in made], batch_size=AT_ONCE)
        faults.point("schedules.create.before_commit")
        _wake_for(min((run.trigger_at for run in runs), default=None), now)
    return made


def change(schedule_id: int, given: dict[str, Any], *, actor: Actor, version: int | None = None) -> Schedule:
    """Changes some of CHANGEABLE. With another timing the next run is made anew from now on; runs that were taken
    go on. Raises Conflict when it is of another version, NotInThisStatus when it is deleted."""
    now = clock.now()
    with transaction.atomic():
        schedule = _locked(schedule_id, version)
        _refuse_in(schedule, (_STATUS.DELETED,), "changed")
        changed = sorted(name for name in given if getattr(schedule, name) != given[name])
        if not changed:
            return schedule
        for name in changed:
            setattr(schedule, name, given[name])
        if set(changed) & set(WHEN):
            schedule.anchor = schedule.starts_at or now
            _begin_anew(schedule, now)
        if "kind" in changed:
            Run.objects.filter(schedule=schedule, status__in=[RunStatus.SCHEDULED, RunStatus.RETRYING]).update(
                kind=schedule.kind
            )
        _settle(schedule, actor, "changed it")
        _save(schedule, now, "changed", actor, fields=changed)
    return schedule


def pause(schedule_id: int, *, actor: Actor, version: int | None = None, note: str = "") -> Schedule:
    """No run of it is taken until it is resumed; those that were taken go on."""
    now = clock.now()
    with transaction.atomic():
        schedule = _locked(schedule_id, version)
        if schedule.status == _STATUS.PAUSED:
            return schedule
        _refuse_in(schedule, (_STATUS.DELETED, _STATUS.ENDED), "paused")
        schedule.status = _STATUS.PAUSED
        waiting = Run.objects.filter(schedule=schedule, status__in=[RunStatus.SCHEDULED, RunStatus.RETRYING])
        waiting.exclude(number=None, status=RunStatus.SCHEDULED).update(due_at=None)
        _settle(schedule, actor, "paused it")
        _save(schedule, now, "paused", actor, note=note)
    return schedule


def resume(schedule_id: int, *, actor: Actor, version: int | None = None, note: str = "") -> Schedule:
    """Goes on with the first occurrence from now on; those that fell into the pause are recorded as skipped.
    Retries that waited are due now."""
    now = clock.now()
    with transaction.atomic():
        schedule = _locked(schedule_id, version)
        if schedule.status == _STATUS.ACTIVE:
            return schedule
        _refuse_in(schedule, (_STATUS.DELETED, _STATUS.ENDED), "resumed")
        schedule.status, schedule.paused_until = _STATUS.ACTIVE, now
        runs = Run.objects.filter(schedule=schedule, due_at=None)
        runs.filter(status=RunStatus.RETRYING).update(due_at=now)
        for run in runs.filter(status=RunStatus.SCHEDULED):
            Run.objects.filter(pk=run.pk).update(due_at=run.trigger_at)
        _save(schedule, now, "resumed", actor, note=note)
        queues.wake(EXECUTOR)
    return schedule


def run_now(schedule_id: int, *, actor: Actor, version: int | None = None, note: str = "") -> Run:
    """One run more, at once, also while it is paused or has ended; its occurrences stay as they are. Where
    overlap is not allowed, it waits for an earlier run."""
    now = clock.now()
    with transaction.atomic():
        schedule = _locked(schedule_id, version)
        _refuse_in(schedule, (_STATUS.DELETED,), "run")
        run = Run.objects.create(
            organization_id=schedule.organization_id,
            schedule=schedule,
            kind=schedule.kind,
            shard=schedule.shard,
            trigger_at=now,
            due_at=now,
            created_at=now,
        )
        _note(schedule, "run_now", actor, run_id=run.pk, note=note)
        queues.wake(EXECUTOR)
    return run


def delete(schedule_id: int, *, actor: Actor, version: int | None = None, note: str = "") -> Schedule:
    """It runs no more. What has not started is cancelled, also what waits in a worker's queue; what is running
    ends, and its outcome is recorded. Deleting twice changes nothing."""
    now = clock.now()
    with transaction.atomic():
        schedule = _locked(schedule_id, version)
        if schedule.status == _STATUS.DELETED:
            return schedule
        schedule.status, schedule.next_at, schedule.failures = _STATUS.DELETED, None, 0
        cancelled = cancel_runs(
            Run.objects.filter(
                schedule=schedule,
                status__in=[RunStatus.SCHEDULED, RunStatus.RETRYING, RunStatus.IN_PROGRESS],
            ),
            now,
            actor,
            "Its schedule was deleted.",
        )
        faults.point("schedules.delete.before_commit")
        _save(schedule, now, "deleted", actor, cancelled=len(cancelled), note=note)
    return schedule


def cancel_runs(runs: Any, now: datetime, actor: Actor, reason: str) -> list[int]:
    """Cancels those of these runs (their schedule is locked) that no worker has begun; waits for who takes one
    just now, and leaves what was taken. Their ids."""
    found = list(runs.select_for_update(no_key=True, of=("self",)).order_by("pk"))
    ids = [run.pk for run in found]
    Run.objects.filter(pk__in=ids).update(
        status=RunStatus.CANCELLED, ended_at=now, error=reason[:500], waiting_for="", lease_until=None
    )
    Event.objects.bulk_create(
        _event(
            run.organization_id, "run.cancelled", run.pk, actor, now, schedule_id=run.schedule_id, reason=reason
        )
        for run in found
    )
    return ids


def _with_defaults(given: dict[str, Any], now: datetime) -> dict[str, Any]:
    made = {
        "retry_schedule_s": list(settings.SCHEDULE_RETRY_SCHEDULE_S),
        "missed_after_s": settings.SCHEDULE_MISSED_AFTER_S,
        **given,
    }
    made["anchor"] = made.get("starts_at") or now
    return made


def _next_run(schedule: Schedule) -> Run:
    assert schedule.next_at is not None
    return Run(
        organization_id=schedule.organization_id,
        schedule_id=schedule.pk,
        kind=schedule.kind,
        shard=schedule.shard,
        number=schedule.occurrences,
        trigger_at=schedule.next_at,
        due_at=None if schedule.status == _STATUS.PAUSED else schedule.next_at,
        created_at=schedule.changed_at,
    )


def _begin_anew(schedule: Schedule, now: datetime) -> None:
    """The next run of a schedule whose timing has changed: in place of the one that waits, if there is one."""
    waiting = Run.objects.filter(schedule=schedule, status=RunStatus.SCHEDULED).exclude(number=None)
    run = waiting.select_for_update(no_key=True).first()
    taken = schedule.occurrences - (1 if run else 0)
    at: datetime | None
    if schedule.trigger_at is not None:
        at = schedule.trigger_at  # a new time is a new occurrence, whatever there was before
    else:
        at = timing.next_after(schedule.timing, now, taken)
    schedule.next_at = at
    schedule.occurrences = taken + (1 if at else 0)
    if schedule.status != _STATUS.PAUSED:
        schedule.status = _STATUS.ACTIVE if at else _STATUS.ENDED
    if at is None:
        waiting.delete()
        return
    due = None if schedule.status == _STATUS.PAUSED else at
    if run:
        Run.objects.filter(pk=run.pk).update(trigger_at=at, due_at=due, waiting_for="")
    else:
        schedule.changed_at = now
        _next_run(schedule).save()
    _wake_for(due, now)


def _wake_for(at: datetime | None, now: datetime) -> None:
    """An executor sleeps until the next trigger time it knows, at most its interval: only what is before that
    needs to wake it."""
    if at is not None and at <= now + timedelta(seconds=settings.SCHEDULE_POLL_INTERVAL_S):
        queues.wake(EXECUTOR)


def _locked(schedule_id: int, version: int | None) -> Schedule:
    schedule = Schedule.objects.select_for_update(no_key=True).get(pk=schedule_id)
    if version is not None and version != schedule.version:
        raise Conflict("This schedule has changed.", **_last(schedule))
    return schedule


def _refuse_in(schedule: Schedule, statuses: Sequence[str], done_to: str) -> None:
    if schedule.status in statuses:
        told = f"This schedule is {schedule.get_status_display().lower()}, so it cannot be {done_to}."
        raise NotInThisStatus(told, **_last(schedule))


def _last(schedule: Schedule) -> dict[str, Any]:
    last = Event.objects.filter(subject_type="schedule", subject_id=schedule.pk).order_by("-id").first()
    found: dict[str, Any] = {"version": schedule.version, "schedule_status": str(schedule.status)}
    if last:
        found |= {
            "by": Actor(last.actor_type, last.actor_id, last.actor_label),
            "did": last.kind.partition(".")[2].replace("_", " "),
            "at": last.at,
        }
    return found


def _settle(schedule: Schedule, actor: Actor, how: str) -> None:
    """Somebody took a failing schedule in hand: it counts anew."""
    if schedule.failures:
        schedule.failures = 0
        _note(schedule, "recovered", actor, how=how)


def _save(schedule: Schedule, now: datetime, verb: str, actor: Actor, **data: Any) -> None:
    schedule.version += 1
    schedule.changed_at = now
    schedule.save()
    _note(schedule, verb, actor, **{name: value for name, value in data.items() if value != ""})


def _note(schedule: Schedule, verb: str, actor: Actor, **data: Any) -> None:
    events.append(
        schedule.organization_id, f"schedule.{verb}", schedule.pk, actor=actor, name=schedule.name, **data
    )


def _created(schedule: Schedule, actor: Actor, now: datetime) -> Event:
    return _event(
        schedule.organization_id,
        "schedule.created",
        schedule.pk,
        actor,
        now,
        name=schedule.name,
        work=schedule.kind,
    )


def _event(organization_id: int, kind: str, subject_id: int, actor: Actor, now: datetime, **data: Any) -> Event:
    return Event(
        organization_id=organization_id,
        kind=kind,
        subject_type=kind.split(".", 1)[0],
        subject_id=subject_id,
        actor_type=actor.type,
        actor_id=actor.id,
        actor_label=actor.label[:120],
        data=data,
        at=now,
    )
