"""Technicians, their skills, shifts and positions, and who of them is near.

Stands on `accounts` and `core`. `live_offer_id`, `open_jobs` and `last_offered_at` are changed only through
`services`, inside the jobs transaction.

Keeps: a technician is of one organization; the position's cell always agrees with its coordinates.
"""
