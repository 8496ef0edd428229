"""How much may happen at once: dispatch pools, provider accounts, outbound numbers and their lines, and rates.

Stands on `accounts` and `core`. Redis proposes a line, fast; the partial unique indexes on telephony's open
calls have the last word.

Keeps: a line or pool slot is a number, leased by an identified holder; releasing twice frees once; alerts go
before offers, offers before leads, by lines reserved per number; no rate is exceeded.
"""
