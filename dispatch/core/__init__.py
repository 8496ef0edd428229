"""Provide the foundation of every slice.

It has the event log and its readers, the clock, leader election, Redis, the HTTP client, problem errors and
metrics. Core knows no slice and no organization model: organizations are plain ids here.

Invariants: an Event is written in the transaction of the change it records; readers see every event once, in (xid,
id) order; each leadership has one holder at a time, fenced by its epoch.
"""
