"""Who must know what, and how they hear of it: Notification, the event reader that writes them, and the Channels
consumer that shows them live. Stands on the slices below; they tell it things only by Events.

Keeps: one notification per user and event; a job that turns pending reaches every Dispatcher of its
organization, and when there is none, its Admins: never nobody.
"""
