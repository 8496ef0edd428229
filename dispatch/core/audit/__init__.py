"""Make the audit log tamper-evident: `chain` seals its events, `verification` checks them, `export` writes them.

The audit log is the part of the event log that is about access: members and their roles, keys, settings, limits,
retention and erasures (`chain.SUBJECTS`).
"""
