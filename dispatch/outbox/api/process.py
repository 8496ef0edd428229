"""Where a router posts a pointer: ours calls the same by a function, somebody's own comes here.

    POST /api/v1/dispatch/process/          body: the pointer, as it came from the queue
    200 {"ack": true}                       done with: acknowledge it
    200 {"ack": false, "delaySeconds": 5}   nothing happened: hand it in again after that time
    400, 401                                no pointer, or a token that is not good for it: nothing was touched

A router that hangs up before the answer ends nothing: the call goes on and its result is written.

The token in the pointer is the authorization; `Authorization: Bearer <token>` may carry it instead of the body.
"""

from __future__ import annotations

import asyncio
import json

import structlog
from django.conf import settings
from django.db import DatabaseError
from django.http import HttpRequest, HttpResponse, JsonResponse
from django.views.decorators.csrf import csrf_exempt

from dispatch.core import problems
from dispatch.core.ids import read_id
from dispatch.outbox import processing
from dispatch.outbox.pointer import BadToken
from dispatch.outbox.services.starting import Refused

log = structlog.get_logger(__name__)

AGAIN_S = 5
# While the outbox is switched off nobody is called.
OFF_S = 60
LONGEST_BODY = 16_384
_under_way: set[asyncio.Future[Refused | None]] = set()


@csrf_exempt
async def process(request: HttpRequest) -> HttpResponse:
    """See the module."""
    if request.method != "POST":
        return problems.response(405, "method_not_allowed", "Post a pointer.")
    found = _read(request)
    if found is None:
        return problems.response(400, "parse_error", "The body is not a pointer.")
    if not settings.OUTBOX_ENABLED:
        return JsonResponse({"ack": False, "delaySeconds": OFF_S})
    work = asyncio.ensure_future(processing.shared().process(*found))
    _under_way.add(work)
    work.add_done_callback(_ended)
    message_id, _ = found
    try:
        refused = await asyncio.shield(work)
    except BadToken as error:
        log.warning("a pointer's token was refused", message=message_id, reason=str(error))
        return problems.response(401, "not_authenticated", "The token is not good for this message.")
    except DatabaseError as error:
        log.warning("the database is away, the router asks again", error=str(error).strip())
        return JsonResponse({"ack": False, "delaySeconds": AGAIN_S})
    return JsonResponse({"ack": True, "result": refused.name.lower() if refused else "called"})


def _ended(work: asyncio.Future[Refused | None]) -> None:
    _under_way.discard(work)
    if not work.cancelled():
        work.exception()  # told to the router, if it still listens; a call without a result is recovered


def _read(request: HttpRequest) -> tuple[str, str] | None:
    """(message id, token), or None when there is no such thing in the request."""
    if len(request.body) > LONGEST_BODY:
        return None
    try:
        said = json.loads(request.body)
    except (ValueError, RecursionError):
        return None
    if not isinstance(said, dict):
        return None
    message_id, token = said.get("id"), said.get("authToken")
    scheme, _, bearer = request.headers.get("Authorization", "").partition(" ")
    if token is None and scheme.lower() == "bearer":
        token = bearer.strip()
    if not isinstance(message_id, str) or read_id(message_id) is None:
        return None
    return message_id, token if isinstance(token, str) else ""
