"""The cascade's decisions as pure functions: no database, no clock, no network.

`policy`: how a job is offered. `ranking`: in which order, and who is next. `transitions`: what a person may do
when.
`outcomes`: what the end of a call means. `words`: what is heard on the phone."""

from dispatch.jobs.rules.outcomes import (
    MISSES,
    TAKEN,
    THERE,
    CallEnd,
    Outcome,
    advances_at_once,
    open_after_call,
    outcome_of_call,
)
from dispatch.jobs.rules.policy import CascadePolicy, effective_policy, policy_problems
from dispatch.jobs.rules.ranking import (
    CandidateRow,
    Next,
    OfferRow,
    Rankable,
    Ranked,
    next_step,
    rank,
    score,
)
from dispatch.jobs.rules.transitions import DONE_TO, LEGAL, Action, actions_in, status_after

__all__ = [
    "DONE_TO",
    "LEGAL",
    "MISSES",
    "TAKEN",
    "THERE",
    "Action",
    "CallEnd",
    "CandidateRow",
    "CascadePolicy",
    "Next",
    "OfferRow",
    "Outcome",
    "Rankable",
    "Ranked",
    "actions_in",
    "advances_at_once",
    "effective_policy",
    "next_step",
    "open_after_call",
    "outcome_of_call",
    "policy_problems",
    "rank",
    "score",
    "status_after",
]
