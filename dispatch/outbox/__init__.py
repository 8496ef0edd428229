"""Deliver messages to HTTP endpoints, in order within a group.

The slice owns Endpoint, Message and Attempt, the poller that publishes pointers, the queues that carry them,
and the router that processes them. It depends on `capacity`, `accounts` and `core`, and never on jobs, leads or
schedules, which reach it through Events.

Invariants: at most one ordered message of a group is in flight; the order is (sequence, created, id); nothing
ordered is delivered after a block; a pointer's token is checked before anything is sent; every request goes
through `core`'s guarded HTTP client.
"""
