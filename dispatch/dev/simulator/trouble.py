"""Apply active faults to REST requests: refuse, delay, or cut the connection before or after the work."""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import Awaitable, Callable
from typing import Any

from aiohttp import web

from .calls import Call
from .errors import ApiError
from .params import WORLD

MAX_EARLY_S = 60.0
# Header of every response: the requests of the account that were in progress.
CONCURRENCY = "Twilio-Concurrent-Requests"
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


async def answer_concurrently(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Handle the request, unless as many of its account are in progress as the account may have.

    Raise ApiError 20429, without a Retry-After, if so. The request was not processed.
    """
    account = request.app[WORLD].accounts.get(request.match_info.get("account", ""))
    if account is None:
        return await handler(request)
    if account.open_requests >= account.config.max_requests:
        raise ApiError(20429)
    account.open_requests += 1
    account.max_open_requests = max(account.max_open_requests, account.open_requests)
    in_progress = account.open_requests
    try:
        response = await handler(request)
    finally:
        account.open_requests -= 1
    response.headers[CONCURRENCY] = str(in_progress)
    return response


async def answer_with_faults(
    request: web.Request, on: str, to: str, from_: str, work: Callable[[], Any], *, status: int = 201
) -> web.StreamResponse:
    """Do `work` and respond with its resource, unless a fault intervenes."""
    world = request.app[WORLD]
    fault = world.faults.request(on, to, from_, request.match_info.get("account", ""))
    kind = fault.kind if fault else ""
    if fault is None:
        return _json(work(), status)
    if kind == "refuse":
        raise ApiError(fault.code, complaint=False)
    if kind == "rate_limit":
        raise ApiError(20429, headers={} if fault.seconds is None else {"Retry-After": f"{fault.seconds:g}"})
    if kind == "concurrency":
        raise ApiError(10004)
    if kind in {"error_500", "error_503"}:
        if fault.creates:
            work()
        raise ApiError(20500 if kind == "error_500" else 20503)
    if kind == "timeout_before":
        await world.pause(fault.span())
        return cut(request)
    if kind == "reset_before":
        return cut(request)
    done = work()
    if kind == "timeout_after":
        await world.pause(fault.span())
        return cut(request)
    if kind == "reset_after":
        return cut(request)
    # The response shows the state when the work was done, like a delayed packet.
    answer = _json(done, status)
    if kind == "slow":
        await world.pause(fault.span())
    if kind == "early" and isinstance(done, Call):
        delivered = done.delivered.setdefault(fault.event or "ringing", asyncio.Event())
        try:
            await asyncio.wait_for(delivered.wait(), MAX_EARLY_S)
        except TimeoutError:
            world.complain("simulator", f"no {fault.event} callback within {MAX_EARLY_S} s to be early", done)
    return answer


def _json(done: Any, status: int) -> web.Response:
    return web.json_response(done if isinstance(done, dict) else done.resource(), status=status)


def cut(request: web.Request) -> web.StreamResponse:
    """Reset the connection: the client gets no byte of a response."""
    transport = request.transport
    if transport is not None:
        sock = transport.get_extra_info("socket")
        if sock is not None:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        transport.abort()
    return web.Response(status=500)
