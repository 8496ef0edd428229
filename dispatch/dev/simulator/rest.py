"""Serve the REST API for calls and the account."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from aiohttp import web

from .calls import API_VERSION, IN_PROGRESS, TERMINAL, Call
from .errors import ApiError
from .formats import is_e164, is_plausible, is_premium, rfc2822
from .params import CREATE, WORLD, Form, authenticate, known_only, order_from
from .trouble import answer_with_faults
from .twiml import TwimlError, parse
from .world import Account, World

BASE = f"/{API_VERSION}/Accounts/{{account}}"
UPDATE = {
    "Status",
    "Url",
    "Method",
    "Twiml",
    "FallbackUrl",
    "FallbackMethod",
    "StatusCallback",
    "StatusCallbackMethod",
}
PAGING = {"PageSize", "Page", "PageToken"}
DATES = {f"{name}{sign}" for name in ("StartTime", "EndTime") for sign in ("", "<", ">")}
LIST = {"To", "From", "Status", "ParentCallSid"} | DATES | PAGING


def check_numbers(world: World, account: Account, to: str, from_: str) -> None:
    """Raise the ApiError with which the provider refuses this pair of numbers."""
    if not is_e164(from_):
        raise ApiError(21212, from_)
    if not account.owns(from_):
        raise ApiError(21210, f"{from_} is not a number of this account")
    if not is_e164(to):
        raise ApiError(21211, to)
    if not is_plausible(to):
        raise ApiError(21217, to)
    if is_premium(to):
        raise ApiError(21216, to)
    if not account.config.may_reach(to):
        raise ApiError(21219, to)
    if not account.config.has_profile_for(to):
        raise ApiError(21216, to)
    if not any(to.startswith(prefix) for prefix in account.config.countries):
        raise ApiError(21215, to)


async def create_call(request: web.Request) -> web.StreamResponse:
    """Create a call."""
    world, account = request.app[WORLD], authenticate(request)
    form = await Form.read(request, CREATE)
    world.asked[form.text("To")] += 1

    def create() -> Call:
        order = order_from(form)
        check_numbers(world, account, order.to, order.from_)
        code = world.handsets.refuses(order.to)
        if code is not None:
            raise ApiError(code, order.to)
        return world.engine.place(account, order)

    return await answer_with_faults(request, "create", form.text("To"), form.text("From"), create)


async def fetch_call(request: web.Request) -> web.StreamResponse:
    """Return one call."""
    account = authenticate(request)
    known_only(list(request.query), set())
    call = find_call(request.app[WORLD], account, request.match_info["sid"])
    return await answer_with_faults(request, "fetch", call.to, call.from_, lambda: call, status=200)


def find_call(world: World, account: Account, sid: str) -> Call:
    """Return the account's call. Raise ApiError 20404."""
    call = world.calls.get(sid)
    if call is None or call.account_sid != account.config.sid:
        raise ApiError(20404, f"call {sid}")
    return call


async def update_call(request: web.Request) -> web.StreamResponse:
    """Redirect, cancel or complete a call."""
    world, account = request.app[WORLD], authenticate(request)
    form = await Form.read(request, UPDATE)
    call = find_call(world, account, request.match_info["sid"])

    def update() -> Call:
        status = form.one_of("Status", {"canceled", "completed"})
        url, twiml = form.url("Url"), form.text("Twiml")
        if not status and not url and not twiml:
            raise ApiError(20001, "an update needs Status, Url or Twiml")
        if call.over:
            raise ApiError(21220)
        if status:
            world.engine.hang_up(call, status)
        else:
            _redirect(call, url, form.method("Method"), twiml)
        return call

    return await answer_with_faults(request, "update", call.to, call.from_, update, status=200)


def _redirect(call: Call, url: str, method: str, twiml: str) -> None:
    if call.status != IN_PROGRESS:
        raise ApiError(21220)
    if not url:
        try:
            parse(twiml)
        except TwimlError as error:
            raise ApiError(20001, f"Twiml: {error}") from None
    call.next_document = (url or call.order.url, method, "" if url else twiml)
    call.signal("redirect", by="api")


async def list_calls(request: web.Request) -> web.StreamResponse:
    """List the account's calls that match the query, newest first."""
    world, account = request.app[WORLD], authenticate(request)
    known_only(list(request.query), LIST)
    query = request.query
    status = query.get("Status", "")
    if status and status not in TERMINAL | {"queued", "ringing", "in-progress"}:
        raise ApiError(20001, f"Status={status!r}")
    to, from_ = query.get("To"), query.get("From")
    now = world.clock.now()
    matching = [
        call
        for call in (world.calls_to.get(to, []) if to else world.calls.values())
        if call.account_sid == account.config.sid
        and (not from_ or call.from_ == from_)
        and (not status or call.status == status)
        and now - call.created_at >= world.faults.list_lag(call.to, call.from_)
        and "ParentCallSid" not in query
        and all(_in_time(call, name, query[name]) for name in DATES & set(query))
    ]
    matching.reverse()
    page = paged(request, "calls", matching)
    return await answer_with_faults(request, "list", to or "", from_ or "", lambda: page, status=200)


def _in_time(call: Call, name: str, value: str) -> bool:
    return in_time(call.started_date if name.startswith("StartTime") else call.ended_date, name, value)


def in_time(stamp: float | None, name: str, value: str) -> bool:
    """Apply the provider's date filters: a day or a moment, with < for until and > for from."""
    try:
        moment = datetime.fromisoformat(value.replace("Z", "+00:00"))
    except ValueError:
        raise ApiError(20001, f"{name}={value!r} is not a date") from None
    moment = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
    if stamp is None:
        return False
    if name.endswith("<"):
        return stamp <= moment.timestamp()
    if name.endswith(">"):
        return stamp >= moment.timestamp()
    return datetime.fromtimestamp(stamp, UTC).date() == moment.date()


def paged(request: web.Request, name: str, items: list[Any]) -> dict[str, Any]:
    """Return one page of resources, newest first, in the provider's envelope."""
    query = request.query
    try:
        size, number = int(query.get("PageSize", "50")), int(query.get("Page", "0"))
    except ValueError:
        raise ApiError(20001, "Page and PageSize are whole numbers") from None
    if not 1 <= size <= 1000 or number < 0:
        raise ApiError(20001, f"PageSize={size} is not within 1 and 1000, or Page={number} below 0")
    start = number * size
    token = query.get("PageToken", "")
    if token:
        # A token names the last item of the previous page, so that new calls do not shift the pages.
        sids = [item.sid for item in items]
        last = token.removeprefix("PA")
        if last not in sids:
            raise ApiError(20001, f"PageToken={token!r}")
        start = sids.index(last) + 1
    chosen = items[start : start + size]
    more = len(items) > start + size

    def uri(page: int, after: str = "") -> str:
        kept = {k: v for k, v in query.items() if k not in PAGING}
        extra = {"PageToken": f"PA{after}"} if after else {}
        return str(request.rel_url.with_query({**kept, "PageSize": size, "Page": page, **extra}))

    return {
        name: [item.resource() for item in chosen],
        "first_page_uri": uri(0),
        "next_page_uri": uri(number + 1, chosen[-1].sid) if more else None,
        "previous_page_uri": uri(number - 1) if number else None,
        "page": number,
        "page_size": size,
        "start": start,
        "end": start + len(chosen) - 1 if chosen else 0,
        "uri": str(request.rel_url),
    }


async def fetch_account(request: web.Request) -> web.StreamResponse:
    """Return the account."""
    account = authenticate(request, active=False)
    sid = account.config.sid
    resource = {
        "sid": sid,
        "owner_account_sid": sid,
        "friendly_name": "Simulated account",
        "status": account.config.status,
        "type": account.config.type,
        "auth_token": account.config.auth_token,
        "date_created": rfc2822(0),
        "date_updated": rfc2822(0),
        "uri": f"/{API_VERSION}/Accounts/{sid}.json",
        "subresource_uris": {"calls": f"/{API_VERSION}/Accounts/{sid}/Calls.json"},
    }
    return await answer_with_faults(request, "account", "", "", lambda: resource, status=200)


def add_routes(app: web.Application) -> None:
    """Add the routes for calls and the account."""
    app.router.add_get(f"{BASE}.json", fetch_account)
    app.router.add_post(f"{BASE}/Calls.json", create_call)
    app.router.add_get(f"{BASE}/Calls.json", list_calls)
    app.router.add_get(f"{BASE}/Calls/{{sid}}.json", fetch_call)
    app.router.add_post(f"{BASE}/Calls/{{sid}}.json", update_call)
