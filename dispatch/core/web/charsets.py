"""Refuse bodies in unusual charsets before anything is decoded.

Django decodes forms, and Django REST framework JSON, with any codec of Python that the Content-Type names. Some
take time that grows with the square of the length (punycode), some are no text encodings (hex, zlib), and in some
the brackets and commas that limits count have other bytes (cp037, utf-7). All of that comes before sign-in and
rate limits.
"""

from __future__ import annotations

import codecs
import json
from collections.abc import Awaitable, Callable
from typing import Any

from django.utils.http import parse_header_parameters

from dispatch.core.api import problems

Scope = dict[str, Any]
Receive = Callable[[], Awaitable[dict[str, Any]]]
Send = Callable[[dict[str, Any]], Awaitable[None]]
Application = Callable[[Scope, Receive, Send], Awaitable[None]]

# By the names of Python's codecs. In each, ASCII has its own bytes. An unknown name counts as UTF-8, as in Django.
ACCEPTED = frozenset({"utf-8", "ascii", "iso8859-1", "cp1252"})
# The time to parse a Content-Type grows with the square of its length: 64 KiB take seconds.
MAX_CONTENT_TYPE_LENGTH = 1000
_TOO_LONG = f"The Content-Type is longer than {MAX_CONTENT_TYPE_LENGTH} characters."
_NOT_ACCEPTED = "The Content-Type names a charset that is not accepted. Send the body in UTF-8."


class CharsetMiddleware:
    """Answer 415 to a request whose Content-Type names a charset that is not in ACCEPTED, or is too long."""

    def __init__(self, application: Application) -> None:
        self._application = application

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        problem = _content_type_problem(scope) if scope["type"] == "http" else ""
        if not problem:
            await self._application(scope, receive, send)
            return
        content = json.dumps(problems.problem_body(415, "unsupported_media_type", detail=problem)).encode()
        headers = [
            (b"content-type", problems.CONTENT_TYPE.encode()),
            (b"content-length", str(len(content)).encode()),
            (b"connection", b"close"),  # the rest of the body is not read
        ]
        await send({"type": "http.response.start", "status": 415, "headers": headers})
        await send({"type": "http.response.body", "body": b"" if scope["method"] == "HEAD" else content})


def _content_type_problem(scope: Scope) -> str:
    """Return why Django must not parse the Content-Type or decode the body, or "" if it may.

    The headers are read as Django reads them. Encoded parameters (RFC 2231: `name*=charset''value`) are refused,
    because each names a charset for itself.
    """
    text = ",".join(value.decode("latin1") for name, value in scope["headers"] if name == b"content-type")
    if len(text) > MAX_CONTENT_TYPE_LENGTH:
        return _TOO_LONG
    if ";" not in text:
        return ""
    if "*" in text.partition(";")[2]:
        return _NOT_ACCEPTED
    charset = parse_header_parameters(text)[1].get("charset")
    if charset is None:
        return ""
    try:
        return "" if codecs.lookup(charset).name in ACCEPTED else _NOT_ACCEPTED
    except LookupError:
        return ""
