"""Define the tests' RQ jobs, which leave a row for the test to see."""

import os
import sys

from django.db import connection
from rq import get_current_job

from dispatch.core import zips
from dispatch.core.models import EventCursor


def leave(name: str) -> None:
    EventCursor.objects.get_or_create(name=name)


def leave_if_loaded(name: str) -> None:
    """Leave the name if this process had loaded the ZIP codes before."""
    if zips.zip_position.cache_info().currsize:
        leave(name)


def fail(name: str) -> None:
    leave(name)
    raise ValueError(f"{name} fails on purpose")


def fail_once(name: str) -> None:
    """Fail, unless it has failed before."""
    if not EventCursor.objects.filter(name=name).exists():
        fail(name)


def break_connection(name: str) -> None:
    """End this worker's database connection, as a restarted server would."""
    leave(name)
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_terminate_backend(pg_backend_pid())")


def lose_itself(name: str) -> None:
    """Delete this job from Redis, as a flush would."""
    leave(name)
    job = get_current_job()
    assert job is not None
    job.connection.delete(job.key)


def die(name: str) -> None:
    leave(name)
    os._exit(9)


def leave_if_absent(module: str) -> None:
    """Leave the name of the module if this process has not imported it."""
    if module not in sys.modules:
        leave(module)
