"""How the web process serves."""

from __future__ import annotations

from dispatch.core.webserver import prepared


def test_a_proxy_in_front_ends_idle_connections_first() -> None:
    """Else its next request meets one that is being ended, and somebody reads 502."""
    config, sockets = prepared(["--host", "127.0.0.1", "--port", "8123", "--trust-proxy", "10.0.0.0/8"])
    assert config.timeout_keep_alive > 120, "Caddy's; nginx and AWS have 60 s"
    assert (config.host, config.port, config.forwarded_allow_ips, sockets) == (
        "127.0.0.1", 8123, "10.0.0.0/8", None
    )  # fmt: skip
