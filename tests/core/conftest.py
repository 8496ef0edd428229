"""Provide a database without tables."""

from __future__ import annotations

import secrets
from collections.abc import Iterator

import psycopg
import pytest
from psycopg import sql

from tests.support.processes import database_url


@pytest.fixture
def empty_database() -> Iterator[str]:
    name = f"test_migrations_{secrets.token_hex(4)}"
    with psycopg.connect(database_url("postgres"), autocommit=True) as server:
        server.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(name)))
        yield name
        server.execute(sql.SQL("DROP DATABASE {} WITH (FORCE)").format(sql.Identifier(name)))
