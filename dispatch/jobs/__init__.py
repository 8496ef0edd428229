"""Turn a submitted form into an assigned technician: Submission → Job → Offer.

Imports `technicians`, `telephony`, `capacity`, `accounts` and `core`; never `leads`, `outbox` or `schedules`.

Invariants: A submission becomes exactly one job. A slot of a job has at most one pending offer, a job at most
one accepted offer, and a technician at most one pending offer. A keypress counts only for the pending, unexpired
offer of the same call. A dispatching job always has a next action or is paused. The lock order is Job → Offer →
Technician → Call.
"""
