"""Management commands for development."""
