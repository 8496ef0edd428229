"""Decide how many technicians are offered a job at once, and which slot the next offer takes."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol

from dispatch.jobs.rules.policy import CascadePolicy

# The most technicians that are offered one job at once.
MAX_AT_ONCE = 5
EMERGENCY = 1


class SlotOffer(Protocol):
    """The fields that slots read from an offer. `holds_until`: when the slot's next technician may be called."""

    @property
    def slot(self) -> int: ...
    @property
    def status(self) -> str: ...
    @property
    def holds_until(self) -> datetime | None: ...


@dataclass(frozen=True)
class Slots:
    """The slots of a job: `wanted` at once, `pending` with an offer, and `held` until the time given."""

    wanted: int
    pending: frozenset[int]
    held: Mapping[int, datetime]

    @property
    def free(self) -> int | None:
        """The slot of the next offer, or None if enough slots are in use."""
        used = self.pending | self.held.keys()
        if len(used) >= self.wanted:
            return None
        return next(slot for slot in range(MAX_AT_ONCE) if slot not in used)

    @property
    def next_free_at(self) -> datetime | None:
        """When the first held slot becomes free, or None."""
        return min(self.held.values(), default=None)


def offers_wanted(policy: CascadePolicy, priority: int) -> int:
    """Return how many technicians are offered a job of this priority at once."""
    if priority != EMERGENCY:
        return 1
    return min(max(policy.offers_at_once_for_emergencies, 1), MAX_AT_ONCE)


def slots_of(offers: Iterable[SlotOffer], wanted: int, now: datetime) -> Slots:
    """Return the slots of a job from its offers, oldest first."""
    last = {offer.slot: offer for offer in offers}
    pending = frozenset(slot for slot, offer in last.items() if offer.status == "pending")
    held = {
        slot: offer.holds_until
        for slot, offer in last.items()
        if slot not in pending and offer.holds_until is not None and offer.holds_until > now
    }
    return Slots(wanted, pending, held)
