"""Make the audit log tamper-evident: `chain` seals its events, `verification` checks them, `export` writes them.

The audit log is the part of the event log that is about access (`chain.SUBJECTS`): members and their roles, keys,
settings, limits, retention, erasures, and what superusers change outside of any organization. `signatures` signs
the rows that nobody without the keys may write, and `restarts` restarts a broken chain.
"""
