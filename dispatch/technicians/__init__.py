"""Manage technicians with their skills, shifts and positions, and find the technicians near a location.

Imports `accounts` and `core`. `live_offer_id`, `open_jobs` and `last_offered_at` change only through `services`,
inside a transaction of the jobs slice.

Invariants: A technician belongs to one organization. A position's cell always matches its coordinates.
"""
