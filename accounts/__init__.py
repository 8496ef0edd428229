"""Organizations (tenants), users, their roles, API keys, and the one shared place that keeps tenants apart
(`scoping`). Stands on `core` only.

Keeps: every row of every slice belongs to one organization, and nobody sees or names another's.
"""
