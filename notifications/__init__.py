"""Notify users about events: notifications, alerts with escalation, and live updates of open pages.

An event reader turns Events into Notification rows; a Channels consumer pushes them to open pages. The slices
below do not import this one; their Events are its only input.

Invariants: There is one notification per user and event. A job that becomes pending notifies every dispatcher of
its organization, or its admins if there are no dispatchers. An alert always reaches somebody.
"""
