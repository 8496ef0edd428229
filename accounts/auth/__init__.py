"""Authenticate, authorize and throttle callers."""
