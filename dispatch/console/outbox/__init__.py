"""Show the outbox's pages: groups and what blocks them, messages and their attempts, the health of endpoints.

`queries` reads the data, `groups`, `messages` and `endpoints` are the pages, and `actions` passes user actions to
the outbox's services. Permissions are those of the API: both roles act on messages and pause, resume and test
endpoints; only admins disable and enable them.
"""
