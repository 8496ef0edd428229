"""The only place where submissions, jobs and offers change.

`intake`: a form becomes a job. `cascade`: who is offered it next. `offers`: an offer rings, is answered, ends.
`answers`: what a key does. `by_hand`: what persons do. `setting_up`: service types and policies. `auditor`: what
stopped moving. `state`: the steps they share.

Every function locks the Job first (then Offer, Technician, Call), checks what it was told against the rows, and
changes nothing when it comes late, twice or out of order."""

from dispatch.jobs.services.answers import Answer, By, answer_offer
from dispatch.jobs.services.auditor import audit, move_on_waiting, repair_technicians
from dispatch.jobs.services.by_hand import (
    AssignResult,
    assign,
    call_next_now,
    cancel,
    cannot_make_it,
    complete,
    extend,
    pause,
    resume,
)
from dispatch.jobs.services.by_hand_dispatch import Correction, dispatch_again
from dispatch.jobs.services.cascade import offer_next
from dispatch.jobs.services.conflicts import IllegalTransition
from dispatch.jobs.services.intake import accept_submission, start_job
from dispatch.jobs.services.offers import call_changed, expire_offer

__all__ = [
    "Answer",
    "AssignResult",
    "By",
    "Correction",
    "IllegalTransition",
    "accept_submission",
    "answer_offer",
    "assign",
    "audit",
    "call_changed",
    "call_next_now",
    "cancel",
    "cannot_make_it",
    "complete",
    "dispatch_again",
    "expire_offer",
    "extend",
    "move_on_waiting",
    "offer_next",
    "pause",
    "repair_technicians",
    "resume",
    "start_job",
]
