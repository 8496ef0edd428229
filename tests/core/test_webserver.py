"""Serve the web process behind a proxy."""

from __future__ import annotations

from dispatch.core.web.server import prepare_server


def test_a_proxy_in_front_ends_idle_connections_first() -> None:
    """Otherwise its next request meets a connection that is being closed, and the client gets a 502."""
    config, sockets = prepare_server(["--host", "127.0.0.1", "--port", "8123", "--trust-proxy", "10.0.0.0/8"])
    assert config.timeout_keep_alive > 120, "Caddy's; nginx and AWS have 60 s"
    assert (config.host, config.port, config.forwarded_allow_ips, sockets) == (
        "127.0.0.1", 8123, "10.0.0.0/8", None
    )  # fmt: skip
