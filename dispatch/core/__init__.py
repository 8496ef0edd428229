"""What every slice stands on: the event log and its readers, the clock, leader election, Redis, problem errors,
metrics, embedded servers. Knows no slice and no organization model: organizations are plain ids here.

Keeps: an Event is written in the transaction of the change it tells of; readers see every event once, in
(xid, id) order; one holder per leadership at a time, fenced by its epoch.
"""
