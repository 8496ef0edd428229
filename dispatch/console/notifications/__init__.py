"""A user's own pages: their notifications (`inbox`) and notification settings (`preferences`).

Actions go to `notifications.services`. Nobody sees another user's notifications or settings.
"""
