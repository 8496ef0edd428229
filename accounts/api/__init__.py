"""Serve the REST API of organizations, members and API keys, and define the base classes of every API."""
