"""What the event log must say about calls: states only move forward, and a line carries one call at a time."""

from __future__ import annotations

from typing import ClassVar

from dispatch.core.events import history
from dispatch.core.events.history import Entry, IllegalStep, Machine, Ownership
from dispatch.telephony import rules
from dispatch.telephony.models import Call

Status = Call.Status

# The calls of a bulk purpose begin and may end within an event of their subject (`services.bulk`).
_BULK = Call.Purpose.LEAD


class CallHistory(Machine):
    """Follow one call by `rules.is_forward`."""

    type: ClassVar[str] = "call"
    table: ClassVar[str] = Call._meta.db_table

    def __init__(self) -> None:
        super().__init__()
        self._is_bulk = False

    def follow(self, entry: Entry) -> None:
        if entry.verb == "created":
            return self.move((), Status.CREATED)
        if self.status is None and entry.data.get("purpose") == _BULK:
            self.status, self._is_bulk = Status.REQUESTING, True
        if entry.verb == "held_back":
            return self.move([Status.REQUESTING], Status.CREATED)
        if entry.verb not in rules.RANK:
            return None  # a key, a requested hang-up: the status stays
        was, self.status = self.status, entry.verb
        if was is not None and not rules.is_forward(was, entry.verb):
            raise IllegalStep(f"is illegal after {was}")
        return None

    def has_begun(self, entry: Entry) -> bool:
        return super().has_begun(entry) or entry.data.get("purpose") == _BULK

    def agrees(self, row_status: str) -> bool:
        ended_unseen = self._is_bulk and self.status == Status.REQUESTING and row_status in rules.ENDS
        return ended_unseen or super().agrees(row_status)


# Who has a slot: from the event that created the call until the event that ended it.
_OWNERS = """
WITH seen AS (
    SELECT e.subject_id AS call_id, e.id AS event_id, e.kind = 'call.created' AS takes FROM core_event e
    WHERE e.subject_type = 'call' AND e.kind = ANY(%(kinds)s::text[]) AND e.id >= %(first)s
    UNION ALL
    SELECT (e.data->>'call')::bigint, e.id, e.data->>'call_status' = 'requesting' FROM core_event e
    WHERE e.subject_type = %(bulk)s AND jsonb_typeof(e.data->'call') = 'number'
      AND e.data->>'call_status' = ANY(%(statuses)s::text[]) AND e.id >= %(first)s
)
SELECT '{what} ' || c.{slot} || ' of {whole} ' || c.{whole}_id, 'call ' || c.id, seen.takes, seen.event_id
FROM seen JOIN telephony_call c ON c.id = seen.call_id
ORDER BY c.{whole}_id, c.{slot}, seen.event_id
"""


def _owners(what: str, slot: str, whole: str) -> Ownership:
    params = {
        "kinds": ["call.created", *(f"call.{status}" for status in sorted(rules.ENDS))],
        "statuses": ["requesting", *sorted(rules.ENDS)],
        "bulk": str(_BULK),
    }
    return Ownership(f"calls on a {what}", _OWNERS.format(what=what, slot=slot, whole=whole), params)


def register() -> None:
    """Register the checks. Called when the applications are ready."""
    history.register(CallHistory)
    for owners in (_owners("line", "line_slot", "number"), _owners("slot", "pool_slot", "pool")):
        history.register_check(owners.name, owners.check)
