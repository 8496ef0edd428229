"""HTTP requests in threads that stay.

Django answers a synchronous view from its event loop by going to a fresh thread and back for the middleware, for
the view and for the end of the request: more work than most of our answers are. Here such a request runs from its
first middleware to its end in one of a few threads. What is asynchronous is answered as Django does."""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property
from typing import IO, Any

from asgiref.sync import iscoroutinefunction
from django.core import signals
from django.core.exceptions import RequestAborted
from django.core.handlers.asgi import ASGIHandler, get_script_prefix
from django.core.handlers.base import BaseHandler
from django.http import HttpResponseBase
from django.urls import URLResolver, get_resolver, set_script_prefix


class RequestThreads(ASGIHandler):
    """The ASGI application of the project's URLs, its synchronous views in `threads` threads. More requests than
    that wait for their turn, first come, first served."""

    def __init__(self, threads: int) -> None:
        BaseHandler.__init__(self)
        self.load_middleware(is_async=False)
        self._asynchronous = ASGIHandler()
        self._threads = ThreadPoolExecutor(threads, thread_name_prefix="request")

    async def __call__(self, scope: dict[str, Any], receive: Any, send: Any) -> None:
        """Answers one HTTP request. A client that leaves is noticed when the answer is sent."""
        if scope["type"] != "http" or self._is_asynchronous(scope):
            await self._asynchronous(scope, receive, send)
            return
        try:
            body = await self.read_body(receive)
        except RequestAborted:
            return
        run = contextvars.copy_context().run  # each request has its own, as its own thread would
        loop = asyncio.get_running_loop()
        try:
            response = await loop.run_in_executor(self._threads, run, self._answer, scope, body)
            try:
                await self.send_response(response, send)
            finally:
                if response.streaming:
                    await loop.run_in_executor(self._threads, run, response.close)
        finally:
            body.close()

    def _answer(self, scope: dict[str, Any], body: IO[bytes]) -> HttpResponseBase:
        """From beginning to end, but for what a streaming answer still has to say."""
        set_script_prefix(get_script_prefix(scope))
        signals.request_started.send(sender=self.__class__, scope=scope)
        request, refused = self.create_request(scope, body)
        response: Any = refused if request is None else self.get_response(request)
        response._handler_class = self.__class__
        if not response.streaming:
            response.close()
        return response

    def _is_asynchronous(self, scope: dict[str, Any]) -> bool:
        """Whether the path may lead to an asynchronous view. Only the few routes to such are compared: Django
        looks through all that there are when it answers, and once is enough."""
        path = scope["path"].removeprefix(get_script_prefix(scope))
        return any(_leads_along(route, path) for route in self._asynchronous_routes)

    @cached_property
    def _asynchronous_routes(self) -> list[_Route]:
        return list(_asynchronous(get_resolver()))


# The patterns of the resolvers from the root on, and of the view.
_Route = tuple[Any, ...]


def _asynchronous(resolver: URLResolver, before: _Route = ()) -> Iterator[_Route]:
    route = (*before, resolver.pattern)
    for entry in resolver.url_patterns:
        if isinstance(entry, URLResolver):
            yield from _asynchronous(entry, route)
        elif iscoroutinefunction(entry.callback):
            yield (*route, entry.pattern)


def _leads_along(route: _Route, path: str) -> bool:
    for pattern in route:
        match = pattern.match(path)
        if match is None:
            return False
        path = match[0]
    return True
