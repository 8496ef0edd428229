"""Define the tests' RQ jobs, which leave a row for the test to see."""

import os

from django.db import connection

from dispatch.core.models import EventCursor


def leave(name: str) -> None:
    EventCursor.objects.get_or_create(name=name)


def fail(name: str) -> None:
    leave(name)
    raise ValueError(f"{name} fails on purpose")


def break_connection(name: str) -> None:
    """End this worker's database connection, as a restarted server would."""
    leave(name)
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_terminate_backend(pg_backend_pid())")


def die(name: str) -> None:
    leave(name)
    os._exit(9)
