"""The connections of this process to the database."""

from __future__ import annotations

from django.db import connection, connections


def connect_anew() -> None:
    """Whoever asks for a connection from now on gets a new one, made as the settings are now."""
    connections.close_all()
    connection.close_pool()
