"""Create, change, pause, resume, run and delete schedules."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any

from django.conf import settings
from django.db import transaction
from django.db.models import F, Sum

from accounts import limits
from dispatch.core import clock, events, fault_injection
from dispatch.core.api.problems import Conflict
from dispatch.core.db.prepared import fetch_all
from dispatch.core.db.stored_json import is_same_json
from dispatch.core.events import Actor
from dispatch.core.languages import gettext as _
from dispatch.core.languages import mark
from dispatch.core.models import Event
from dispatch.core.runtime import queues
from dispatch.schedules import sql
from dispatch.schedules.models import SHARDS, BulkImport, ConcurrencyLimit, Run, RunStatus, Schedule
from dispatch.schedules.rules import recurrence
from dispatch.schedules.services.admission import free_slots
from dispatch.schedules.services.anchors import anchor_after, keep_wall_clock
from dispatch.schedules.services.run_messages import QueuedRun, enqueue_runs
from dispatch.schedules.services.shards import EXECUTOR

# Fields that decide when a schedule runs. Changing any of them replaces the next run.
WHEN = ("time_zone", "trigger_at", "every", "unit", "cron", "rrule", "starts_at", "ends_at", "max_occurrences",
        "exclude_calendars")  # fmt: skip
# Fields of WHEN that only limit the occurrences: the times before the limit do not change.
LIMITS = {"ends_at", "max_occurrences"}
CHANGEABLE = (
    "name", "kind", "payload", "headers", *WHEN, "retry_schedule_s", "missed", "missed_after_s", "overlap",
    "jitter_s", "concurrency_limit",
)  # fmt: skip
AT_ONCE = 500
# Manual runs of one schedule that have not begun. While an earlier run goes on, each is checked every minute.
MAX_WAITING = 5000
_STATUS = Schedule.Status


class NotInThisStatus(Conflict):
    """Conflict (409): the schedule's status does not allow the action."""

    default_code = "illegal_transition"


def shard_of(schedule_id: int) -> int:
    """Return the shard of a schedule: a hash of its id."""
    return zlib.crc32(str(schedule_id).encode()) % SHARDS


def create_schedule(organization_id: int, given: dict[str, Any], *, actor: Actor) -> Schedule:
    """Create a schedule and its first run from validated values."""
    return create_schedules(organization_id, [given], actor=actor)[0]


def create_schedules(
    organization_id: int,
    items: Sequence[dict[str, Any]],
    *,
    actor: Actor,
    bulk: tuple[int, Sequence[int]] | None = None,
) -> list[Schedule]:
    """Create schedules from validated values, each with its first run and its Event, in one transaction.

    `bulk` is the id of the bulk import and the number of each schedule's row in it. Raises LimitReached.
    """
    now = clock.now()
    if bulk is None:  # an import was checked as a whole
        check_schedule_limit(organization_id, len(items))
    with transaction.atomic():
        ids = [row[0] for row in fetch_all(sql.NEW_IDS, {"count": len(items)})]
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
            schedule.next_at = recurrence.first_occurrence(schedule.timing, now)
            schedule.occurrences = 1 if schedule.next_at else 0
            schedule.status = _STATUS.ACTIVE if schedule.next_at else _STATUS.ENDED
            made.append(schedule)
        Schedule.objects.bulk_create(made, batch_size=AT_ONCE)
        runs = [_next_run(schedule) for schedule in made if schedule.next_at]
        Run.objects.bulk_create(runs, batch_size=AT_ONCE)
        Event.objects.bulk_create([_created(schedule, actor, now) for schedule in made], batch_size=AT_ONCE)
        fault_injection.crash_point("schedules.create.before_commit")
        _notify_executors(min((run.trigger_at for run in runs), default=None), now)
    return made


def check_schedule_limit(organization_id: int, adding: int) -> None:
    """Raise LimitReached if the organization may not have that many more active schedules.

    The rows of imports that are not processed yet count as schedules.
    """

    def count(most: int) -> int:
        live = Schedule.objects.of(organization_id).filter(status__in=(_STATUS.ACTIVE, _STATUS.PAUSED))
        imports = BulkImport.objects.of(organization_id).filter(status__in=BulkImport.OPEN)
        expected = imports.aggregate(rows=Sum(F("total") - F("created") - F("refused")))["rows"] or 0
        return live.order_by()[:most].count() + int(expected)

    limits.check_headroom(organization_id, "schedules", adding, count)


def change_schedule(
    schedule_id: int, given: dict[str, Any], *, actor: Actor, version: int | None = None
) -> Schedule:
    """Change some of the CHANGEABLE fields. A new timing replaces the next run; claimed runs continue.

    Raises Conflict if the schedule has another version, NotInThisStatus if it is deleted.
    """
    now = clock.now()
    with transaction.atomic():
        schedule = lock_schedule(schedule_id, version)
        check_status_not_in(
            schedule, (_STATUS.DELETED,), mark("This schedule is {status}, so it cannot be changed.")
        )
        changed = _changed_fields(schedule, given)
        if not changed:
            return schedule
        given = keep_wall_clock(schedule, given)
        anchor = anchor_after(schedule, given, now)
        changed = _changed_fields(schedule, given)
        for name in changed:
            setattr(schedule, name, given[name])
        if set(changed) & set(WHEN):
            schedule.anchor = anchor
            _replace_next_run(schedule, now, set(changed))
        if "jitter_s" in changed:
            _move_by_jitter(schedule, now)
        if "kind" in changed:
            _change_kind_of_runs(schedule, now)
        if "concurrency_limit" in changed:
            _leave_queue(schedule)
        _reset_failures(schedule, actor, "changed it")
        _save(schedule, now, "changed", actor, fields=changed)
    return schedule


def pause_schedule(schedule_id: int, *, actor: Actor, version: int | None = None, note: str = "") -> Schedule:
    """Pause the schedule: no run is claimed until it is resumed. Claimed runs continue."""
    now = clock.now()
    with transaction.atomic():
        schedule = lock_schedule(schedule_id, version)
        if schedule.status == _STATUS.PAUSED:
            return schedule
        check_status_not_in(
            schedule, (_STATUS.DELETED, _STATUS.ENDED), mark("This schedule is {status}, so it cannot be paused.")
        )
        schedule.status = _STATUS.PAUSED
        _leave_queue(schedule)
        waiting = Run.objects.filter(schedule=schedule, status__in=[RunStatus.SCHEDULED, RunStatus.RETRYING])
        waiting.exclude(number=None, status=RunStatus.SCHEDULED).exclude(waiting_for="concurrency").update(
            due_at=None
        )
        _reset_failures(schedule, actor, "paused it")
        _save(schedule, now, "paused", actor, note=note)
    return schedule


def resume_schedule(schedule_id: int, *, actor: Actor, version: int | None = None, note: str = "") -> Schedule:
    """Resume a paused schedule with its first occurrence from now.

    Occurrences during the pause are recorded as skipped. Retries that the pause delayed are due now.
    """
    now = clock.now()
    with transaction.atomic():
        schedule = lock_schedule(schedule_id, version)
        if schedule.status == _STATUS.ACTIVE:
            return schedule
        check_status_not_in(
            schedule, (_STATUS.DELETED, _STATUS.ENDED), mark("This schedule is {status}, so it cannot be resumed.")
        )
        schedule.status, schedule.paused_until = _STATUS.ACTIVE, now
        runs = Run.objects.filter(schedule=schedule, due_at=None)
        runs.filter(status=RunStatus.RETRYING).exclude(waiting_for="concurrency").update(due_at=now)
        for run in runs.filter(status=RunStatus.SCHEDULED):
            Run.objects.filter(pk=run.pk).update(due_at=schedule.due_at(run.trigger_at))
        _save(schedule, now, "resumed", actor, note=note)
        queues.notify_loop(EXECUTOR)
    return schedule


def run_now(
    schedule_id: int,
    *,
    actor: Actor,
    version: int | None = None,
    note: str = "",
    payload: dict[str, Any] | None = None,
    kind: str = "",
    concurrency_limit: ConcurrencyLimit | None = None,
) -> Run:
    """Add a manual run that is due now, even if the schedule is paused or has ended.

    The schedule's occurrences do not change. If overlap is not allowed, the run waits for earlier runs. `payload`
    replaces the schedule's in this run; it was validated for `kind`. Raises Conflict if the schedule has another,
    and if too many manual runs wait.
    `concurrency_limit` replaces the schedule's in this run.
    """
    now = clock.now()
    with transaction.atomic():
        schedule = lock_schedule(schedule_id, version)
        check_status_not_in(schedule, (_STATUS.DELETED,), CANNOT_RUN)
        if payload is not None and kind != schedule.kind:
            raise Conflict(
                _("The kind of this schedule has changed. Reload it and try again."), **_last_change(schedule)
            )
        check_waiting_runs(schedule, 1)
        run = Run.objects.create(
            organization_id=schedule.organization_id,
            schedule=schedule,
            kind=schedule.kind,
            shard=schedule.shard,
            trigger_at=now,
            payload=payload,
            concurrency_limit_id=concurrency_limit.pk if concurrency_limit else schedule.concurrency_limit_id,
            due_at=now,
            created_at=now,
        )
        changed = {"has_own_payload": True} if payload is not None else {}
        _append_event(schedule, "run_now", actor, run_id=run.pk, note=note, **changed)
        queues.notify_loop(EXECUTOR)
    return run


def check_waiting_runs(schedule: Schedule, adding: int) -> None:
    """Raise Conflict if that would be too many manual runs that wait. The schedule must be locked."""
    waiting = Run.objects.filter(schedule=schedule, status=RunStatus.SCHEDULED, number=None)
    if waiting.order_by()[:MAX_WAITING].count() + adding > MAX_WAITING:
        words = _("At most {most} manual runs of a schedule can wait. Retry when some have begun, or cancel some.")
        raise Conflict(words.format(most=f"{MAX_WAITING:,}"), code="too_many")


def delete_schedule(schedule_id: int, *, actor: Actor, version: int | None = None, note: str = "") -> Schedule:
    """Delete the schedule; deleting it again changes nothing.

    Runs that have not started are canceled, including those in a worker's queue. Running ones end normally, and
    their outcomes are recorded.
    """
    now = clock.now()
    with transaction.atomic():
        schedule = lock_schedule(schedule_id, version)
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
        fault_injection.crash_point("schedules.delete.before_commit")
        _save(schedule, now, "deleted", actor, cancelled=len(cancelled), note=note)
    return schedule


def cancel_runs(runs: Any, now: datetime, actor: Actor, reason: str) -> list[int]:
    """Cancel these runs, unless a worker has started them; return the ids of the canceled runs.

    The caller must have locked their schedule. Waits for workers that are starting runs at this moment. Runs that
    waited for their slots are admitted.
    """
    waiting = list(runs.select_for_update(no_key=True, of=("self",)).order_by("pk"))
    ids = [run.pk for run in waiting]
    Run.objects.filter(pk__in=ids).update(
        status=RunStatus.CANCELLED, ended_at=now, error=reason[:500], waiting_for="", lease_until=None
    )
    Event.objects.bulk_create(
        _event(
            run.organization_id, "run.cancelled", run.pk, actor, now, schedule_id=run.schedule_id, reason=reason
        )
        for run in waiting
    )
    free_slots([run.concurrency_limit_id for run in waiting if run.status == RunStatus.IN_PROGRESS], now)
    return ids


def _changed_fields(schedule: Schedule, given: dict[str, Any]) -> list[str]:
    """Return the fields whose values differ."""
    changed = [name for name in given if name != "payload" and getattr(schedule, name) != given[name]]
    if "payload" in given and not is_same_json(schedule.payload, given["payload"]):
        changed.append("payload")
    return sorted(changed)


def _with_defaults(given: dict[str, Any], now: datetime) -> dict[str, Any]:
    values = {
        "retry_schedule_s": list(settings.SCHEDULE_RETRY_SCHEDULE_S),
        "missed_after_s": settings.SCHEDULE_MISSED_AFTER_S,
        **given,
    }
    values["anchor"] = values.get("starts_at") or now
    return values


def _next_run(schedule: Schedule) -> Run:
    assert schedule.next_at is not None
    return Run(
        organization_id=schedule.organization_id,
        schedule_id=schedule.pk,
        kind=schedule.kind,
        shard=schedule.shard,
        number=schedule.occurrences,
        trigger_at=schedule.next_at,
        due_at=None if schedule.status == _STATUS.PAUSED else schedule.due_at(schedule.next_at),
        created_at=schedule.changed_at,
    )


def _replace_next_run(schedule: Schedule, now: datetime, changed: set[str]) -> None:
    """Replace the waiting next run after a change of timing.

    If only a limit changed, a run that is due and not claimed yet stays the next one.
    """
    if schedule.trigger_at is not None and "trigger_at" not in changed:
        return
    waiting = Run.objects.filter(schedule=schedule, status=RunStatus.SCHEDULED).exclude(number=None)
    run = waiting.select_for_update(no_key=True).first()
    taken = schedule.occurrences - (1 if run else 0)
    at: datetime | None
    if schedule.trigger_at is not None:
        at = schedule.trigger_at  # a new time is a new occurrence, regardless of earlier ones
    else:
        keeps_times = run is not None and not changed & (set(WHEN) - LIMITS)
        after = min(now, run.trigger_at - timedelta(microseconds=1)) if run and keeps_times else now
        at = recurrence.next_after(schedule.timing, after, taken)
    schedule.next_at = at
    schedule.occurrences = taken + (1 if at else 0)
    if schedule.status != _STATUS.PAUSED:
        schedule.status = _STATUS.ACTIVE if at else _STATUS.ENDED
    if at is None:
        waiting.delete()
        return
    if run and run.trigger_at == at:
        return  # it may wait for an earlier run
    due = None if schedule.status == _STATUS.PAUSED else schedule.due_at(at)
    if run:
        Run.objects.filter(pk=run.pk).update(trigger_at=at, due_at=due, waiting_for="")
    else:
        schedule.changed_at = now
        _next_run(schedule).save()
    _notify_executors(due, now)


def _move_by_jitter(schedule: Schedule, now: datetime) -> None:
    """Give the waiting next run its due time after a change of the jitter, unless it waits for an earlier run."""
    if schedule.next_at is None or schedule.status == _STATUS.PAUSED:
        return
    due = schedule.due_at(schedule.next_at)
    waiting = Run.objects.filter(schedule=schedule, status=RunStatus.SCHEDULED, waiting_for="")
    waiting.exclude(number=None).update(due_at=due)
    _notify_executors(due, now)


def _change_kind_of_runs(schedule: Schedule, now: datetime) -> None:
    """Give the schedule's kind to its runs that no worker has started.

    Runs in a worker's queue get a message to the new kind's workers: those of the old kind would read the new
    payload. Runs with a payload of their own keep the kind that it was validated for.
    """
    runs = Run.objects.filter(schedule=schedule, payload__isnull=True)
    runs.filter(status__in=[RunStatus.SCHEDULED, RunStatus.RETRYING]).update(kind=schedule.kind)
    queued = runs.filter(status=RunStatus.IN_PROGRESS).select_for_update(no_key=True).order_by("pk")
    again = [QueuedRun(run.pk, run.epoch + 1, schedule.kind, schedule.organization_id) for run in queued]
    ids = [run.id for run in again]
    Run.objects.filter(pk__in=ids).update(kind=schedule.kind, epoch=F("epoch") + 1, taken_at=now)
    enqueue_runs(again)


def _leave_queue(schedule: Schedule) -> None:
    """Make the schedule's occurrences that wait for a slot of a concurrency limit due again.

    An executor queues them with the schedule's limit. Manual runs keep the limit that they were started with.
    """
    waiting = Run.objects.filter(schedule=schedule, status=RunStatus.RETRYING, waiting_for="concurrency")
    waiting.exclude(number=None).update(due_at=F("waits_since"), waits_since=None, waiting_for="")
    queues.notify_loop(EXECUTOR)


def _notify_executors(at: datetime | None, now: datetime) -> None:
    """Notify the executors if the run may be due before their next poll."""
    if at is not None and at <= now + timedelta(seconds=settings.SCHEDULE_POLL_INTERVAL_S):
        queues.notify_loop(EXECUTOR)


def lock_schedule(schedule_id: int, version: int | None) -> Schedule:
    """Lock and return the schedule. Raises Conflict if it has another version (None: any)."""
    schedule = Schedule.objects.select_for_update(no_key=True).get(pk=schedule_id)
    if version is not None and version != schedule.version:
        raise Conflict(
            _("This schedule has changed since you read it. Reload it and try again."), **_last_change(schedule)
        )
    return schedule


CANNOT_RUN = mark("This schedule is {status}, so it cannot be run.")


def check_status_not_in(schedule: Schedule, statuses: Sequence[str], words: str) -> None:
    """Raise NotInThisStatus if the schedule has one of these statuses. `words`: the sentence with a {status}."""
    if schedule.status in statuses:
        detail = _(words).format(status=_(schedule.get_status_display()).lower())
        raise NotInThisStatus(detail, **_last_change(schedule))


def _last_change(schedule: Schedule) -> dict[str, Any]:
    last = Event.objects.filter(subject_type="schedule", subject_id=schedule.pk).order_by("-id").first()
    details: dict[str, Any] = {"version": schedule.version, "schedule_status": str(schedule.status)}
    if last:
        details |= {
            "by": Actor(last.actor_type, last.actor_id, last.actor_label),
            "did": last.kind.partition(".")[2].replace("_", " "),
            "at": last.at,
        }
    return details


def _reset_failures(schedule: Schedule, actor: Actor, how: str) -> None:
    """Reset the failure count of a failing schedule that a user has acted on."""
    if schedule.failures:
        schedule.failures = 0
        _append_event(schedule, "recovered", actor, how=how)


def _save(schedule: Schedule, now: datetime, verb: str, actor: Actor, **data: Any) -> None:
    schedule.version += 1
    schedule.changed_at = now
    schedule.save()
    _append_event(schedule, verb, actor, **{name: value for name, value in data.items() if value != ""})


def _append_event(schedule: Schedule, verb: str, actor: Actor, **data: Any) -> None:
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
