"""Limit concurrency and rates: dispatch pools, provider accounts, outbound numbers and their lines.

Depends on `accounts` and `core`. Redis quickly proposes a line; the partial unique indexes on telephony's open
calls enforce the limit.

Invariants: a line or pool slot is a number, leased by an identified holder; releasing is idempotent; alerts have
priority over offers, and offers over leads, through lines reserved on each number; no rate is exceeded.
"""
