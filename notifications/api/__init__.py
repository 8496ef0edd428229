"""REST API for notifications, alerts and their configuration."""
