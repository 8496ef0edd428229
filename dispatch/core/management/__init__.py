"""Provide the management commands of this app."""
