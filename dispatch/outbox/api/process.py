"""Process pointers that external routers post; the built-in router calls the same code directly.

    POST /api/v1/dispatch/process/          body: the pointer, as it came from the queue
    200 {"ack": true}                       processed: acknowledge the pointer
    200 {"ack": false, "delaySeconds": 5}   not processed: post the pointer again after that time
    400, 401                                no pointer, or an invalid token: nothing was changed

If the router disconnects before the response, the attempt continues and its result is recorded.

The token in the pointer is the authorization; `Authorization: Bearer <token>` may replace the one in the body.
"""

from __future__ import annotations

import asyncio
import json

import structlog
from django.conf import settings
from django.db import DatabaseError
from django.http import HttpRequest, HttpResponse, JsonResponse
from django.views.decorators.csrf import csrf_exempt

from dispatch.core.api import problems
from dispatch.core.ids import read_id
from dispatch.outbox import processor
from dispatch.outbox.pointer import BadToken
from dispatch.outbox.services.attempts import PointerRefused

log = structlog.get_logger(__name__)

AGAIN_S = 5
# While the outbox is disabled, nothing is delivered.
OFF_S = 60
MAX_BODY_BYTES = 16_384
_in_progress: set[asyncio.Future[PointerRefused | None]] = set()


@csrf_exempt
async def process(request: HttpRequest) -> HttpResponse:
    """Process one pointer; the module's docstring describes the protocol."""
    if request.method != "POST":
        return problems.problem_response(405, "method_not_allowed", "Use POST.")
    pointer = _read_pointer(request)
    if pointer is None:
        return problems.problem_response(400, "parse_error", "The body is not a valid pointer.")
    if not settings.OUTBOX_ENABLED:
        return JsonResponse({"ack": False, "delaySeconds": OFF_S})
    work = asyncio.ensure_future(processor.shared_processor().process(*pointer))
    _in_progress.add(work)
    work.add_done_callback(_ended)
    message_id, _ = pointer
    try:
        refused = await asyncio.shield(work)
    except BadToken as error:
        log.warning("pointer_token_rejected", message=message_id, reason=str(error))
        return problems.problem_response(401, "not_authenticated", "The token is not valid for this message.")
    except DatabaseError as error:
        log.warning("pointer_deferred_database_unavailable", error=str(error).strip())
        return JsonResponse({"ack": False, "delaySeconds": AGAIN_S})
    return JsonResponse({"ack": True, "result": refused.name.lower() if refused else "called"})


def _ended(work: asyncio.Future[PointerRefused | None]) -> None:
    _in_progress.discard(work)
    if not work.cancelled():
        work.exception()  # `process` has handled it, unless the router disconnected


def _read_pointer(request: HttpRequest) -> tuple[str, str] | None:
    """Return (message id, token), or None if the request contains no valid message id."""
    if len(request.body) > MAX_BODY_BYTES:
        return None
    try:
        body = json.loads(request.body)
    except (ValueError, RecursionError):
        return None
    if not isinstance(body, dict):
        return None
    message_id, token = body.get("id"), body.get("authToken")
    scheme, _, bearer = request.headers.get("Authorization", "").partition(" ")
    if token is None and scheme.lower() == "bearer":
        token = bearer.strip()
    if not isinstance(message_id, str) or read_id(message_id) is None:
        return None
    return message_id, token if isinstance(token, str) else ""
