"""Messages delivered to HTTP endpoints, in order within a group: Endpoint, Message, Attempt; the poller that
publishes pointers, the queues that carry them, and the router that works them off.

Stands on `capacity`, `accounts` and `core`; never on jobs, leads or schedules, which reach it by Events.

Keeps: at most one ordered message of a group is in flight; order is (sequence, created, id); nothing ordered is
delivered after a block; a pointer's token is checked before anything is sent; no request leaves but through
`core`'s guarded HTTP client.
"""
