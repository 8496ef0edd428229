"""Provide the management commands of this app, one module each."""
