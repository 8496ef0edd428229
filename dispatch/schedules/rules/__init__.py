"""Decide the rules of schedules in pure functions.

`recurrence` decides when a schedule runs, `due` what to do with a due occurrence, and `outcomes` the result of an
attempt. `states` says which transitions of a run are legal. `descriptions` describes a timing in words.
"""
