"""Development tools: simulator, demo, phones page, embedded servers and the stack of `make up`.

Nothing imports this package except `manage.py` and the settings. `manage.py up` runs in production, too.
"""
