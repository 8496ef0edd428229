"""The parameters of one cascade, frozen into the job when it starts."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from typing import Any, Self

from dispatch.core.languages import gettext as _


@dataclass(frozen=True)
class CascadePolicy:
    """The parameters of one cascade: times in seconds, radius in meters, weights as factors (0 = ignore).

    `advance_on_…`: True calls the next technician immediately after that outcome; False waits for the deadline.
    `missed_call_grace_s`: how long an offer stays open for an answer by text, link or call-back after a missed
    call; 0: the offer ends with the call. `pause_reminder_s`, `start_within_s`, `finish_within_s`: after this
    time a paused job, an assigned job that was not started, and a started job that was not completed, needs
    attention; 0: never. `radius_growth`: percent by which
    each round widens the radius of the round before, up to `max_radius_m`; 0: all rounds search the same radius.
    `weight_skills`: of the missing share of the service type's preferred skills.
    `offers_at_once_for_emergencies`: how many technicians are offered an emergency at once, 1 to 5.
    `window_lead_s`: how long before its arrival window a job calls the first technician.
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
    pause_reminder_s: int = 3600
    start_within_s: int = 0
    finish_within_s: int = 0
    radius_growth: int = 0
    max_radius_m: int = 150_000
    weight_skills: float = 0.5
    offers_at_once_for_emergencies: int = 1
    window_lead_s: int = 7200

    def radius_in_round(self, nth: int) -> int:
        """Return the search radius of the `nth` round of a dispatch (the first is 1), in meters."""
        if not self.radius_growth:
            return self.radius_m
        widened = round(self.radius_m * (1 + self.radius_growth / 100) ** (nth - 1))
        return max(self.radius_m, min(widened, self.max_radius_m))

    def first_round_within(self, distance_m: int) -> int:
        """Return the first round whose radius covers the distance, or 0 if none does."""
        if distance_m <= self.radius_m:
            return 1
        if not self.radius_growth:
            return 0
        rounds = range(1, self.rounds + 1)
        return next((nth for nth in rounds if distance_m <= self.radius_in_round(nth)), 0)

    def widens_after(self, nth: int) -> bool:
        """Return whether another round with a wider radius follows the `nth` round."""
        return nth < self.rounds and self.radius_in_round(nth + 1) > self.radius_in_round(nth)

    def to_json(self) -> dict[str, Any]:
        """Return the form stored in `Job.policy`."""
        return {name: getattr(self, name) for name in FIELDS}

    @classmethod
    def from_json(cls, stored: Mapping[str, Any], defaults: Mapping[str, Any]) -> Self:
        """Load a frozen policy. Fields missing in `stored` (jobs of an older release) come from `defaults`."""
        return cls(**{name: _or(stored.get(name), defaults[name]) for name in FIELDS})


FIELDS = tuple(field.name for field in fields(CascadePolicy))


def _or(value: Any, fallback: Any) -> Any:
    return fallback if value is None else value


def effective_policy(rows: Iterable[Mapping[str, Any]], defaults: Mapping[str, Any]) -> CascadePolicy:
    """Merge policies field by field: the first value in `rows`, else the value in `defaults`.

    `rows` has the service type's policy first, then the organization's.
    """
    rows = list(rows)
    return CascadePolicy(
        **{name: next((row[name] for row in rows if row.get(name) is not None), defaults[name]) for name in FIELDS}
    )


def policy_problems(policy: CascadePolicy) -> dict[str, str]:
    """Return the contradictions in a policy: field → message. Empty if the policy is valid."""
    problems = {}
    if policy.ring_timeout_s >= policy.answer_timeout_s:
        problems["ring_timeout_s"] = _(
            "Ring time ({ring} s) must be shorter than the delay between attempts ({delay} s)."
        ).format(ring=policy.ring_timeout_s, delay=policy.answer_timeout_s)
    if policy.offer_by_text and not policy.missed_call_grace_s:
        problems["missed_call_grace_s"] = _(
            "Must be above 0 if offers are also sent by text. Otherwise nobody can answer the text after a missed "
            "call. Try 60 seconds."
        )
    if policy.radius_growth and policy.max_radius_m < policy.radius_m:
        problems["max_radius_m"] = _(
            "Must be at least the radius ({radius} m), because each round widens it by {growth} %."
        ).format(radius=policy.radius_m, growth=policy.radius_growth)
    if policy.weight_distance == policy.weight_workload == policy.weight_rest == 0:
        problems["weight_distance"] = _("Set at least one weight above 0, or the order is undefined.")
    return problems
