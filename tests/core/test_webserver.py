"""Serve the web process behind a proxy."""

from __future__ import annotations

import asyncio
import gc
from typing import Any

import uvicorn

from dispatch.core.web.server import Server, configure_server


def test_a_proxy_in_front_ends_idle_connections_first() -> None:
    """Otherwise its next request meets a connection that is being closed, and the client gets a 502."""
    config = configure_server("127.0.0.1", 8123, "10.0.0.0/8")
    assert config.timeout_keep_alive > 120, "Caddy's; nginx and AWS have 60 s"
    assert (config.host, config.port, config.forwarded_allow_ips) == ("127.0.0.1", 8123, "10.0.0.0/8")


def test_collections_begin_when_the_server_listens_and_never_visit_what_was_loaded() -> None:
    loaded: list[Any] = [[]]
    gc.disable()
    try:
        asyncio.run(_start_and_stop())
        assert gc.isenabled()
    finally:
        gc.enable()
    assert not any(known is loaded for known in gc.get_objects())


async def _start_and_stop() -> None:
    config = uvicorn.Config(_refuse, port=0, lifespan="off", log_config=None)
    config.load()
    server = Server(config)
    server.lifespan = config.lifespan_class(config)
    await server.startup()
    await server.shutdown()


async def _refuse(scope: Any, receive: Any, send: Any) -> None:
    raise AssertionError("No request was made.")
