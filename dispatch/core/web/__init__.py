"""Serve HTTP: the web server, the ASGI handler, health checks and static files."""
