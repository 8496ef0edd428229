"""Handle the requests of machines that have no session: few middlewares, and the routes of one module.

Sessions, users, CSRF tokens, messages and the policies of pages mean nothing to a phone provider, but take longer
than reading its webhook. Views, signals and error responses are the same as for any other request.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from io import BytesIO
from typing import Any

from django.core.handlers.asgi import ASGIHandler
from django.core.handlers.base import BaseHandler
from django.core.handlers.exception import convert_exception_to_response
from django.http import HttpRequest, HttpResponse
from django.urls import Resolver404, ResolverMatch, URLResolver
from django.urls.resolvers import RegexPattern
from django.utils.module_loading import import_string

# The headers of a request that its middlewares may look at.
_LOOKED_AT = (b"host", b"user-agent", b"x-forwarded-proto", b"x-forwarded-host", b"x-forwarded-port")
_MAX_CACHED = 500


class BareHandler(ASGIHandler):
    """Handles requests below `prefix`, such as /telephony/, that match a route of the module `urlconf`.

    `middleware`: the names of the only middlewares that these requests pass. The routes belong to ROOT_URLCONF as
    well, which resolves names, and serves whatever this handler does not match.
    """

    def __init__(self, prefix: str, urlconf: str, middleware: Sequence[str]) -> None:
        BaseHandler.__init__(self)
        self._prefix, self._names = prefix, tuple(middleware)
        self._routes = URLResolver(RegexPattern(rf"^{prefix}"), urlconf)
        self.load_middleware(is_async=False)
        self._around_nothing = self._chain(lambda _request: HttpResponse(status=204))
        self._headers: dict[tuple[bytes, ...], list[tuple[bytes, bytes]] | None] = {}

    def load_middleware(self, is_async: bool = False) -> None:
        """Load the middlewares of this handler, as Django loads those of the settings."""
        handler: Any = self
        handler._view_middleware, handler._template_response_middleware = [], []
        handler._exception_middleware = []
        handler._middleware_chain = self._chain(handler._get_response)

    def _chain(self, inner: Callable[[HttpRequest], Any]) -> Callable[[HttpRequest], Any]:
        chain: Any = convert_exception_to_response(inner)
        for name in reversed(self._names):
            chain = convert_exception_to_response(import_string(name)(chain))
        return chain

    def headers_around(self, scope: dict[str, Any]) -> list[tuple[bytes, bytes]] | None:
        """Return the headers that the middlewares add to the response of such a request, without its X-Request-ID.

        For ASGI routes that answer without a request of Django. The middlewares run once for each combination of
        what they look at. Return None if they answer for themselves, for example because of an unknown host.
        """
        looked_at = {name: value for name, value in scope["headers"] if name in _LOOKED_AT}
        key = (scope.get("scheme", "http").encode(), *(looked_at.get(name, b"") for name in _LOOKED_AT))
        if key not in self._headers:
            if len(self._headers) >= _MAX_CACHED:
                self._headers.clear()
            request, _ = self.create_request({**scope, "headers": list(looked_at.items())}, BytesIO())
            response = None if request is None else self._around_nothing(request)
            self._headers[key] = (
                None
                if response is None or response.status_code != 204
                else [
                    (name.encode("ascii"), value.encode("latin1"))
                    for name, value in response.items()
                    if name not in ("X-Request-ID", "Content-Type", "Content-Length")
                ]
            )
        return self._headers[key]

    def handles(self, request: HttpRequest) -> bool:
        """Return whether the request is one of this handler's; if so, its view is resolved."""
        if not request.path_info.startswith(self._prefix):
            return False
        try:
            request.resolver_match = self._routes.resolve(request.path_info)
        except Resolver404:
            return False
        return True

    def resolve_request(self, request: HttpRequest) -> ResolverMatch:
        """Return the view that `handles` has resolved."""
        assert request.resolver_match is not None
        return request.resolver_match
