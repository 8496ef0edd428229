"""Serve the control API for phones that call or text the accounts' numbers."""

from __future__ import annotations

from itertools import islice
from typing import Any

from aiohttp import web

from .calls import Call, Order
from .config import NumberConfig
from .control import ControlError, object_of
from .formats import is_e164
from .handsets import check_behaviour
from .messages import receive
from .params import WORLD
from .webhooks import url_fault
from .world import Account, World

# How far back to look for a phone's calls and texts, and how many to return.
LATEST, SHOWN_CALLS, SHOWN_TEXTS = 2000, 2, 12


# What the provider reports about the caller's number. Without a signature, it reports nothing.
VERSTAT = {
    "A": "TN-Validation-Passed-A",
    "B": "TN-Validation-Passed-B",
    "C": "TN-Validation-Passed-C",
    "failed": "TN-Validation-Failed-A",
    "none": "",
}


def _target(world: World, to: str) -> tuple[Account, NumberConfig]:
    for account in world.accounts.values():
        if to in account.numbers:
            return account, account.numbers[to]
    raise ControlError(404, f"{to} is not a number of an account: PUT /control/numbers first")


def _person(request: web.Request) -> str:
    number = request.match_info["number"]
    if not is_e164(number):
        raise ControlError(400, f"{number} is not a phone number")
    return number


async def call_us(request: web.Request) -> web.Response:
    """POST {to, keys, hang_up, attestation}: call a number.

    `keys` and `hang_up`: as in an `answer` behavior; without them, operated manually. `attestation`: A (the
    default), B, C, failed or none, as for a forged caller id.
    """
    world, person = request.app[WORLD], _person(request)
    data = await object_of(request, {"to", "keys", "hang_up", "attestation"})
    verstat = VERSTAT.get(str(data.pop("attestation", "A")))
    if verstat is None:
        raise ControlError(400, f"attestation must be one of {', '.join(VERSTAT)}")
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
        verstat=verstat,
    )
    return web.json_response(world.engine.receive(account, order, behaviour).history(), status=201)


async def text_us(request: web.Request) -> web.Response:
    """POST {to, body}: send a text."""
    world, person = request.app[WORLD], _person(request)
    data = await object_of(request, {"to", "body"})
    account, number = _target(world, str(data.get("to", "")))
    message = receive(world, account, number.number, person, str(data.get("body", "")))
    return web.json_response(message.history(), status=201)


async def take(request: web.Request) -> web.Response:
    """POST: stop the phone's own behavior, including in current calls; `release` undoes it."""
    world, person = request.app[WORLD], _person(request)
    if request.match_info["action"] == "release":
        world.handsets.release(person)
    else:
        world.handsets.take(person)
        for call in _calls_of(world, person):
            if not call.over and call.script is not None:
                call.script.silence()
                call.behaviour = {"do": "manual"}
    world.feed.publish({"kind": "phone", "phone": person})
    return web.json_response({"taken": person in world.handsets.taken})


async def phones(request: web.Request) -> web.Response:
    """List every phone with calls or texts: taken or not, behavior, latest calls and texts."""
    world = request.app[WORLD]
    by_number: dict[str, dict[str, Any]] = {}

    def phone(number: str) -> dict[str, Any]:
        return by_number.setdefault(
            number,
            {
                "taken": number in world.handsets.taken,
                "does": world.handsets.does(number),
                "calls": [],
                "texts": [],
            },
        )

    for number in [*world.handsets.all(), *world.handsets.taken]:
        phone(number)
    for call in islice(reversed(world.calls.values()), LATEST):
        calls = phone(call.phone)["calls"]
        if len(calls) < SHOWN_CALLS:
            calls.append(_brief(call))
    for message in islice(reversed(world.messages.values()), LATEST):
        theirs = message.direction == "inbound"
        texts = phone(message.from_ if theirs else message.to)["texts"]
        if len(texts) < SHOWN_TEXTS:
            texts.append(
                {
                    "sid": message.sid,
                    "theirs": theirs,
                    "number": message.to if theirs else message.from_,
                    "body": message.body,
                    "status": message.status,
                    "at": message.created_date,
                }
            )
    return web.json_response({"version": world.feed.version, "phones": by_number})


def _brief(call: Call) -> dict[str, Any]:
    return {
        "sid": call.sid,
        "inbound": call.direction == "inbound",
        "number": call.to if call.direction == "inbound" else call.from_,
        "status": call.status,
        "over": call.over,
        "asking": call.asking,
        "said": [words["text"] for words in call.said],
        "voice": call.said[-1]["voice"] if call.said else "",
        "language": call.said[-1]["language"] if call.said else "",
        "ssml": [words["ssml"] for words in call.said if words["ssml"]],
        "keys": "".join(key["key"] for key in call.keys),
        "ended_by": call.ended_by,
        "at": call.created_date,
        "ended_at": call.ended_date,
    }


def _calls_of(world: World, person: str) -> list[Call]:
    return [call for call in islice(reversed(world.calls.values()), LATEST) if call.phone == person]


def add_routes(app: web.Application) -> None:
    """Add the routes of the control API for phones."""
    app.router.add_get("/control/phones", phones)
    app.router.add_post("/control/phones/{number}/{action:take|release}", take)
    app.router.add_post("/control/phones/{number}/call", call_us)
    app.router.add_post("/control/phones/{number}/text", text_us)
