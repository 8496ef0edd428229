"""Place and receive calls and texts of every purpose: provider interface, Twilio adapter, signed webhooks.

Imports `capacity`, `accounts` and `core`. A slice that places calls registers a handler for its purpose
(`handlers`). `price_sql`: prices and what was spent. `number_health`: how the calls and texts of a number fared.

Invariants: The row is committed before the provider is asked. A Call has at most one possibly processed request. A
call's state only moves forward. Each provider event is stored once. A phone has at most one open call per
organization.
"""
