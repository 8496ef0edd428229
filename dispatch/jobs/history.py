"""What the event log must say about jobs and offers: legal transitions, and one accepted offer of a job."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from dispatch.core.events import history
from dispatch.core.events.history import Entry, IllegalStep, Machine, Ownership
from dispatch.jobs import rules
from dispatch.jobs.models import Job, Offer
from dispatch.jobs.rules import Action

# The actions that an event may stand for. An event of no action says nothing about the status.
_ACTIONS: Mapping[str, tuple[Action, ...]] = {
    "assigned": (Action.ACCEPT, Action.ASSIGN),
    "pending": (Action.GIVE_UP,),
    "trial_failed": (Action.GIVE_UP,),
    "trial_began": (Action.CALL_AFTER_OUTAGE,),
    "spend_resumed": (Action.CALL_AFTER_OUTAGE,),
    "dispatch_again": (Action.DISPATCH_AGAIN,),
    "cannot_make_it": (Action.CANNOT_MAKE_IT,),
    "cancelled": (Action.CANCEL,),
    "completed": (Action.COMPLETE,),
    "reopened": (Action.REOPEN,),
    "paused": (Action.PAUSE,),
    "resumed": (Action.RESUME,),
    "extended": (Action.EXTEND,),
    "on_the_way": (Action.ON_THE_WAY,),
    "started": (Action.MARK_STARTED,),
    "running_late": (Action.REPORT_LATE,),
}


class JobHistory(Machine):
    """Follow one job by `rules.LEGAL`. Its token is the round."""

    type: ClassVar[str] = "job"
    table: ClassVar[str] = Job._meta.db_table

    def follow(self, entry: Entry) -> None:
        if entry.verb == "created":
            return self.move((), Job.Status.DISPATCHING)
        if entry.verb == "round":
            self.raise_token(entry.data.get("round"))
            return self.stay([Job.Status.DISPATCHING])
        actions = _ACTIONS.get(entry.verb, ())
        if entry.verb == "provider_back" and self.status != Job.Status.DISPATCHING:
            actions = (Action.CALL_AFTER_OUTAGE,)  # while it is dispatching, only its trial ended
        if actions:
            self._act(actions)
        return None

    def _act(self, actions: tuple[Action, ...]) -> None:
        after = {status for (_, action), status in rules.LEGAL.items() if action in actions}
        legal = (rules.status_after(self.status, action) for action in actions) if self.status else ()
        found = next((status for status in legal if status), None)
        was, self.status = self.status, found or (next(iter(after)) if len(after) == 1 else None)
        if was is not None and found is None:
            raise IllegalStep(f"is illegal after {was}")


class OfferHistory(Machine):
    """Follow one offer by `rules.OFFER_LEGAL`."""

    type: ClassVar[str] = "offer"
    table: ClassVar[str] = Offer._meta.db_table
    begins_with: ClassVar[tuple[str, ...]] = ("made",)

    def follow(self, entry: Entry) -> None:
        if entry.verb == "made":
            self.move((), Offer.Status.PENDING)
        elif entry.verb in rules.OFFER_LEGAL:
            self.move([was for was, legal in rules.OFFER_LEGAL.items() if entry.verb in legal], entry.verb)


_ACCEPTED = """
SELECT 'job ' || (e.data->>'job_id'), 'offer ' || e.subject_id, e.kind = 'offer.accepted', e.id FROM core_event e
WHERE e.subject_type = 'offer' AND e.kind IN ('offer.accepted', 'offer.rescinded') AND e.id >= %(first)s
ORDER BY e.data->>'job_id', e.id
"""
_OFFERED = """
SELECT 'technician ' || (e.data->>'technician_id'), 'offer ' || e.subject_id, e.kind = 'offer.made', e.id
FROM core_event e
WHERE e.subject_type = 'offer' AND e.kind = ANY(%(kinds)s::text[]) AND e.id >= %(first)s
ORDER BY e.data->>'technician_id', e.id
"""
_KINDS = ["offer.made", *(f"offer.{status}" for status in sorted(rules.OFFER_LEGAL["pending"]))]
OWNERSHIPS = (
    Ownership("accepted offers of a job", _ACCEPTED),
    Ownership("pending offers of a technician", _OFFERED, {"kinds": _KINDS}),
)


def register() -> None:
    """Register the checks. Called when the applications are ready."""
    history.register(JobHistory, OfferHistory)
    for ownership in OWNERSHIPS:
        history.register_check(ownership.name, ownership.check)
