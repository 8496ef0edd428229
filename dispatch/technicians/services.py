"""Change technicians: on behalf of the jobs slice, and by people's edits.

The functions for the jobs slice run in its transaction, after Job and Offer are locked. The lock order is
Job → Offer → Technician → Call.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from datetime import time
from functools import partial
from typing import Any, NamedTuple

from django.db import transaction
from django.db.models import F

from accounts.models import Organization
from dispatch.core import clock, events
from dispatch.core.api.problems import Conflict
from dispatch.core.db import prepared
from dispatch.core.events import Actor
from dispatch.technicians import rules, sql
from dispatch.technicians.models import Shift, Skill, Technician
from dispatch.technicians.pins import check_pin, is_pin_locked, set_pin
from dispatch.technicians.rules import JobTime
from dispatch.technicians.search import (
    Nearby,
    NearResult,
    check_fitness,
    find_busy,
    find_nearby,
    load_road_times,
    lock_unlocked,
)

__all__ = [
    "JobTime",
    "NearResult",
    "Nearby",
    "add_open_job",
    "begin_offer",
    "check_fitness",
    "check_pin",
    "end_answered_offer",
    "end_auto_pause",
    "end_offer",
    "find_busy",
    "find_nearby",
    "find_unlocked",
    "is_pin_locked",
    "load_road_times",
    "lock_free",
    "lock_technicians",
    "lock_unlocked",
    "record_answered_call",
    "record_missed_call",
    "refresh_hours",
    "refresh_skills",
    "remove_open_job",
    "repair_technician",
    "set_pin",
]


class LeavingHandler(NamedTuple):
    """What the jobs slice does when a technician is deactivated.

    `lock_jobs` locks the open and offered jobs, before anything else. `apply_answers` applies answers that are
    recorded already. `give_back` gives back all open jobs. `withdraw_offers` withdraws what is being offered,
    after the commit.
    """

    lock_jobs: Callable[[int], None]
    apply_answers: Callable[[int], None]
    give_back: Callable[[int, Actor], None]
    withdraw_offers: Callable[[int, Actor], None]


# What may happen to the open jobs of a technician who is deactivated.
GIVE_BACK, KEEP = "give_back", "keep"
_leaving: list[LeavingHandler] = []
_on_links_voided: list[Callable[[int, Actor], None]] = []


class OpenJobs(Conflict):
    """409: the technician has open jobs, and the request does not say what happens to them."""

    default_code = "open_jobs"


def on_leaving(handler: LeavingHandler) -> None:
    """Register what happens when a technician is deactivated. Called from AppConfig.ready()."""
    _leaving.append(handler)


def on_links_voided(callback: Callable[[int, Actor], None]) -> None:
    """Register a callback, called with the technician's id and the actor.

    It is called in the transaction that revokes the links to the technician's page, with the technician locked.
    """
    if callback not in _on_links_voided:
        _on_links_voided.append(callback)


def lock_jobs_of(technician_id: int) -> None:
    """Lock the technician's open and offered jobs until the end of the transaction.

    Call it before a transaction that may deactivate the technician locks their row: jobs are locked first.
    """
    for handler in _leaving:
        handler.lock_jobs(technician_id)


def lock_technicians(technician_ids: Iterable[int]) -> None:
    """Lock these technicians until the end of the transaction, in id order.

    Call it before changing several technicians, to avoid deadlocks.
    """
    rows = Technician.objects.filter(pk__in=set(technician_ids)).order_by("pk")
    list(rows.select_for_update(no_key=True).values_list("pk"))


def lock_free(technician_ids: Iterable[int]) -> set[int]:
    """Lock those of these technicians whose rows no other session has locked, and return their ids."""
    rows = prepared.fetch_all(sql.LOCK_FREE, {"ids": prepared.integers(set(technician_ids))})
    return {row[0] for row in rows}


def find_unlocked(technician_ids: Iterable[int]) -> set[int]:
    """Return the technicians among these whose rows no other session has locked against foreign keys.

    Holds a key-share lock on them until the end of the transaction.
    """
    rows = prepared.fetch_all(sql.FREE, {"ids": prepared.integers(technician_ids)})
    return {row[0] for row in rows}


def begin_offer(technician_id: int, offer_id: int) -> None:
    """Set `offer_id` as the technician's live offer, with the next statement of the transaction. Idempotent.

    A technician with another live offer is not eligible (`lock_unlocked`); it is a DatabaseError then.
    """
    parameters = {"technician_id": technician_id, "offer_id": offer_id, "now": clock.now()}
    refusal = f"Technician {technician_id} has another live offer."
    prepared.change_later(sql.OFFER_BEGUN, parameters, refusal=refusal)


def end_offer(technician_id: int, offer_id: int) -> bool:
    """Clear the technician's live offer if it is `offer_id`. Return whether it was."""
    return prepared.execute_rowcount(sql.END_OFFER, [technician_id, offer_id]) > 0


def end_answered_offer(technician_id: int, offer_id: int) -> None:
    """Do what `end_offer` and `record_answered_call` do, in one statement."""
    prepared.change_later(sql.END_ANSWERED_OFFER, [offer_id, technician_id, offer_id])


def record_missed_call(technician_id: int, limit: int) -> bool:
    """Count a missed call, and return whether it caused an auto-pause.

    At `limit` missed calls in a row (0: never) the technician is auto-paused and gets no offers until the pause is
    ended.
    """
    technician = Technician.objects.select_for_update(no_key=True).get(pk=technician_id)
    misses = min(technician.misses_in_a_row + 1, 32_000)
    pauses = 0 < limit <= misses and technician.auto_paused_at is None
    paused_at = clock.now() if pauses else technician.auto_paused_at
    Technician.objects.filter(pk=technician_id).update(misses_in_a_row=misses, auto_paused_at=paused_at)
    if pauses:
        kind = "technician.auto_paused"
        events.append(technician.organization_id, kind, technician_id, name=technician.name, misses=misses)
    return pauses


def record_answered_call(technician_id: int) -> None:
    """Reset the count of missed calls, because the technician answered."""
    prepared.change_later(sql.RESET_MISSES, [technician_id])


@transaction.atomic
def end_auto_pause(technician_id: int, *, actor: Actor) -> bool:
    """End an auto-pause and append its Event. Return False if there was none."""
    technician = Technician.objects.select_for_update(no_key=True).get(pk=technician_id)
    if technician.auto_paused_at is None:
        return False
    Technician.objects.filter(pk=technician_id).update(misses_in_a_row=0, auto_paused_at=None)
    name = technician.name
    events.append(technician.organization_id, "technician.back", technician_id, actor=actor, name=name)
    return True


def add_open_job(technician_id: int) -> None:
    """Increment the open jobs. Called once per assignment, by the winner of the job's compare-and-set."""
    prepared.change_later(sql.ADD_OPEN_JOB, [technician_id])


def remove_open_job(technician_id: int) -> None:
    """Decrement the open jobs, never below zero."""
    Technician.objects.filter(pk=technician_id, open_jobs__gt=0).update(open_jobs=F("open_jobs") - 1)


def repair_technician(
    technician_id: int, open_jobs: int, live_offer_id: int | None, planned_times: list[Any] | None = None
) -> bool:
    """Set the counts and times that the jobs slice determined, under the row's lock. Return whether they differed.

    The caller must hold the row's lock while it counts (for example by `check_fitness(lock=True)`), so that the
    jobs don't change in between.
    """
    technician = Technician.objects.select_for_update(no_key=True).get(pk=technician_id)
    found = (technician.open_jobs, technician.live_offer_id, technician.planned_times)
    if found == (open_jobs, live_offer_id, planned_times):
        return False
    Technician.objects.filter(pk=technician_id).update(
        open_jobs=open_jobs, live_offer_id=live_offer_id, planned_times=planned_times
    )
    return True


def refresh_hours(technician_id: int) -> None:
    """Recompute `hours` from the technician's shifts. Called by a signal after every change of a shift."""
    shifts = Shift.objects.filter(technician_id=technician_id).values_list("weekday", "starts", "ends")
    Technician.objects.filter(pk=technician_id).update(hours=rules.week_spans(shifts))


def refresh_skills(technician_ids: Iterable[int]) -> None:
    """Recompute `skill_ids` from the technicians' skills. Called by a signal after every change of them."""
    skills = Technician.skills.through.objects
    for pk in sorted(technician_ids):
        ids = skills.filter(technician_id=pk).order_by("skill_id").values_list("skill_id", flat=True)
        Technician.objects.filter(pk=pk).update(skill_ids=list(ids))


ShiftTimes = tuple[int, time, time]


@transaction.atomic
def create_technician(
    organization: Organization,
    fields: dict[str, Any],
    *,
    skills: Iterable[Skill] = (),
    shifts: Sequence[ShiftTimes] = (),
) -> Technician:
    """Create a technician of `organization`. `fields`: validated fields of the model."""
    technician = Technician.objects.create(organization=organization, **fields)
    technician.skills.set(skills)
    if shifts:
        set_shifts(technician, shifts)
    technician.refresh_from_db()
    return technician


def change_technician(
    technician_id: int,
    changes: dict[str, Any],
    *,
    skills: Iterable[Skill] | None = None,
    shifts: Sequence[ShiftTimes] | None = None,
    open_jobs: str = "",
    actor: Actor,
) -> Technician:
    """Change validated fields by name, and replace skills and shifts if given. A change of duty appends its Event.

    Deactivating a technician with open jobs needs `open_jobs`: GIVE_BACK passes them to other technicians, KEEP
    leaves them assigned. An offer that rings is withdrawn in any case. Raises Technician.DoesNotExist, and
    OpenJobs if the choice is missing. A transaction that locks the technician first calls `lock_jobs_of` before.
    """
    leaving = _leaving if changes.get("is_active") is False else ()
    # In a separate transaction, if the caller has none: answers stay applied if the change is refused.
    with transaction.atomic():
        if leaving:
            lock_jobs_of(technician_id)
        for handler in leaving:
            handler.apply_answers(technician_id)
    with transaction.atomic():
        if leaving and open_jobs == GIVE_BACK:
            lock_jobs_of(technician_id)
            for handler in leaving:
                handler.give_back(technician_id, actor)
        return _change_technician(technician_id, changes, skills, shifts, open_jobs, actor)


def _change_technician(
    technician_id: int,
    changes: dict[str, Any],
    skills: Iterable[Skill] | None,
    shifts: Sequence[ShiftTimes] | None,
    open_jobs: str,
    actor: Actor,
) -> Technician:
    technician = Technician.objects.select_for_update(no_key=True).get(pk=technician_id)
    changes = dict(changes)
    is_leaving = technician.is_active and changes.get("is_active") is False
    if is_leaving and technician.open_jobs and open_jobs != KEEP:
        raise OpenJobs(count_open_jobs(technician), open_jobs=technician.open_jobs)
    for handler in _leaving if is_leaving else ():
        transaction.on_commit(partial(handler.withdraw_offers, technician_id, actor), robust=True)
    on_duty = changes.pop("on_duty", None)
    if {"lat", "lng"} & changes.keys():
        changes["position_at"] = clock.now()
    has_new_phone = "phone" in changes and str(changes["phone"]) != str(technician.phone)
    if has_new_phone:
        changes["link_version"] = technician.link_version + 1  # the old phone still has the old link
    if changes:
        for name, value in changes.items():
            setattr(technician, name, value)
        technician.save(update_fields=list(changes))
    for callback in _on_links_voided if has_new_phone else ():
        callback(technician_id, actor)
    if skills is not None:
        technician.skills.set(skills)
    if shifts is not None:
        set_shifts(technician, shifts)
    if on_duty is not None:
        set_duty(technician_id, on_duty, actor=actor)
    technician.refresh_from_db()
    return technician


def count_open_jobs(technician: Technician) -> str:
    """Return the sentence that asks what happens to the open jobs of a technician who is deactivated."""
    jobs = "1 open job" if technician.open_jobs == 1 else f"{technician.open_jobs} open jobs"
    return f"{technician.name} has {jobs}. Choose whether to give them back or keep them."


@transaction.atomic
def set_duty(technician_id: int, on_duty: bool, *, actor: Actor) -> bool:
    """Put the technician on or off duty and append the Event; return False if nothing changed.

    Going on duty ends an auto-pause. Raises Technician.DoesNotExist.
    """
    technician = Technician.objects.select_for_update(no_key=True).get(pk=technician_id)
    came_back = on_duty and end_auto_pause(technician_id, actor=actor)
    if technician.on_duty == on_duty:
        return came_back
    Technician.objects.filter(pk=technician_id).update(on_duty=on_duty)
    kind = "technician.duty_on" if on_duty else "technician.duty_off"
    events.append(technician.organization_id, kind, technician_id, actor=actor, name=technician.name)
    return True


@transaction.atomic
def move_technician(technician_id: int, lat: float, lng: float) -> Technician:
    """Set the position in degrees, with its cell and time. Raises Technician.DoesNotExist."""
    technician = Technician.objects.select_for_update(no_key=True).get(pk=technician_id)
    technician.lat, technician.lng, technician.position_at = lat, lng, clock.now()
    technician.save(update_fields=["lat", "lng", "position_at"])
    return technician


@transaction.atomic
def set_shifts(technician: Technician, shifts: Iterable[ShiftTimes]) -> None:
    """Replace the shifts (weekday from Monday = 0, starts, ends). Without shifts, they work whenever on duty."""
    Technician.objects.select_for_update(no_key=True).get(pk=technician.pk)
    technician.shifts.all().delete()
    Shift.objects.bulk_create(
        Shift(
            organization_id=technician.organization_id,
            technician=technician,
            weekday=day,
            starts=starts,
            ends=ends,
        )
        for day, starts, ends in shifts
    )
    refresh_hours(technician.pk)


@transaction.atomic
def void_links(technician_id: int, *, actor: Actor) -> None:
    """Revoke all existing links to the technician's page, and what was set up there in their browsers.

    Raises Technician.DoesNotExist.
    """
    technician = Technician.objects.select_for_update(no_key=True).get(pk=technician_id)
    technician.link_version += 1
    technician.save(update_fields=["link_version"])
    kind = "technician.links_voided"
    events.append(technician.organization_id, kind, technician_id, actor=actor, name=technician.name)
    for callback in _on_links_voided:
        callback(technician_id, actor)
