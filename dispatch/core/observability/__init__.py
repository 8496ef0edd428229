"""Provide logging and metrics."""
