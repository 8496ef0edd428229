"""Phone calls of every purpose: the provider interface, the Twilio adapter, signed webhooks, Call, and the
simulator. Stands on `capacity`, `accounts` and `core`; who places calls registers a purpose (`purposes`).

Keeps: the row is committed before the provider is asked; at most one possibly processed request per Call;
a call's state only moves forward; each provider event is stored once; one open call per phone and organization.
"""
