"""Change the outbox's state, in transactions; no other package does.

`intake` accepts messages, `scheduling` selects and claims what is next, `attempts` and `attempt_results` start
and finish one attempt, `recovery` recovers stuck messages, `actions` applies user actions, `target_health`
records the health of targets, `endpoints` manages endpoints, and `retention` deletes old messages.
"""
