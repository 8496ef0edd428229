"""Manage this process's database connections."""

from __future__ import annotations

from django.db import connection, connections


def connect_anew() -> None:
    """Use new connections with the current settings from now on."""
    connections.close_all()
    connection.close_pool()
