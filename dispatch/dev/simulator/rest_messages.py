"""Serve the REST API for messages."""

from __future__ import annotations

from aiohttp import web

from .errors import ApiError
from .formats import is_e164, is_plausible, is_service
from .messages import MAX_VALIDITY, Message, fate, send
from .params import WORLD, Form, authenticate, known_only
from .rest import BASE, PAGING, in_time, paged
from .trouble import answer_with_faults
from .world import Account, World

CREATE = {
    "To",
    "From",
    "Body",
    "StatusCallback",
    "ValidityPeriod",
    "MessagingServiceSid",
    "SmartEncoded",
    "ShortenUrls",
}
DATES = {f"DateSent{sign}" for sign in ("", "<", ">")}
LIST = {"To", "From"} | DATES | PAGING
MAX_LENGTH = 1600


def _check(world: World, account: Account, to: str, from_: str, body: str) -> None:
    if not to:
        raise ApiError(21604)
    if not from_:
        raise ApiError(21603)
    if not body:
        raise ApiError(21602)
    if len(body.encode("utf-16-le", errors="replace")) > 2 * MAX_LENGTH:
        raise ApiError(21617)
    if not is_e164(from_):
        raise ApiError(21212, from_)
    if not account.owns(from_):
        raise ApiError(21606, from_)
    if not is_e164(to) or not is_plausible(to):
        raise ApiError(21211, to)
    if not account.config.may_reach(to) or not account.config.has_profile_for(to):
        raise ApiError(21608, to)
    if (from_, to) in account.opted_out:
        raise ApiError(21610)
    text_fate = fate(world, to)
    if text_fate["do"] == "refuse":
        raise ApiError(int(text_fate.get("code", 21211)), to)


async def create_message(request: web.Request) -> web.StreamResponse:
    """Create a message."""
    world, account = request.app[WORLD], authenticate(request)
    form = await Form.read(request, CREATE)
    to, from_ = form.text("To"), form.text("From")

    def create() -> Message:
        callback = form.url("StatusCallback", 21609)
        _check(world, account, to, from_, form.text("Body"))
        validity = form.whole("ValidityPeriod", MAX_VALIDITY, 1, MAX_VALIDITY)
        service = form.text("MessagingServiceSid")
        if service and not is_service(service):
            raise ApiError(21705, service)
        return send(world, account, to, from_, form.text("Body"), callback, validity, service)

    return await answer_with_faults(request, "message", to, from_, create)


async def fetch_message(request: web.Request) -> web.StreamResponse:
    """Return one message."""
    world, account = request.app[WORLD], authenticate(request)
    message = world.messages.get(request.match_info["sid"])
    if message is None or message.account_sid != account.config.sid:
        raise ApiError(20404, f"message {request.match_info['sid']}")
    resource = message
    return await answer_with_faults(request, "fetch", resource.to, resource.from_, lambda: resource, status=200)


async def list_messages(request: web.Request) -> web.StreamResponse:
    """List the account's messages that match the query, newest first."""
    world, account = request.app[WORLD], authenticate(request)
    known_only(list(request.query), LIST)
    to, from_ = request.query.get("To", ""), request.query.get("From", "")
    matching = [
        message
        for message in world.messages.values()
        if message.account_sid == account.config.sid
        and to in ("", message.to)
        and from_ in ("", message.from_)
        and all(in_time(message.sent_date, name, request.query[name]) for name in DATES & set(request.query))
    ]
    page = paged(request, "messages", matching[::-1])
    return await answer_with_faults(request, "list", to, from_, lambda: page, status=200)


def add_routes(app: web.Application) -> None:
    """Add the routes for messages."""
    app.router.add_post(f"{BASE}/Messages.json", create_message)
    app.router.add_get(f"{BASE}/Messages.json", list_messages)
    app.router.add_get(f"{BASE}/Messages/{{sid}}.json", fetch_message)
