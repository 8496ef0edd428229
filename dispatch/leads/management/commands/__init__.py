"""Provide the management commands of leads."""
