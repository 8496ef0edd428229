"""How a job is offered: the parameters of one cascade, frozen into the job when it starts."""

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any, Self


@dataclass(frozen=True)
class CascadePolicy:
    """Times in seconds, radius in metres, weights as plain factors (0 = ignore).

    `advance_on_…`: whether that end of a call moves on to the next technician at once, or waits for the deadline.
    `missed_call_grace_s`: how long an offer whose call was missed stays open for an answer by text, link or
    call-back; 0: not at all.
    """

    answer_timeout_s: int
    ring_timeout_s: int
    answered_extension_s: int
    radius_m: int
    max_candidates: int
    rounds: int
    line_wait_s: int
    technician_wait_s: int
    weight_distance: float
    weight_workload: float
    weight_rest: float
    auto_pause_misses: int
    missed_call_grace_s: int
    offer_by_text: bool
    address_by_text: bool
    advance_on_decline: bool
    advance_on_busy: bool
    advance_on_failed: bool
    advance_on_no_answer: bool
    advance_on_hangup: bool

    def to_json(self) -> dict[str, Any]:
        """As it is stored in `Job.policy`."""
        return asdict(self)

    @classmethod
    def from_json(cls, stored: Mapping[str, Any], defaults: Mapping[str, Any]) -> Self:
        """The frozen policy; what `stored` lacks (a job written by an older release) comes from `defaults`."""
        return cls(**{name: _or(stored.get(name), defaults[name]) for name in FIELDS})


FIELDS = tuple(field.name for field in fields(CascadePolicy))


def _or(value: Any, fallback: Any) -> Any:
    return fallback if value is None else value


def effective_policy(rows: Iterable[Mapping[str, Any]], defaults: Mapping[str, Any]) -> CascadePolicy:
    """Field by field, the first of `rows` (service type's, then organization's) that has a value, else
    `defaults`."""
    rows = list(rows)
    return CascadePolicy(
        **{name: next((row[name] for row in rows if row.get(name) is not None), defaults[name]) for name in FIELDS}
    )


def policy_problems(policy: CascadePolicy) -> dict[str, str]:
    """What cannot work together, by the field to blame; empty when all is well."""
    found = {}
    if policy.ring_timeout_s >= policy.answer_timeout_s:
        found["ring_timeout_s"] = (
            f"The ring time ({policy.ring_timeout_s} s) must be shorter than the delay between attempts "
            f"({policy.answer_timeout_s} s)."
        )
    if policy.offer_by_text and not policy.missed_call_grace_s:
        found["missed_call_grace_s"] = (
            "An offer that also goes by text must stay open for a while after a missed call, or nobody can answer "
            "the text: 60 seconds, say."
        )
    if policy.weight_distance == policy.weight_workload == policy.weight_rest == 0:
        found["weight_distance"] = "At least one weight must be above 0, or nothing decides who is first."
    return found
