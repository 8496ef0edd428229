"""Change submissions, jobs and offers. No other code does.

`submissions`: turn a form into a job. `ranking`: rank the technicians near it. `dispatching`: offer it to the
next one. `waits`: wait if nobody can be called. `slots`: offers to several technicians at once. `offers`:
calls, ends and deadlines of offers. `answers`: technicians' answers. `actions`: actions of people. `follow_up`:
their actions after the assignment. `corrections`: corrections of an open job. `duplicate_actions`: those on a
flagged duplicate. `customer_actions`: what customers do on their page. `config`: service types and policies.
`auditor`: recovery of stalled rows. `recovery`: the end of a provider outage. `notices` and `notice_delivery`:
inform technicians of changes. `leaving`: deactivated technicians and organizations. `reminders`: paused jobs,
and jobs that were not started. `transitions`: steps shared by all of them. `sms`: the texts of a job to
technicians. `customer_texts`: texts to its customer. `threads`: texts between technicians and dispatchers.
`notes`: notes of dispatchers. `line_wakeups`: wake jobs that wait for a line.

Every function locks the Job first (then Offer, Technician, Call) and checks its arguments against the rows. A
late, repeated or out-of-order invocation changes nothing.
"""

from dispatch.jobs.services.actions import (
    AssignResult,
    Correction,
    IllegalTransition,
    assign,
    call_next_now,
    cancel,
    cannot_make_it,
    check_legal,
    check_version,
    complete,
    dispatch_again,
    extend,
    pause,
    resume,
)
from dispatch.jobs.services.answers import Answer, AnswerChannel, answer_offer
from dispatch.jobs.services.auditor import audit, move_on_waiting, repair_technicians
from dispatch.jobs.services.corrections import KEEP, Details, correct
from dispatch.jobs.services.customer_actions import CustomerRefusal, cancel_request, correct_request
from dispatch.jobs.services.dispatching import offer_next
from dispatch.jobs.services.duplicate_actions import dismiss_duplicate, flagged_duplicate, merge_duplicate
from dispatch.jobs.services.follow_up import (
    mark_started,
    mark_technician_told,
    reopen,
    report_late,
    report_on_the_way,
)
from dispatch.jobs.services.leaving import withdraw_inactive_offers
from dispatch.jobs.services.notice_delivery import advance_due_notices
from dispatch.jobs.services.offers import call_changed, expire_offer
from dispatch.jobs.services.ranking import describe_hold, find_candidates
from dispatch.jobs.services.recovery import resume_after_outage, resume_after_spend_cap
from dispatch.jobs.services.reminders import remind_due_jobs
from dispatch.jobs.services.submissions import accept_submission, new_submission, start_job, store_submission
from dispatch.jobs.services.travel import load_road_times

__all__ = [
    "KEEP",
    "Answer",
    "AnswerChannel",
    "AssignResult",
    "Correction",
    "CustomerRefusal",
    "Details",
    "IllegalTransition",
    "accept_submission",
    "advance_due_notices",
    "answer_offer",
    "assign",
    "audit",
    "call_changed",
    "call_next_now",
    "cancel",
    "cancel_request",
    "cannot_make_it",
    "check_legal",
    "check_version",
    "complete",
    "correct",
    "correct_request",
    "describe_hold",
    "dismiss_duplicate",
    "dispatch_again",
    "expire_offer",
    "extend",
    "find_candidates",
    "flagged_duplicate",
    "load_road_times",
    "mark_started",
    "mark_technician_told",
    "merge_duplicate",
    "move_on_waiting",
    "new_submission",
    "offer_next",
    "pause",
    "remind_due_jobs",
    "reopen",
    "repair_technicians",
    "report_late",
    "report_on_the_way",
    "resume",
    "resume_after_outage",
    "resume_after_spend_cap",
    "start_job",
    "store_submission",
    "withdraw_inactive_offers",
]
