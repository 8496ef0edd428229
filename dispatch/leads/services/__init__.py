"""Change leads. No code outside this package changes them.

`intake`: writes and schedules rows. `claims`: turns ready leads into calls, or defers or ends them;
`claim_batches`: does so for one batch, in one transaction. `claim_failures`: handles a claim that fails.
`completion`: handles the end of a call. `actions`: applies the actions of users and clients. `do_not_call`:
maintains the do-not-call lists. `switches`: changes pauses and modes. `reconciliation`: corrects Redis and ends
stale claims.

Every function locks the Lead first, then the Call, checks its input against the rows, and changes nothing if the
input is late, repeated or out of order.
"""
