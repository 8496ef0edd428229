"""Run the web server, which `manage.py web` starts: uvicorn on an address or an inherited socket.

The supervisor holds that socket open, so that no connection is refused during a restart.
"""

from __future__ import annotations

import asyncio
import gc
import socket
from contextlib import suppress
from types import FrameType

import uvicorn

from dispatch.core.web.http_protocol import HeaderLimitProtocol

GRACE_S = 8  # seconds for open requests and sockets at shutdown
# Longer than proxies keep an idle connection (nginx and AWS 60 s, Caddy 120 s). If this side closed it first, the
# proxy could send a request at that moment, could not repeat it, and would return a 502.
IDLE_S = 150
# Maximum frame of a web socket, in bytes: clients send less than 100.
MAX_FRAME_BYTES = 16 * 1024
# How often the server updates the date in its responses. uvicorn looks ten times as often whether it should end.
TICK_S = 1.0


class Server(uvicorn.Server):
    """uvicorn's server, but a signal wakes it, so that an idle process need not look for one."""

    _event_loop: asyncio.AbstractEventLoop | None = None

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Listen, and collect garbage from now on, without what was loaded: it stays until the end."""
        await super().startup(sockets)
        gc.freeze()
        gc.enable()

    async def main_loop(self) -> None:
        """Serve until a signal arrives."""
        self._ended = asyncio.Event()
        self._event_loop = asyncio.get_running_loop()
        while not await self.on_tick(0):
            with suppress(TimeoutError):
                async with asyncio.timeout(TICK_S):
                    await self._ended.wait()

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Handle SIGINT and SIGTERM."""
        super().handle_exit(sig, frame)
        if self._event_loop is not None:
            self._event_loop.call_soon_threadsafe(self._ended.set)


def run_server(host: str, port: int, *, fd: int | None = None, trusted_proxies: str = "") -> None:
    """Serve on this address, or on the inherited listening socket `fd`, until a signal arrives.

    `trusted_proxies`: addresses of proxies whose X-Forwarded-For counts. The application is loaded without garbage
    collection, which would take a tenth of that time.
    """
    gc.disable()
    sockets = None if fd is None else [socket.socket(fileno=fd)]
    Server(configure_server(host, port, trusted_proxies)).run(sockets=sockets)


def configure_server(host: str, port: int, trusted_proxies: str = "") -> uvicorn.Config:
    """Return uvicorn's configuration."""
    return uvicorn.Config(
        "dispatch.asgi:application",
        host=host,
        port=port,
        http=HeaderLimitProtocol,
        lifespan="on",
        log_config=None,  # Django's settings configure the logs
        access_log=False,
        proxy_headers=bool(trusted_proxies),
        forwarded_allow_ips=trusted_proxies or None,
        timeout_keep_alive=IDLE_S,
        timeout_graceful_shutdown=GRACE_S,
        ws_max_size=MAX_FRAME_BYTES,
        ws_per_message_deflate=False,  # live updates are short: a compressor per socket costs more than it saves
    )
