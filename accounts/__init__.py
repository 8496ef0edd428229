"""Own organizations (tenants), users, roles, API keys and tenant isolation (`scoping`). Depends on `core` only.

Invariant: every row of every slice belongs to one organization, and no caller sees or references another
organization's rows.
"""
