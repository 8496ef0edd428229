"""What the jobs slice asks about technicians and tells them; what people edit is in `editing`.

The functions that write run inside the jobs transaction, after Job and Offer are locked (the order is
Job → Offer → Technician → Call)."""

from __future__ import annotations

from collections.abc import Iterable

from django.db import transaction
from django.db.models import F

from dispatch.core import clock, events, statements
from dispatch.core.events import Actor
from dispatch.technicians import rules, sql
from dispatch.technicians.models import Shift, Technician
from dispatch.technicians.search import Nearby, NearResult, fitness, near

__all__ = [
    "NearResult",
    "Nearby",
    "back",
    "fitness",
    "job_assigned",
    "job_over",
    "lock",
    "missed",
    "near",
    "offer_begun",
    "offer_over",
    "reached",
    "refresh_hours",
    "refresh_skills",
    "repair",
]


def lock(technician_ids: Iterable[int]) -> None:
    """Locks these technicians to the end of the transaction, by id: whoever changes several takes them this way
    first, so that no two wait for each other."""
    rows = Technician.objects.filter(pk__in=set(technician_ids)).order_by("pk")
    list(rows.select_for_update(no_key=True).values_list("pk"))


def offer_begun(technician_id: int, offer_id: int) -> bool:
    """Marks the technician as being on `offer_id`; False when they are on another one. Twice is once."""
    given = {"technician_id": technician_id, "offer_id": offer_id, "now": clock.now()}
    return bool(statements.count(sql.OFFER_BEGUN, given))


def offer_over(technician_id: int, offer_id: int) -> bool:
    """Frees the technician, if it is this offer that they are on; says whether it was."""
    return bool(Technician.objects.filter(pk=technician_id, live_offer_id=offer_id).update(live_offer_id=None))


def missed(technician_id: int, limit: int) -> bool:
    """One more call in a row that they did not take. At `limit` (0: never) they are auto-paused: not offered
    anything before somebody calls them `back`. Says whether this one did it."""
    technician = Technician.objects.select_for_update(no_key=True).get(pk=technician_id)
    misses = min(technician.misses_in_a_row + 1, 32_000)
    pauses = 0 < limit <= misses and technician.auto_paused_at is None
    paused_at = clock.now() if pauses else technician.auto_paused_at
    Technician.objects.filter(pk=technician_id).update(misses_in_a_row=misses, auto_paused_at=paused_at)
    if pauses:
        kind = "technician.auto_paused"
        events.append(technician.organization_id, kind, technician_id, name=technician.name, misses=misses)
    return pauses


def reached(technician_id: int) -> None:
    """They took a call: the count begins anew."""
    Technician.objects.filter(pk=technician_id, misses_in_a_row__gt=0).update(misses_in_a_row=0)


@transaction.atomic
def back(technician_id: int, *, actor: Actor) -> bool:
    """Ends an auto-pause, with its Event; False when there was none."""
    technician = Technician.objects.select_for_update(no_key=True).get(pk=technician_id)
    if technician.auto_paused_at is None:
        return False
    Technician.objects.filter(pk=technician_id).update(misses_in_a_row=0, auto_paused_at=None)
    name = technician.name
    events.append(technician.organization_id, "technician.back", technician_id, actor=actor, name=name)
    return True


def job_assigned(technician_id: int) -> None:
    """One more open job. Called once per assignment: by whoever won the job's compare-and-set."""
    Technician.objects.filter(pk=technician_id).update(open_jobs=F("open_jobs") + 1)


def job_over(technician_id: int) -> None:
    """One open job less, never below none."""
    Technician.objects.filter(pk=technician_id, open_jobs__gt=0).update(open_jobs=F("open_jobs") - 1)


def repair(technician_id: int, open_jobs: int, live_offer_id: int | None) -> bool:
    """Sets what the jobs slice found to be true, under the row's lock; says whether anything had drifted.

    The caller holds the lock (`fitness(lock=True)` or its own) while it counts, so that nothing moves between."""
    technician = Technician.objects.select_for_update(no_key=True).get(pk=technician_id)
    if (technician.open_jobs, technician.live_offer_id) == (open_jobs, live_offer_id):
        return False
    Technician.objects.filter(pk=technician_id).update(open_jobs=open_jobs, live_offer_id=live_offer_id)
    return True


def refresh_hours(technician_id: int) -> None:
    """Writes `hours` from the technician's shifts; called by a signal whenever one changes."""
    shifts = Shift.objects.filter(technician_id=technician_id).values_list("weekday", "starts", "ends")
    Technician.objects.filter(pk=technician_id).update(hours=rules.week_spans(shifts))


def refresh_skills(technician_ids: Iterable[int]) -> None:
    """Writes `skill_ids` from the technicians' skills; called by a signal whenever they change."""
    skills = Technician.skills.through.objects
    for pk in sorted(technician_ids):
        ids = skills.filter(technician_id=pk).order_by("skill_id").values_list("skill_id", flat=True)
        Technician.objects.filter(pk=pk).update(skill_ids=list(ids))
