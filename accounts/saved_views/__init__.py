"""Saved views of the board: `models`, and `services`, the only code that changes them.

A personal view belongs to a user within one organization and disappears with their account. A shared view belongs
to the organization and stays when the person who shared it leaves.
"""
