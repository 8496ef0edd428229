"""Set and check the PINs that identify technicians when they call.

Wrong PINs are counted per kind of caller, from the event log. Who forges a technician's number therefore locks out
only calls that carriers vouch for no better.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any

from django.contrib.auth.hashers import check_password, make_password
from django.core.exceptions import ValidationError
from django.db import transaction

from dispatch.core import clock, events
from dispatch.core.events import Actor
from dispatch.core.models import Event
from dispatch.technicians import rules
from dispatch.technicians.models import Technician
from dispatch.technicians.rules import PinEntry, PinFact, PinLock

SUBJECT = "technician"
# Of a caller about whom the carrier says nothing.
UNKNOWN_CALLER = "none"
_RESETS = (f"{SUBJECT}.pin_set", f"{SUBJECT}.pin_removed")
_KINDS = {f"{SUBJECT}.{fact}": fact for fact in PinFact}


@transaction.atomic
def set_pin(technician_id: int, pin: str, *, actor: Actor) -> None:
    """Set the PIN that identifies the technician when they call; an empty one removes it. Only its hash is stored.

    A new PIN ends every lock. Raises ValidationError {pin} and Technician.DoesNotExist.
    """
    if pin and (problem := rules.pin_problem(pin)):
        raise ValidationError({"pin": problem})
    technician = Technician.objects.select_for_update(no_key=True).get(pk=technician_id)
    technician.pin_hash = make_password(pin) if pin else ""
    technician.pin_failures, technician.pin_locked_until = 0, None
    technician.save(update_fields=["pin_hash", "pin_failures", "pin_locked_until"])
    kind = f"{SUBJECT}.pin_set" if pin else f"{SUBJECT}.pin_removed"
    events.append(technician.organization_id, kind, technician_id, actor=actor, name=technician.name)


def is_pin_locked(technician: Technician, caller: str | None = None) -> bool:
    """Return whether no PIN is accepted now from this kind of caller, because too many were wrong.

    Without `caller`: from any kind.
    """
    now = clock.now()
    if technician.pin_locked_until is not None and technician.pin_locked_until > now:
        return True
    entries = _entries(technician.pk, now)
    callers = {entry.caller for entry in entries} if caller is None else {caller}
    return any(rules.pin_lock(entries, kind, now) for kind in callers)


def check_pin(technician_id: int, pin: str, *, caller: str = UNKNOWN_CALLER, is_repeated: bool = False) -> bool:
    """Return whether this is the technician's PIN.

    `caller` is the kind of caller: what the carrier says about the number. After MAX_PIN_FAILURES wrong ones from
    that kind, none of it is right for PIN_LOCK, and the number of wrong PINs within a day is limited per kind and
    over all. The dispatchers are notified once per burst. `is_repeated`: the same request was checked before, so a
    wrong PIN is not counted again.
    """
    technician = Technician.objects.get(pk=technician_id)
    if not technician.pin_hash or is_pin_locked(technician, caller):
        return False
    is_right = check_password(pin, technician.pin_hash)
    if is_repeated:
        return is_right
    with transaction.atomic():
        technician = Technician.objects.select_for_update(no_key=True).get(pk=technician_id)
        if is_pin_locked(technician, caller):
            return False
        if is_right:
            _accept(technician, caller)
        else:
            _count_wrong(technician, caller)
    return is_right


def _accept(technician: Technician, caller: str) -> None:
    if any(entry.caller == caller for entry in _entries(technician.pk, clock.now())):
        _append(technician, PinFact.ACCEPTED, caller=caller)
    if technician.pin_failures:
        technician.pin_failures = 0
        technician.save(update_fields=["pin_failures"])


def _count_wrong(technician: Technician, caller: str) -> None:
    """Record a wrong PIN, and notify the dispatchers if it locks the PIN for the first time in this burst."""
    now = clock.now()
    _append(technician, PinFact.WRONG, caller=caller)
    entries = _entries(technician.pk, now)
    lock = rules.pin_lock(entries, caller, now)
    technician.pin_failures += 1
    if lock is not None and lock.is_for_all:
        technician.pin_locked_until = lock.until
    technician.save(update_fields=["pin_failures", "pin_locked_until"])
    if lock is not None and not rules.is_in_notified_burst(entries, now):
        _append(technician, PinFact.LOCKED, **_facts_of(lock, caller, now))


def _facts_of(lock: PinLock, caller: str, now: datetime) -> dict[str, Any]:
    minutes = -(-int((lock.until - now).total_seconds()) // 60)
    return {"caller": caller, "failures": lock.failures, "minutes": minutes}


def _append(technician: Technician, fact: PinFact, **data: Any) -> None:
    events.append(technician.organization_id, f"{SUBJECT}.{fact}", technician.pk, name=technician.name, **data)


def _entries(technician_id: int, now: datetime) -> list[PinEntry]:
    """Return what was recorded about the PIN since it was set, within a day and the pause after a burst."""
    since = now - rules.PIN_DAY - rules.PIN_BURST_PAUSE
    log = Event.objects.filter(
        subject_type=SUBJECT, subject_id=technician_id, kind__in=(*_KINDS, *_RESETS), at__gt=since
    )
    entries: list[PinEntry] = []
    for kind, at, data in log.order_by("id").values_list("kind", "at", "data"):
        if kind in _RESETS:
            entries.clear()
        else:
            entries.append(PinEntry(_KINDS[kind], data.get("caller", UNKNOWN_CALLER), at))
    return entries
