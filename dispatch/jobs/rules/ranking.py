"""In which order technicians are offered a job, and who is next."""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Generic, Literal, Protocol, TypeVar

from dispatch.jobs.rules.outcomes import AGAIN, NEVER
from dispatch.jobs.rules.policy import CascadePolicy

# A technician who was offered something just now ranks behind one who was left alone for this long (seconds).
FULL_REST_S = 3600.0


class Rankable(Protocol):
    """What ranking must know of a technician considered for a job; `verdict` is `in`, `deferred` (on another
    offer) or `out`; distances in metres."""

    @property
    def technician_id(self) -> int: ...
    @property
    def verdict(self) -> str: ...
    @property
    def distance_m(self) -> int: ...
    @property
    def open_jobs(self) -> int: ...
    @property
    def max_open_jobs(self) -> int: ...
    @property
    def last_offered_at(self) -> datetime | None: ...


R = TypeVar("R", bound=Rankable)


@dataclass(frozen=True)
class Ranked(Generic[R]):
    """`rank` 1 is offered first; `score`: lower is better."""

    rank: int
    score: float
    of: R


def score(policy: CascadePolicy, one: Rankable, now: datetime) -> float:
    """The lower, the sooner offered.

    weight_distance × (distance ÷ radius) + weight_workload × (open jobs ÷ limit) + weight_rest × (how much of an
    hour's rest is missing: 1 just after an offer, 0 an hour later or when never offered)."""
    load = one.open_jobs / max(one.max_open_jobs, 1)
    rested_s = FULL_REST_S if one.last_offered_at is None else (now - one.last_offered_at).total_seconds()
    missing_rest = 1.0 - min(max(rested_s, 0.0), FULL_REST_S) / FULL_REST_S
    return round(
        policy.weight_distance * one.distance_m / max(policy.radius_m, 1)
        + policy.weight_workload * load
        + policy.weight_rest * missing_rest,
        6,
    )


def rank(policy: CascadePolicy, considered: Iterable[R], now: datetime) -> list[Ranked[R]]:
    """Everyone considered, best first; those who are out come last, nearest first. Ties: the nearer, then the one
    who was added first, so that the same question always has the same answer."""
    scored = [(score(policy, one, now), one) for one in considered]
    scored.sort(
        key=lambda pair: (
            pair[1].verdict == "out",
            0.0 if pair[1].verdict == "out" else pair[0],
            pair[1].distance_m,
            pair[1].technician_id,
        )
    )
    return [Ranked(place, points, one) for place, (points, one) in enumerate(scored, start=1)]


@dataclass(frozen=True)
class CandidateRow:
    """One row of a job's ranking. `skipped_round`: the round in which they turned out to be unfit, 0 for none."""

    technician_id: int
    rank: int
    verdict: str
    skipped_round: int = 0


@dataclass(frozen=True)
class OfferRow:
    """One settled offer of the job. `code`: how it ended (`outcomes.Outcome`)."""

    technician_id: int
    round: int
    code: str


@dataclass(frozen=True)
class Next:
    """What a dispatching job without a live offer does: `offer` it to a technician, `wait` for those on another
    offer, begin the next `round`, or nobody is left (`exhausted`)."""

    kind: Literal["offer", "wait", "round", "exhausted"]
    technician_id: int | None = None


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
) -> Next:
    """Whose turn it is.

    In each round everyone is asked once, by rank, at most `policy.max_candidates` of them. Who declined, or has no
    number that can be called, is not asked again before the job is dispatched anew (which makes a later
    `first_round`); who said that they cannot make it (`not_again`) never is. `busy`: found on another offer just
    now. An offer taken back by a pause does not count."""
    now_offers = [offer for offer in offers if offer.round >= first_round and offer.code not in AGAIN]
    asked = {offer.technician_id for offer in now_offers}
    asked_this_round = {offer.technician_id for offer in now_offers if offer.round == round_}
    never = {offer.technician_id for offer in now_offers if offer.code in NEVER} | set(not_again)
    room = len(asked) < policy.max_candidates

    def open_in(this_round: int, done: Collection[int]) -> list[CandidateRow]:
        return [
            one
            for one in sorted(candidates, key=lambda row: row.rank)
            if (one.verdict != "out" or one.skipped_round)
            and one.skipped_round < this_round
            and one.technician_id not in never
            and one.technician_id not in done
            and (room or one.technician_id in asked)
        ]

    left = open_in(round_, asked_this_round)
    free = [one for one in left if one.technician_id not in busy]
    if free:
        return Next("offer", free[0].technician_id)
    if left and may_wait:
        return Next("wait")
    if round_ < first_round + policy.rounds - 1 and open_in(round_ + 1, ()):
        return Next("round")
    return Next("exhausted")
