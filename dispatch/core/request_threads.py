"""HTTP requests in threads that stay.

Django answers a synchronous view from its event loop by going to a fresh thread and back for the middleware, for
the view and for the end of the request: more work than most of our answers are. Here such a request runs from its
first middleware to its end in one of a few threads. What is asynchronous is answered as Django does."""

from __future__ import annotations

import asyncio
import contextvars
from concurrent.futures import ThreadPoolExecutor
from typing import IO, Any

from asgiref.sync import iscoroutinefunction
from django.core import signals
from django.core.exceptions import RequestAborted
from django.core.handlers.asgi import ASGIHandler, get_script_prefix
from django.core.handlers.base import BaseHandler
from django.http import HttpResponseBase
from django.urls import Resolver404, resolve, set_script_prefix


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
        if scope["type"] != "http" or _is_asynchronous(scope["path"].removeprefix(get_script_prefix(scope))):
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


def _is_asynchronous(path: str) -> bool:
    try:
        return iscoroutinefunction(resolve(path).func)
    except Resolver404:
        return False
