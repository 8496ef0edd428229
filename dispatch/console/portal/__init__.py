"""Serve the portal, where a receiver sees the deliveries of its endpoints without an account.

`session` exchanges a link for a session cookie and checks it; `views` are the pages and what their buttons do.
"""
