"""Models of jobs.

`policies`: what organizations configure. `jobs`: submissions, jobs, candidates and offers. `threads`: texts and
notices between technicians and dispatchers. `notes`: notes of dispatchers. `customer_texts`: texts to customers.
"""

from dispatch.jobs.models.customer_texts import CustomerText, CustomerTextKind, CustomerTextPolicy
from dispatch.jobs.models.jobs import OVERDUE, Candidate, Job, JobQuerySet, Offer, Priority, Submission
from dispatch.jobs.models.notes import JobNote
from dispatch.jobs.models.policies import DispatchPolicy, PublicForm, ServiceType
from dispatch.jobs.models.threads import UNINFORMED_NOTICES, JobText, TechnicianNotice

__all__ = [
    "OVERDUE",
    "UNINFORMED_NOTICES",
    "Candidate",
    "CustomerText",
    "CustomerTextKind",
    "CustomerTextPolicy",
    "DispatchPolicy",
    "Job",
    "JobNote",
    "JobQuerySet",
    "JobText",
    "Offer",
    "Priority",
    "PublicForm",
    "ServiceType",
    "Submission",
    "TechnicianNotice",
]
