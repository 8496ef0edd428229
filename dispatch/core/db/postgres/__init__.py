"""Provide the database backend: Django's for PostgreSQL, with time limits and a pool that fails fast."""
