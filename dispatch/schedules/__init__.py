"""Anything Dispatch does, done later or again and again: Schedule → Run; executor, workers of each kind, status
queue, reconciler, bulk creation.

Stands on `jobs`, `leads`, `outbox` and below; `notifications` and `console` stand on it.

Keeps: an active schedule has exactly one next run, made in the transaction that took or passed over the one before
(unique constraint); every occurrence is one run, and what came of it is recorded (unique schedule, occurrence); a
run is `in_progress` before its message leaves and `running` for one worker at a time, by compare-and-set on its
epoch; what a run creates carries the run's id as its idempotency key; an outcome is in PostgreSQL before the
status queue hears of it, so that no lost message makes work be done twice. Locks are taken in the order Schedule
→ Run.
"""
