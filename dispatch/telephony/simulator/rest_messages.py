"""The REST API for messages."""

from __future__ import annotations

from aiohttp import web

from .errors import ApiError
from .formats import is_e164, is_plausible
from .messages import Message, fate, send
from .params import WORLD, Form, authenticate, known_only
from .rest import BASE, PAGING, paged
from .trouble import answer_with_faults
from .world import Account, World

CREATE = {"To", "From", "Body", "StatusCallback", "ValidityPeriod", "SmartEncoded", "ShortenUrls"}
LIST = {"To", "From"} | PAGING
LONGEST = 1600


def _check(world: World, account: Account, to: str, from_: str, body: str) -> None:
    if not to:
        raise ApiError(21604)
    if not from_:
        raise ApiError(21603)
    if not body:
        raise ApiError(21602)
    if len(body) > LONGEST:
        raise ApiError(21617)
    if not is_e164(from_):
        raise ApiError(21212, from_)
    if not account.owns(from_):
        raise ApiError(21606, from_)
    if not is_e164(to) or not is_plausible(to):
        raise ApiError(21211, to)
    if (from_, to) in account.opted_out:
        raise ApiError(21610)
    what = fate(world, to)
    if what["do"] == "refuse":
        raise ApiError(int(what.get("code", 21211)), to)


async def create_message(request: web.Request) -> web.StreamResponse:
    world, account = request.app[WORLD], authenticate(request)
    form = await Form.read(request, CREATE)
    to, from_ = form.text("To"), form.text("From")

    def create() -> Message:
        callback = form.url("StatusCallback", 21609)
        _check(world, account, to, from_, form.text("Body"))
        return send(world, account, to, from_, form.text("Body"), callback)

    return await answer_with_faults(request, "message", to, from_, create)


async def fetch_message(request: web.Request) -> web.StreamResponse:
    world, account = request.app[WORLD], authenticate(request)
    message = world.messages.get(request.match_info["sid"])
    if message is None or message.account_sid != account.config.sid:
        raise ApiError(20404, f"message {request.match_info['sid']}")
    found = message
    return await answer_with_faults(request, "fetch", found.to, found.from_, lambda: found, status=200)


async def list_messages(request: web.Request) -> web.StreamResponse:
    world, account = request.app[WORLD], authenticate(request)
    known_only(list(request.query), LIST)
    to, from_ = request.query.get("To", ""), request.query.get("From", "")
    found = [
        message
        for message in world.messages.values()
        if message.account_sid == account.config.sid and to in ("", message.to) and from_ in ("", message.from_)
    ]
    page = paged(request, "messages", found[::-1])
    return await answer_with_faults(request, "list", to, from_, lambda: page, status=200)


def add_routes(app: web.Application) -> None:
    app.router.add_post(f"{BASE}/Messages.json", create_message)
    app.router.add_get(f"{BASE}/Messages.json", list_messages)
    app.router.add_get(f"{BASE}/Messages/{{sid}}.json", fetch_message)
