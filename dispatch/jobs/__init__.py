"""From a submitted form to an assigned technician: Submission → Job → Offer.

Stands on `technicians`, `telephony`, `capacity`, `accounts` and `core`; never on leads, outbox or schedules.

Keeps: a submission becomes exactly one job; one pending and one accepted offer per job, one pending offer per
technician; a keypress counts only for the pending, unexpired offer of that very call; a dispatching job always
has a next action or is paused; locks are taken in the order Job → Offer → Technician → Call.
"""
