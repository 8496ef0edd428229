"""The outbox's decisions as pure functions: no database, no clock, no network.

`heads` says which message of a group is next, `calls` what an answer means and when to try again, `rooms` how much
a pool and a target may take, `words` why a message waits."""
