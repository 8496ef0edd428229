"""The web process itself, as `manage.py web` starts it: uvicorn on an address, or on a socket that the supervisor
holds open, so that nobody is refused while the process is started again."""

from __future__ import annotations

import argparse
import socket
from collections.abc import Sequence

import uvicorn

GRACE_S = 8  # for requests and sockets that are open at the end
# Longer than proxies in front keep an idle connection (nginx and AWS 60 s, Caddy 120 s): were it ended here first,
# the proxy could send a request into it at that very moment, which it may not repeat, and would answer 502.
IDLE_S = 150


def main() -> None:
    config, sockets = prepared()
    uvicorn.Server(config).run(sockets=sockets)


def prepared(arguments: Sequence[str] | None = None) -> tuple[uvicorn.Config, list[socket.socket] | None]:
    """What is to be served, and the inherited sockets, if any."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=8000)
    parser.add_argument("--fd", type=int, help="an inherited listening socket, instead of an address")
    parser.add_argument("--trust-proxy", default="", help="addresses whose X-Forwarded-For is believed")
    given = parser.parse_args(arguments)
    config = uvicorn.Config(
        "dispatch.asgi:application",
        host=given.host,
        port=given.port,
        lifespan="on",
        log_config=None,  # Django's settings configure the logs
        access_log=False,
        proxy_headers=bool(given.trust_proxy),
        forwarded_allow_ips=given.trust_proxy or None,
        timeout_keep_alive=IDLE_S,
        timeout_graceful_shutdown=GRACE_S,
        ws_per_message_deflate=False,  # hints are short: a compressor for each socket costs more than it saves
    )
    return config, None if given.fd is None else [socket.socket(fileno=given.fd)]


if __name__ == "__main__":
    main()
