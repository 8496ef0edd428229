"""Schedule work for later, once or repeatedly: Schedule → Run.

The slice contains the executor, the workers of each kind, the status queue, the reconciler, bulk import, exclusion
calendars (`ical` reads them, `exclusion_cache` keeps them) and the calendar feed (`calendar_feed`). It imports
`jobs`, `leads`, `outbox` and lower layers; `notifications` and `console` import it.

Invariants:
- An active schedule has exactly one next run, created in the transaction that claimed or skipped the previous one
  (unique constraint).
- Every occurrence is one run with a recorded result (unique schedule, occurrence).
- A run is `in_progress` before its message is sent, and `running` for one worker at a time, by compare-and-set on
  its epoch.
- Everything that a run creates has the run's id as its idempotency key.
- A result is in PostgreSQL before its id is on the status queue, so a lost message never causes repeated work.

Lock order: Schedule → Run.
"""
