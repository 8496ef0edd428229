"""The outbox's pages: groups and what blocks them, messages and their attempts, the health of endpoints.

`reading` asks, `groups`, `messages` and `endpoints` show, `acting` hands what people do to the outbox's services.
Who may do what is what the API says: both roles act on messages, pause, resume and try out endpoints; an Admin
disables and enables them."""
