"""Sign members in by their organization's OpenID Connect provider.

`models`: its configuration. `provider`: the requests to it, through the guarded client (`requests_session`).
`id_tokens`: verification. `admission`: whom a verified identity may sign in. `sessions`: what such a session may
do. `starts`: only a form of this site begins a sign-in. `services`: changes of the configuration. `views`: the
pages.
"""
