"""Provide helpers for tests: database, caches, connections, waiting, factories and processes."""
