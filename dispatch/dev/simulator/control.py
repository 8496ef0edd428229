"""Serve the control API under /control/, used by tests, the demo and the phones page."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from dataclasses import asdict
from typing import Any

from aiohttp import web

from .calls import IN_PROGRESS, RINGING, Call
from .config import account_from, number_from, timing_from
from .messages import check_fate
from .params import WORLD
from .world import Account, World

MAX_POLL_S = 60.0
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class ControlError(Exception):
    """An invalid request to the control API. `status` is the HTTP status of the response."""

    def __init__(self, status: int, message: str) -> None:
        self.status = status
        super().__init__(message)


async def body_of(request: web.Request) -> Any:
    """Return the JSON body; an empty body is an empty object."""
    text = await request.text()
    try:
        return json.loads(text) if text.strip() else {}
    except ValueError as error:
        raise ControlError(400, f"not JSON: {error}") from None


async def any_object_of(request: web.Request, what: str = "") -> dict[str, Any]:
    """Return the JSON body as an object with any keys. `what`: its contents, for the ControlError."""
    data = await body_of(request)
    if not isinstance(data, dict):
        raise ControlError(400, f"expected an object{what and ' of '}{what}")
    return data


async def object_of(request: web.Request, known: set[str]) -> dict[str, Any]:
    """Return the JSON body as an object with known keys only. Raise ControlError."""
    data = await body_of(request)
    if not isinstance(data, dict) or set(data) - known:
        raise ControlError(400, f"expected an object with {sorted(known)}; got {data!r}")
    return data


async def state(request: web.Request) -> web.Response:
    """Return the clock, the version of the last change, and counts."""
    world = request.app[WORLD]
    return web.json_response(
        {
            "now": world.clock.now(),
            "wall": world.clock.wall(),
            "speed": world.clock.speed,
            "manual": world.clock.manual,
            "seed": world.seed,
            "version": world.feed.version,
            "calls": len(world.calls),
            "live": sum(lines.live for lines in world.lines.values()),
            "complaints": len(world.complaints),
        }
    )


async def reset(request: web.Request) -> web.Response:
    """Clear calls, messages, scripts, faults and complaints."""
    world = request.app[WORLD]
    await world.reset()
    return web.json_response({"version": world.feed.version})


async def calls(request: web.Request) -> web.Response:
    """List the calls that match the query, newest last, with their history, or only the named `fields` of it."""
    world, query = request.app[WORLD], request.query
    chosen = world.calls_to.get(query["to"], []) if "to" in query else list(world.calls.values())
    wanted = [
        call
        for call in chosen
        if query.get("from", call.from_) == call.from_
        and query.get("phone", call.phone) == call.phone
        and query.get("status", call.status) == call.status
        and ("open" not in query or not call.over)
    ]
    limit, names = int(query.get("limit", "1000")), query.get("fields", "").split(",")
    found = [call.history() for call in wanted[-limit:]]
    if names != [""]:
        found = [{name: history[name] for name in names} for history in found]
    return web.json_response({"version": world.feed.version, "calls": found})


def call_of(request: web.Request) -> Call:
    """Return the call of the path. Raise ControlError 404."""
    call = request.app[WORLD].calls.get(request.match_info["sid"])
    if call is None:
        raise ControlError(404, f"no call {request.match_info['sid']}")
    return call


async def one_call(request: web.Request) -> web.Response:
    """Return one call with its history."""
    return web.json_response(call_of(request).history())


async def act(request: web.Request) -> web.Response:
    """Act on a call.

    answer, busy, reject, fail: while it rings. press, say: once it is answered. hang_up: once it is dialed.
    """
    call, action = call_of(request), request.match_info["action"]
    data = await object_of(request, {"keys", "text", "error_code", "sip"})
    if call.over or (action in {"answer", "busy", "reject", "fail"} and call.status != RINGING):
        raise ControlError(409, f"cannot {action}: the call is {call.status}")
    if action == "say":
        text = str(data.get("text", "")).strip()
        if call.status != IN_PROGRESS or not text:
            raise ControlError(409 if text else 400, f"cannot say {text!r}: the call is {call.status}")
        call.signal("speech", text=text, by="control")
    elif action == "press":
        if call.status != IN_PROGRESS:
            raise ControlError(409, f"cannot press: the call is {call.status}")
        keys = str(data.get("keys", ""))
        if not keys or set(keys) - set("0123456789*#ABCD"):
            raise ControlError(400, f"keys {keys!r}")
        for key in keys:
            call.signal("key", key=key, by="control")
    else:
        details = {k: data[k] for k in ("error_code", "sip") if k in data}
        call.signal(action, by="control", **details)
    for _ in range(3):
        await asyncio.sleep(0)
    return web.json_response(call.history())


async def messages(request: web.Request) -> web.Response:
    """List the texts that match the query."""
    world, query = request.app[WORLD], request.query
    matching = [
        message.history()
        for message in world.messages.values()
        if query.get("to", message.to) == message.to and query.get("from", message.from_) == message.from_
    ]
    return web.json_response({"version": world.feed.version, "messages": matching})


async def lines(request: web.Request) -> web.Response:
    """Return the open and live calls of each caller number, and the maximum of both."""
    return web.json_response(request.app[WORLD].lines_json())


async def creates(request: web.Request) -> web.Response:
    """Return for each called number the create requests received and the calls created."""
    world = request.app[WORLD]
    numbers = set(world.asked) | set(world.created)
    return web.json_response(
        {n: {"asked": world.asked.get(n, 0), "created": world.created.get(n, 0)} for n in sorted(numbers)}
    )


async def complaints(request: web.Request) -> web.Response:
    """Return complaints and rejections. DELETE clears the complaints."""
    world = request.app[WORLD]
    if request.method == "DELETE":
        world.complaints.clear()
    return web.json_response({"complaints": world.complaints, "rejections": list(world.rejections)})


async def faults(request: web.Request) -> web.Response:
    """GET lists the faults, POST adds one, DELETE removes one or all."""
    world = request.app[WORLD]
    if request.method == "POST":
        return web.json_response(world.faults.add(await body_of(request)).json(), status=201)
    if request.method == "DELETE":
        world.faults.remove(int(request.match_info["id"]) if "id" in request.match_info else None)
    return web.json_response({"faults": [fault.json() for fault in world.faults.all()]})


async def handsets(request: web.Request) -> web.Response:
    """GET or PUT {number: behavior or list}. PUT sets all of them, or none if one is invalid."""
    world = request.app[WORLD]
    if request.method == "PUT":
        data = await any_object_of(request, "number: behavior")
        for number, behaviours in data.items():
            world.handsets.set(number, behaviours)
    elif request.method == "DELETE":
        world.handsets.forget(request.match_info["number"])
    return web.json_response(world.handsets.all())


async def texts(request: web.Request) -> web.Response:
    """GET or PUT {number: how texts to it end}."""
    world = request.app[WORLD]
    if request.method == "PUT":
        data = await any_object_of(request, "number: how texts end")
        world.texts.update({number: check_fate(text_fate) for number, text_fate in data.items()})
    return web.json_response(world.texts)


async def accounts(request: web.Request) -> web.Response:
    """GET lists the accounts. PUT adds or replaces one."""
    world = request.app[WORLD]
    if request.method == "PUT":
        config = account_from(await body_of(request))
        known = world.accounts.get(config.sid)
        numbers = {number.number: number for number in config.numbers}
        if known is None:
            world.accounts[config.sid] = Account(config, numbers)
        else:
            known.config, known.numbers = config, numbers
    return web.json_response([account_json(world, account) for account in world.accounts.values()])


def account_json(world: World, account: Account) -> dict[str, Any]:
    """Return an account as the control API shows it."""
    data = asdict(account.config)
    data["numbers"] = [asdict(number) for number in account.numbers.values()]
    data["open_calls"] = account.open_calls
    data["open_requests"] = account.open_requests
    data["max_open_requests"] = account.max_open_requests
    return data


async def timing(request: web.Request) -> web.Response:
    """GET the durations, or PUT some of them."""
    world = request.app[WORLD]
    if request.method == "PUT":
        data = await any_object_of(request, "durations")
        world.set_timing(timing_from({**asdict(world.timing), **data}))
    return web.json_response(asdict(world.timing))


async def numbers(request: web.Request) -> web.Response:
    """PUT {account (default: the first), number, voice_url, sms_url, ...}: add or change a number."""
    world = request.app[WORLD]
    data = await any_object_of(request)
    sid = data.pop("account", next(iter(world.accounts)))
    if sid not in world.accounts:
        raise ControlError(404, f"no account {sid}")
    number = number_from(data)
    world.accounts[sid].numbers[number.number] = number
    return web.json_response(asdict(number))


async def clock(request: web.Request) -> web.Response:
    """Return the time. POST {advance: seconds} moves a manual clock first."""
    world = request.app[WORLD]
    if request.method == "POST":
        data = await object_of(request, {"advance"})
        await world.clock.advance(float(data.get("advance", 0)), world.settle)
    return web.json_response({"now": world.clock.now(), "wall": world.clock.wall(), "manual": world.clock.manual})


async def changes(request: web.Request) -> web.Response:
    """Long poll: return changes after version `after`, at once or within `wait` real seconds."""
    feed = request.app[WORLD].feed
    after, wait = int(request.query.get("after", "0")), float(request.query.get("wait", "0"))
    changed = await feed.wait(after, min(wait, MAX_POLL_S))
    return web.json_response({"version": feed.version, "changes": changed})


async def stream(request: web.Request) -> web.StreamResponse:
    """Stream server-sent events: one per change, from `after` (default: now)."""
    world = request.app[WORLD]
    response = web.StreamResponse(headers={"Content-Type": "text/event-stream", "Cache-Control": "no-store"})
    await response.prepare(request)
    seen = int(request.query.get("after", request.headers.get("Last-Event-ID", world.feed.version)))
    try:
        while not world.closing.is_set():
            for change in await world.feed.wait(seen, 15.0):
                seen = change["version"]
                line = f"id: {seen}\nevent: {change['kind']}\ndata: {json.dumps(change)}\n\n"
                await response.write(line.encode())
            await response.write(b": still here\n\n")
    except (ConnectionResetError, asyncio.CancelledError):
        pass
    return response


@web.middleware
async def control_errors(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Return errors of the control API as JSON with one `error`."""
    if not request.path.startswith("/control"):
        return await handler(request)
    try:
        return await handler(request)
    except ControlError as error:
        return web.json_response({"error": str(error)}, status=error.status)
    except (ValueError, TypeError, KeyError) as error:
        return web.json_response({"error": str(error)}, status=400)


def add_routes(app: web.Application) -> None:
    """Add the routes of the control API."""
    add = app.router.add_route
    add("GET", "/control/state", state)
    add("POST", "/control/reset", reset)
    add("GET", "/control/calls", calls)
    add("GET", "/control/calls/{sid}", one_call)
    add("POST", "/control/calls/{sid}/{action:answer|press|say|hang_up|busy|reject|fail}", act)
    add("GET", "/control/messages", messages)
    add("GET", "/control/lines", lines)
    add("GET", "/control/creates", creates)
    for method in ("GET", "DELETE"):
        add(method, "/control/complaints", complaints)
    for method in ("GET", "POST", "DELETE"):
        add(method, "/control/faults", faults)
    add("DELETE", "/control/faults/{id:[0-9]+}", faults)
    for path, handler in (("handsets", handsets), ("texts", texts), ("accounts", accounts), ("timing", timing)):
        add("GET", f"/control/{path}", handler)
        add("PUT", f"/control/{path}", handler)
    add("DELETE", "/control/handsets/{number}", handsets)
    add("PUT", "/control/numbers", numbers)
    add("GET", "/control/clock", clock)
    add("POST", "/control/clock", clock)
    add("GET", "/control/changes", changes)
    add("GET", "/control/events", stream)
