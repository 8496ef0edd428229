"""Call leads at their due time: Campaign, Lead; promoter, dialers, reconcilers.

The slice depends on `telephony`, `capacity`, `accounts` and `core`; never on jobs, outbox or schedules.

The path of a lead: `services.intake` writes the row (`backlog`) and adds it to the schedule, a sorted set in
Redis. The promoter, an elected leader, moves due leads to the ready queue of their pool. Dialers run in any number
of processes. A dialer reserves a batch from a ready queue, each lead paired with a free line in the same atomic
script. In one transaction, it locks the rows that are still `backlog` and due, checks their eligibility, and
writes the Calls, the leads (`processing`) and an Event for each lead. After the commit, it requests the calls from
the provider, and records the responses in batches. The end of a call, reported by a webhook or a reconciler to
`voice.LeadCallHandler`, finishes the lead or gives it its next due time.

Eligibility: `eligibility.load_batch(leads, now)` reads, in a few statements, everything that the decisions of a
batch need (a `rules.eligibility.BatchContext`). Then the pure function `rules.eligibility.check_eligibility(lead,
campaign, batch)` returns for each lead one of

    Go()                        Call it now.
    Defer(until, reason)        It stays in the backlog with `due_at` = until (aware) and `reason` = a
                                rules.states.Reason. There is no Event, because the status does not change. A lead
                                held by a switch (a pause, a mode) is deferred far into the future;
                                `services.switches.release_leads()` releases it when the switch is lifted.
    End(outcome, reason)        It is `finished` with a rules.states.Outcome, and an Event is appended.

In a dry run, Go and End do not change the status: they are recorded in `simulated_outcome`, and the lead waits for
the end of the dry run. `go_live_preview` describes the effect of going live.

The context counts the eligible leads against the limits that span a batch. Pauses of pools and numbers are not
part of eligibility: the dialer reserves no line there. The pre-check runs after a first Go and before the lead is
locked again: the coroutine `precheck.run_precheck(lead, campaign)` also returns Go, Defer or End.

When a call has ended, `rules.retries.outcome_of_call(status, answered_by, bad_number)` returns an Outcome, and
`rules.retries.after_call(lead, campaign, outcome, now, chance)` returns Defer(until, Reason.RETRY) or End(outcome,
reason). Its campaign comes from `eligibility.campaigns(ids)`, and `chance` is a random number from 0 to 1, for
jitter.

A blocking provider client runs in threads that `thread_shares` divides among accounts; `response_writer` writes
the responses, and `retention` deletes old leads.

Invariants: the Call row is committed before the call is requested from the provider, at most once; a lead in
`processing` has exactly one attempt in progress, and its `token` is that Call's attempt number; a lead is not
called before `due_at` (its eligibility is checked up to LEADS_AHEAD_S before, as of `due_at`), nor while it is not
eligible; a line is always released. PostgreSQL is the source of truth: the schedule, the ready queues and the
record of what each dialer holds are rebuilt from it. Locks are taken in the order Lead → Call.
"""
