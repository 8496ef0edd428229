"""Contain the management commands of leads."""
