"""Classify database errors: is the server unavailable, is a row locked, may the same request succeed in a moment?

An error is one of psycopg, or of Django with psycopg's as its cause.
"""

from __future__ import annotations

import psycopg
from django.db import InterfaceError, InternalError, OperationalError
from psycopg import errors

# The server became a standby, or ended a transaction that was idle too long. psycopg reports these as internal
# errors.
_TEMPORARY_INTERNAL = (errors.ReadOnlySqlTransaction, errors.IdleInTransactionSessionTimeout)
# A limit of PostgreSQL that the same statement would exceed again.
_PERMANENT = (errors.ProgramLimitExceeded,)
# SQLSTATE classes of the whole server: connection, resources, shutdown.
_SERVER_CLASSES = ("08", "53", "57P", "58")
# Lock timeout, statement timeout, deadlock, serialization failure.
_CONFLICTS = ("55P03", "57014", "40P01", "40001")


def sqlstate(error: BaseException | None) -> str:
    """Return PostgreSQL's code of the error; empty if it has none."""
    return getattr(_original(error), "sqlstate", None) or ""


def is_temporary(error: BaseException | None) -> bool:
    """Return whether the database was unavailable, busy, locked, full or canceled this statement.

    It also refuses a prepared statement once after a migration (`is_stale_plan`).
    """
    original = _original(error)
    if isinstance(original, _PERMANENT):
        return False
    if is_stale_plan(error):
        return True
    if isinstance(error, InternalError | psycopg.InternalError):
        return isinstance(original, _TEMPORARY_INTERNAL)
    return isinstance(error, OperationalError | InterfaceError | psycopg.OperationalError | psycopg.InterfaceError)


def is_database_away(error: BaseException) -> bool:
    """Return whether the server or the connection failed, rather than one statement.

    A lock timeout concerns its row alone.
    """
    if isinstance(error, InterfaceError):
        return True
    if isinstance(error, InternalError):
        return isinstance(_original(error), _TEMPORARY_INTERNAL)
    if not isinstance(error, OperationalError):
        return False
    state = sqlstate(error)
    return not state or state.startswith(_SERVER_CLASSES)


def is_lock_timeout(error: BaseException | None) -> bool:
    """Return whether the error, or one that caused it, is a lock timeout."""
    while error is not None:
        if isinstance(error, psycopg.errors.LockNotAvailable):
            return True
        error = error.__cause__
    return False


def is_stale_plan(error: BaseException | None) -> bool:
    """Return whether the type of a column has changed that a prepared statement returns.

    PostgreSQL refuses the statement as long as the session lives. It runs when it is prepared again.
    """
    original = _original(error)
    # the code is that of everything PostgreSQL does not support, and the text is in the language of the server
    return (
        isinstance(original, errors.FeatureNotSupported)
        and original.diag.source_function == "RevalidateCachedQuery"
    )


def is_missing_reference(error: BaseException | None) -> bool:
    """Return whether a foreign key was violated: a saved row names a deleted one, or a deleted row is named."""
    return sqlstate(error) == "23503"


def is_duplicate(error: BaseException | None) -> bool:
    """Return whether a unique or an exclusion constraint was violated: there is such a row already."""
    return sqlstate(error) in ("23505", "23P01")


def is_conflict(error: BaseException | None) -> bool:
    """Return whether another session was in the way: a lock or statement timeout, or a deadlock."""
    return sqlstate(error) in _CONFLICTS


def _original(error: BaseException | None) -> BaseException | None:
    cause = error.__cause__ if error else None
    return cause if isinstance(cause, psycopg.Error) else error
