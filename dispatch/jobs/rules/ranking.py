"""Rank technicians for a job and choose the next step of the cascade."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from statistics import median
from typing import Generic, Literal, NamedTuple, Protocol, TypeVar

from dispatch.jobs.rules.outcomes import FINAL_OUTCOMES, UNCOUNTED_OUTCOMES, Outcome
from dispatch.jobs.rules.policy import CascadePolicy

# Seconds without an offer after which a technician counts as fully rested in the score.
FULL_REST_S = 3600.0
# Limits of one job, however often people dispatch, pause and resume it: each step reads all of its offers. Few
# jobs come near them. Afterwards a job can only be assigned.
MAX_OFFERS, MAX_ROUNDS = 2_000, 1_000


class Rankable(Protocol):
    """The fields that ranking reads from a considered technician.

    `verdict` is `in`, `deferred` (has another pending offer) or `out`. Distances are in meters, as straight lines.
    `travel_s` is the drive in seconds, if known.
    """

    @property
    def technician_id(self) -> int: ...
    @property
    def verdict(self) -> str: ...
    @property
    def distance_m(self) -> int: ...
    @property
    def travel_s(self) -> int | None: ...
    @property
    def open_jobs(self) -> int: ...
    @property
    def max_open_jobs(self) -> int: ...
    @property
    def last_offered_at(self) -> datetime | None: ...
    @property
    def skill_ids(self) -> Collection[int]: ...


@dataclass(frozen=True)
class Preferences:
    """What a job prefers: skills of its service type (id → name), and the customer's technician."""

    skills: Mapping[int, str] = field(default_factory=dict)
    technician_id: int | None = None

    def missing_share(self, technician: Rankable) -> float:
        """Return the share of the preferred skills that the technician lacks, or 0 if none is preferred."""
        if not self.skills:
            return 0.0
        return len(self.skills.keys() - set(technician.skill_ids)) / len(self.skills)


NO_PREFERENCES = Preferences()

R = TypeVar("R", bound=Rankable)


class Ranked(NamedTuple, Generic[R]):
    """A technician with rank and score. Rank 1 gets the first offer; a lower score is better."""

    rank: int
    score: float
    technician: R


def typical_speed(considered: Iterable[Rankable]) -> float | None:
    """Return how many meters of the straight line a technician typically covers in a second, or None if unknown.

    It is the median of those whose drive is known, so that one strange drive changes little.
    """
    speeds = [one.distance_m / one.travel_s for one in considered if one.travel_s and one.distance_m]
    return median(speeds) if speeds else None


def ranked_distance(technician: Rankable, speed: float | None) -> float:
    """Return the distance in meters that counts in the ranking.

    It is the drive, if known, at the typical speed: drives are compared by their minutes, and with the straight
    lines of technicians whose drive is unknown.
    """
    if technician.travel_s is None or speed is None:
        return float(technician.distance_m)
    return technician.travel_s * speed


def score_candidate(
    policy: CascadePolicy,
    technician: Rankable,
    now: datetime,
    preferences: Preferences = NO_PREFERENCES,
    speed: float | None = None,
) -> float:
    """Return a technician's score for a job. The lowest score gets the first offer.

    weight_distance × (distance ÷ radius) + weight_workload × (open jobs ÷ limit) + weight_rest × (the missing
    share of an hour's rest: 1 right after an offer, 0 an hour later or if never offered a job) + weight_skills ×
    (the missing share of the preferred skills). The radius is that of the first round. The distance is
    `ranked_distance` at `speed`.
    """
    load = technician.open_jobs / max(technician.max_open_jobs, 1)
    rested_s = (
        FULL_REST_S if technician.last_offered_at is None else (now - technician.last_offered_at).total_seconds()
    )
    missing_rest = 1.0 - min(max(rested_s, 0.0), FULL_REST_S) / FULL_REST_S
    return round(
        policy.weight_distance * ranked_distance(technician, speed) / max(policy.radius_m, 1)
        + policy.weight_workload * load
        + policy.weight_rest * missing_rest
        + policy.weight_skills * preferences.missing_share(technician),
        6,
    )


def rank_candidates(
    policy: CascadePolicy, considered: Iterable[R], now: datetime, preferences: Preferences = NO_PREFERENCES
) -> list[Ranked[R]]:
    """Rank all considered technicians, best first; ineligible technicians come last, nearest first.

    The customer's preferred technician is first in any case: if they become eligible, they are called before all
    others. Where drives are known, the nearer technician is the one with the shorter drive. The order is
    deterministic: ties go to the nearer technician, then to the lower id.
    """
    considered = list(considered)
    speed = typical_speed(considered)
    scored = [
        (score_candidate(policy, technician, now, preferences, speed), technician) for technician in considered
    ]
    scored.sort(
        key=lambda pair: (
            pair[1].technician_id != preferences.technician_id,
            pair[1].verdict == "out",
            0.0 if pair[1].verdict == "out" else pair[0],
            ranked_distance(pair[1], speed),
            pair[1].distance_m,
            pair[1].technician_id,
        )
    )
    return [Ranked(place, points, technician) for place, (points, technician) in enumerate(scored, start=1)]


@dataclass(frozen=True)
class CandidateRow:
    """One row of a job's ranking. `skipped_round`: the round that skipped an ineligible technician; 0: none."""

    technician_id: int
    rank: int
    verdict: str
    skipped_round: int = 0


@dataclass(frozen=True)
class OfferRow:
    """One closed offer of the job. `code`: its `outcomes.Outcome`."""

    technician_id: int
    round: int
    code: str


@dataclass(frozen=True)
class NextStep:
    """The next step of a dispatching job with a free slot.

    `offer` the job to a technician, `wait` for technicians with another pending offer, begin the next `round`, or
    stop because the list is `exhausted`. `others`: those who come after the technician, in their order.
    """

    kind: Literal["offer", "wait", "round", "exhausted"]
    technician_id: int | None = None
    others: tuple[int, ...] = ()


def next_step(
    candidates: Sequence[CandidateRow],
    offers: Iterable[OfferRow],
    *,
    policy: CascadePolicy,
    round_: int,
    first_round: int,
    busy: Collection[int] = (),
    may_wait: bool = True,
    not_again: Collection[int] = (),
    ringing: Collection[int] = (),
) -> NextStep:
    """Choose the next step of the cascade.

    Each round offers the job to each candidate once, by rank, to at most `policy.max_candidates` of them. Another
    round begins if it has a candidate, or if it widens the radius and may therefore find one. A
    technician who declined, or is in `not_again` (can't make it), gets no further offer at all. One whose number
    can't be called gets none until the job is dispatched again (which starts a later `first_round`).
    `busy`: technicians who have another pending offer right now. `ringing`: technicians with a pending offer of
    this job, who get no second one, and for whom no round begins. Offers with an outcome in UNCOUNTED_OUTCOMES,
    such as those withdrawn by a pause, don't count. After MAX_OFFERS, nobody gets another.
    """
    offers = list(offers)
    if len(offers) >= MAX_OFFERS:
        return NextStep("exhausted")
    declined = {offer.technician_id for offer in offers if offer.code == Outcome.DECLINED}
    now_offers = [offer for offer in offers if offer.round >= first_round and offer.code not in UNCOUNTED_OUTCOMES]
    offered = {offer.technician_id for offer in now_offers}
    offered_this_round = {offer.technician_id for offer in now_offers if offer.round == round_}
    final = {offer.technician_id for offer in now_offers if offer.code in FINAL_OUTCOMES}
    never = final | declined | set(not_again)
    has_headroom = len(offered) < policy.max_candidates

    def open_in(this_round: int, excluded: Collection[int]) -> list[CandidateRow]:
        return [
            candidate
            for candidate in sorted(candidates, key=lambda row: row.rank)
            if (candidate.verdict != "out" or candidate.skipped_round)
            and candidate.skipped_round < this_round
            and candidate.technician_id not in never
            and candidate.technician_id not in ringing
            and candidate.technician_id not in excluded
            and (has_headroom or candidate.technician_id in offered)
        ]

    left = open_in(round_, offered_this_round)
    free = [candidate for candidate in left if candidate.technician_id not in busy]
    if free:
        return NextStep("offer", free[0].technician_id, tuple(row.technician_id for row in free[1:]))
    if left and may_wait:
        return NextStep("wait")
    widens = has_headroom and policy.widens_after(round_ - first_round + 1)
    if round_ < first_round + policy.rounds - 1 and (widens or open_in(round_ + 1, ())):
        return NextStep("round")
    return NextStep("exhausted")
