"""Write schedules: their past runs, and the coming ones."""

from __future__ import annotations

import random
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from accounts.models import Membership
from dispatch.core.events import SYSTEM
from dispatch.core.models import Event
from dispatch.dev.demo.history.deliveries import BILLING, CRM
from dispatch.dev.demo.history.jobs import person
from dispatch.dev.demo.history.rows import BEFORE_ALL_READERS, Batch
from dispatch.schedules.models import Run, RunReport, Schedule
from dispatch.schedules.rules import recurrence
from dispatch.schedules.services import schedules as services

# Past runs of a schedule are limited to this number, newest kept.
MOST_RUNS = 400
MISSED, FAILED = 0.006, 0.01  # shares of past runs


@dataclass(frozen=True)
class Plan:
    """A schedule. `given`: values for `create_schedule` besides name, kind and payload."""

    name: str
    kind: str
    payload: dict[str, Any]
    given: dict[str, Any]


def _message(endpoint: str, kind: str, **data: Any) -> dict[str, Any]:
    return {"endpoint": endpoint, "type": kind, "payload": data}


def _form(service: str, name: str, phone: str, address: str, notes: str) -> dict[str, Any]:
    return {
        "customer_name": name,
        "customer_phone": phone,
        "service_type": service,
        "address": address,
        "notes": notes,
    }


PLANS = (
    Plan(
        "Job summary to the CRM", "message", _message(CRM, "summary.daily", scope="jobs"), {"cron": "30 21 * * *"}
    ),
    Plan(
        "Stock levels to billing",
        "message",
        _message(BILLING, "stock.levels", site="main"),
        {"cron": "5 */3 * * *"},
    ),
    Plan("Crew briefing", "message", _message(CRM, "crew.briefing", channel="crew"), {"cron": "45 6 * * 1-5"}),
    Plan(
        "Monthly drain service, Camelback Bistro",
        "submission",
        _form(
            "drain", "Camelback Bistro", "+16025550190", "2320 E Camelback Rd, Phoenix, AZ 85016", "Back entrance."
        ),
        {"cron": "0 7 3 * *"},
    ),
    Plan(
        "Weekly pool pump check, Saguaro Inn",
        "submission",
        _form(
            "electrical",
            "Saguaro Inn",
            "+16025550191",
            "4000 N Central Ave, Phoenix, AZ 85012",
            "Ask at the desk.",
        ),
        {"cron": "0 8 * * 2"},
    ),
    Plan(
        "Quarterly inspection, Mesa Vista School",
        "submission",
        _form(
            "inspection",
            "Mesa Vista School",
            "+16025550192",
            "240 W 1st Ave, Mesa, AZ 85210",
            "Not on school days.",
        ),
        {"cron": "30 7 12 */3 *"},
    ),
    Plan(
        "Follow-up call, new water heater",
        "lead",
        {"campaign": "season-check", "phone": "+16235550155", "data": {"name": "Marisol"}},
        {"trigger_in_days": 2},
    ),
    Plan("Invoice reminders", "message", _message(BILLING, "invoice.reminders"), {"cron": "0 10 1,15 * *"}),
)
PAUSED = "Quarterly inspection, Mesa Vista School"


def write_schedules(batch: Batch, chance: random.Random, now: datetime, days: int) -> None:
    """Create the schedules with their next runs, and collect their past runs."""
    organization = batch.organization
    admin = Membership.objects.of(organization).filter(role=Membership.Role.ADMIN).select_related("user").first()
    actor = person(admin.user) if admin else SYSTEM
    made = services.create_schedules(
        organization.pk, [_values(plan, organization.time_zone, now) for plan in PLANS], actor=actor
    )
    since = now - timedelta(days=days)
    created = Event.objects.filter(subject_type="schedule", subject_id__in=[schedule.pk for schedule in made])
    created.update(at=since, xid=BEFORE_ALL_READERS)  # otherwise readers would seem to be late
    runs: list[tuple[datetime, int, Schedule]] = []
    for schedule in made:
        past = _past_times(schedule, since, now)
        if past:
            _make_older(schedule, since, len(past))
        runs += [(at, number, schedule) for number, at in enumerate(past, 1)]
        if schedule.name == PAUSED:
            services.pause_schedule(schedule.pk, actor=actor, note="School holidays.")
    for at, number, schedule in sorted(
        runs, key=lambda run: run[0]
    ):  # their ids ascend with time, as in production
        _write_run(batch, chance, schedule, number, at)


def _values(plan: Plan, zone: str, now: datetime) -> dict[str, Any]:
    given = dict(plan.given)
    if (in_days := given.pop("trigger_in_days", None)) is not None:
        given["trigger_at"] = now + timedelta(days=in_days)
    return {"name": plan.name, "kind": plan.kind, "payload": plan.payload, "time_zone": zone, **given}


def _past_times(schedule: Schedule, since: datetime, now: datetime) -> list[datetime]:
    """Return when the schedule would have run since then."""
    if not schedule.cron:
        return []
    times: list[datetime] = []
    at = recurrence.next_after(schedule.timing, since, 0)
    while at is not None and at < now:
        times.append(at)
        at = recurrence.next_after(schedule.timing, at, 0)
    return times[-MOST_RUNS:]


def _make_older(schedule: Schedule, since: datetime, runs: int) -> None:
    """Number the next run after the past ones, and date the schedule back to before them."""
    Run.objects.filter(schedule=schedule).update(number=runs + 1)
    dates = {"created_at": since, "changed_at": since, "anchor": since}
    Schedule.objects.filter(pk=schedule.pk).update(occurrences=runs + 1, **dates)


def _write_run(batch: Batch, chance: random.Random, schedule: Schedule, number: int, at: datetime) -> None:
    """Collect a run that has ended."""
    started = at + timedelta(seconds=chance.uniform(0.1, 0.9))
    ended = started + timedelta(seconds=chance.uniform(0.05, 0.6))
    draw = chance.random()
    status, error = "succeeded", ""
    if draw < MISSED:
        status, ended, error = "missed", at + timedelta(hours=1), "It could not start in time."
    elif draw < MISSED + FAILED:
        status, error = "failed", "The endpoint was disabled."
    run = batch.add(
        Run, schedule_id=schedule.pk, kind=schedule.kind, shard=schedule.shard, number=number, trigger_at=at,
        due_at=None, status=status, epoch=1, taken_at=at, started_at=None if status == "missed" else started,
        ended_at=ended, error=error, created_at=at - timedelta(hours=3),
        result={} if status == "succeeded" else None,
    )  # fmt: skip
    about: dict[str, Any] = {"schedule_id": schedule.pk, "attempt": 1}
    if status != "missed":
        batch.event(at, "run.in_progress", run["id"], **about)
        batch.event(started, "run.running", run["id"], **about)
        batch.add(
            RunReport, run_id=run["id"], epoch=1, attempt=1, outcome=status, error=error, started_at=started,
            ended_at=ended,
        )  # fmt: skip
    batch.event(ended, f"run.{status}", run["id"], **about, error=error)
