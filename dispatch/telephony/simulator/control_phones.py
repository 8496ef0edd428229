"""Control API: a person at a phone calls, or texts, one of our numbers."""

from __future__ import annotations

from aiohttp import web

from .calls import Order
from .config import NumberConfig
from .control import ControlError, object_of
from .formats import is_e164
from .handsets import check_behaviour
from .messages import receive
from .params import WORLD
from .webhooks import url_fault
from .world import Account, World


def _target(world: World, to: str) -> tuple[Account, NumberConfig]:
    for account in world.accounts.values():
        if to in account.numbers:
            return account, account.numbers[to]
    raise ControlError(404, f"{to} is not one of our numbers: PUT /control/numbers first")


def _person(request: web.Request) -> str:
    number = request.match_info["number"]
    if not is_e164(number):
        raise ControlError(400, f"{number} is not a phone number")
    return number


async def call_us(request: web.Request) -> web.Response:
    """POST {to, keys, hang_up}: the keys and the hang-up are those of an `answer` behaviour; none: by hand."""
    world, person = request.app[WORLD], _person(request)
    data = await object_of(request, {"to", "keys", "hang_up"})
    account, number = _target(world, str(data.pop("to", "")))
    fault = url_fault(number.voice_url, world.webhooks.allow_remote) if number.voice_url else "it has no voice_url"
    if fault:
        raise ControlError(409, f"{number.number} cannot be called: {fault}")
    behaviour = check_behaviour({"do": "answer" if data else "manual", **data})
    order = Order(
        to=number.number,
        from_=person,
        url=number.voice_url,
        method=number.voice_method,
        fallback_url=number.voice_fallback_url,
        status_callback=number.status_callback,
    )
    return web.json_response(world.engine.receive(account, order, behaviour).history(), status=201)


async def text_us(request: web.Request) -> web.Response:
    """POST {to, body}."""
    world, person = request.app[WORLD], _person(request)
    data = await object_of(request, {"to", "body"})
    account, number = _target(world, str(data.get("to", "")))
    message = receive(world, account, number.number, person, str(data.get("body", "")))
    return web.json_response(message.history(), status=201)


def add_routes(app: web.Application) -> None:
    app.router.add_post("/control/phones/{number}/call", call_us)
    app.router.add_post("/control/phones/{number}/text", text_us)
