"""Outbound calls to leads at their due time: Campaign, Lead; promoter, dialers, reconcilers.

Stands on `telephony`, `capacity`, `accounts` and `core`; never on jobs, outbox or schedules.

The way of a lead: `services.intake` writes the row (`backlog`) and puts it into the schedule, one sorted set in
Redis. The promoter, elected, moves what is due into a ready room for each pool. A dialer (any number of
processes) takes a batch out of a room, each lead paired with a free line in the same atomic script; in one
transaction it locks the rows that are still `backlog` and due, asks the gates, and writes the Calls, the leads
(`processing`) and one Event each; after the commit it asks the provider, and writes the outcomes in batches. The
end of the call, told by webhook or reconciler to `calls.LeadCalls`, finishes the lead or gives it a next time.

How a gate is called: `gating.read(leads, now)` reads, in a few statements, whatever the decisions of a whole
batch need (`rules.facts.Context`: its `campaigns` by id, and what only the gates know); then
`rules.gates.decide(lead, campaign, context)` is asked for each lead in turn, pure, and answers one of

    Go()                        call it now
    Defer(until, reason)        stays in the backlog; `due_at` = until (aware), `reason` = a rules.words.Reason.
                                No Event: a deferral is no change of status. What waits for a person (a pause, a
                                mode) is put far off; whoever lifts it calls `services.releasing.release()`.
    End(outcome, reason)        `finished` with a rules.words.Outcome, and one Event

The context may count what it let through against limits that span a batch. Pauses of pools and numbers are no
gate: the dialer takes no line there. The HTTP question is asked after a first Go and before the lead is locked
again: `prechecks.ask(lead, campaign)`, a coroutine, answers the same three.

When a call has ended: `rules.retries.outcome_of_call(status, answered_by, bad_number)` gives an Outcome, and
`rules.retries.after_call(lead, campaign, outcome, now, chance)` (the campaign of `gating.campaigns(ids)`;
`chance` a random number from 0 to 1, for jitter) answers Defer(until, Reason.RETRY) or End(outcome, reason).

Keeps: the Call row is committed before the provider is asked, and asked for at most once; a lead in `processing`
has exactly one attempt under way, and its `token` is that Call's attempt number; a lead is not called before
`due_at` (it is judged as of then, up to LEADS_AHEAD_S before), nor while a gate says no; a line is given back
whatever happens. Postgres is the truth: the schedule, the rooms and the record of who holds what are rebuilt from
it. Locks are taken in the order Lead → Call."""
