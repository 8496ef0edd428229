"""Decide the leads' rules in pure functions: no database, no clock, no network.

`eligibility`: whether a lead is called now. `retries`: what follows the end of its call; also the facts and
verdicts of the rules. `calling_hours`, `geography`: when a person may be called, and where they are. `script`:
what a call says. `states`, `descriptions`: the enums and their texts.
"""
