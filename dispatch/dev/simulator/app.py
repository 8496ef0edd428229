"""Run the HTTP server: routes, error responses, start and clean stop."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path

from aiohttp import web

from . import control, control_phones, rest, rest_messages
from .calls import API_VERSION
from .errors import ApiError
from .params import WORLD
from .trouble import answer_concurrently
from .webhooks import is_loopback
from .world import World

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
SHUTDOWN_TIMEOUT_S = 1.0
BACKLOG = 1024


@web.middleware
async def provider_errors(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Return errors in the provider's JSON and record each. A mistake of the caller is a complaint."""
    if request.path.startswith("/control"):
        return await handler(request)
    try:
        return await answer_concurrently(request, handler)
    except ApiError as error:
        failure = error
    except web.HTTPNotFound:
        failure = ApiError(20404, request.path, complaint=True)
    except web.HTTPMethodNotAllowed:
        failure = ApiError(20004, f"{request.method} {request.path}")
    except web.HTTPRequestEntityTooLarge:
        failure = ApiError(20001, "the body is too large")
    except web.HTTPException:
        raise
    except Exception as error:  # never a stack trace for the client, and never silent
        if isinstance(error, ConnectionError) and (request.transport is None or request.transport.is_closing()):
            raise  # the client died while it sent the request
        failure = ApiError(20500, f"{type(error).__name__}: {error}", complaint=True)
    world = request.app[WORLD]
    world.rejections.append({"code": failure.code, "text": failure.message, "path": request.path})
    world.log(f"refused {request.method} {request.path.rsplit('/', 1)[-1]}: {failure.code}")
    if failure.complaint:
        world.complain("request", f"{failure.code} {failure.message} ({request.method} {request.path})")
    return web.json_response(failure.body(), status=failure.status, headers=failure.headers)


async def _index(request: web.Request) -> web.Response:
    return web.json_response({"what": "phone simulator", "rest": f"/{API_VERSION}/", "control": "/control/state"})


def build(world: World) -> web.Application:
    """Build the web application of a world. The world's client session lives as long as the application."""
    app = web.Application(middlewares=[provider_errors, control.control_errors], client_max_size=1 << 20)
    app[WORLD] = world
    app.router.add_get("/", _index)
    rest.add_routes(app)
    rest_messages.add_routes(app)
    control.add_routes(app)
    control_phones.add_routes(app)

    async def start(_: web.Application) -> None:
        await world.webhooks.open()

    async def stop(_: web.Application) -> None:
        world.closing.set()
        world.feed.wake()

    async def clean(_: web.Application) -> None:
        await world.stop_tasks()
        await world.webhooks.close()

    app.on_startup.append(start)
    app.on_shutdown.append(stop)
    app.on_cleanup.append(clean)
    return app


def listen(host: str, port: int) -> socket.socket:
    """Return a listening socket. Raises OSError."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    return socket.create_server((host, port), family=family, backlog=BACKLOG)


async def serve(world: World, listening: socket.socket, ready_file: str | None, leash: bool) -> None:
    """Serve until SIGTERM or SIGINT (or, on a leash, the end of standard input).

    Raise ValueError if the socket is not on loopback.
    """
    host = str(listening.getsockname()[0])
    if not is_loopback(host):
        raise ValueError(f"the simulator listens on loopback only, not on {host}")
    done = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, done.set)
    runner = web.AppRunner(build(world), access_log=None, shutdown_timeout=SHUTDOWN_TIMEOUT_S)
    await runner.setup()
    try:
        await web.SockSite(runner, listening, backlog=BACKLOG).start()
        bound = runner.addresses[0]
        shown = f"[{bound[0]}]" if ":" in bound[0] else bound[0]
        base_url = f"http://{shown}:{bound[1]}"
        if leash:
            loop.add_reader(sys.stdin.fileno(), _at_end_of_input, done)
        if ready_file:
            _announce(Path(ready_file), base_url)
        world.log(f"phone simulator at {base_url}")
        await done.wait()
    finally:
        await runner.cleanup()
        if ready_file:
            Path(ready_file).unlink(missing_ok=True)


def _at_end_of_input(done: asyncio.Event) -> None:
    if not os.read(sys.stdin.fileno(), 4096):
        asyncio.get_running_loop().remove_reader(sys.stdin.fileno())
        done.set()


def _announce(path: Path, base_url: str) -> None:
    # Written to a temporary file and renamed, so that readers never see a part of it.
    draft = path.with_name(path.name + ".draft")
    draft.write_text(json.dumps({"base_url": base_url, "pid": os.getpid()}))
    draft.rename(path)
