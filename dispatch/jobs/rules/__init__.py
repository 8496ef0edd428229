"""Decide the steps of the cascade in pure functions: no database, no clock, no network.

`policy`: the parameters of a cascade. `ranking`: the order of technicians and the next step. `transitions`: the
state machine of a job. `outcomes`: the effect of a call's end on its offer. `phrases`: spoken prompts and texts.
`menu`: the voice menu of technicians. `slots`: offers to several technicians at once.
"""

from dispatch.jobs.rules.outcomes import (
    MISSES,
    PLACED_STATUSES,
    REACHED_OUTCOMES,
    SET_ASIDE,
    SET_ASIDE_S,
    SILENCE_MARGIN_S,
    UNCOUNTED_OUTCOMES,
    WITHDRAWN,
    CallEnd,
    Outcome,
    advances_at_once,
    open_after_call,
    outcome_of_call,
)
from dispatch.jobs.rules.policy import CascadePolicy, effective_policy, policy_problems
from dispatch.jobs.rules.ranking import (
    MAX_OFFERS,
    MAX_ROUNDS,
    CandidateRow,
    NextStep,
    OfferRow,
    Preferences,
    Rankable,
    Ranked,
    next_step,
    rank_candidates,
    score_candidate,
)
from dispatch.jobs.rules.slots import Slots, offers_wanted, slots_of
from dispatch.jobs.rules.transitions import (
    ALREADY,
    DONE_TO,
    IMPOSSIBLE,
    LEGAL,
    NOT_FOR_DISPATCHERS,
    OFFER_LEGAL,
    Action,
    actions_in,
    status_after,
)

__all__ = [
    "ALREADY",
    "DONE_TO",
    "IMPOSSIBLE",
    "LEGAL",
    "MAX_OFFERS",
    "MAX_ROUNDS",
    "MISSES",
    "NOT_FOR_DISPATCHERS",
    "OFFER_LEGAL",
    "PLACED_STATUSES",
    "REACHED_OUTCOMES",
    "SET_ASIDE",
    "SET_ASIDE_S",
    "SILENCE_MARGIN_S",
    "UNCOUNTED_OUTCOMES",
    "WITHDRAWN",
    "Action",
    "CallEnd",
    "CandidateRow",
    "CascadePolicy",
    "NextStep",
    "OfferRow",
    "Outcome",
    "Preferences",
    "Rankable",
    "Ranked",
    "Slots",
    "actions_in",
    "advances_at_once",
    "effective_policy",
    "next_step",
    "offers_wanted",
    "open_after_call",
    "outcome_of_call",
    "policy_problems",
    "rank_candidates",
    "score_candidate",
    "slots_of",
    "status_after",
]
