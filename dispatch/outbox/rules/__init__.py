"""Decide the outbox's rules in pure functions: no database, no clock, no network.

`ordering` decides which message of a group is next, `responses` what a response means and when to retry,
`admission` how many messages a pool and a target may take, `endpoint_failures` when an endpoint is disabled,
`health` how an endpoint is doing, `states` which transitions are legal, and `descriptions` why a message waits.
`schemas` validates payloads, with the checks of `schema_keywords`; `conditions` filters them.
"""
