"""Handle the requests of machines that have no session: few middlewares, and the routes of one module.

Sessions, users, CSRF tokens, messages and the policies of pages mean nothing to a phone provider, but take longer
than reading its webhook. Views, signals and error responses are the same as for any other request.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from django.core.handlers.asgi import ASGIHandler
from django.core.handlers.base import BaseHandler
from django.core.handlers.exception import convert_exception_to_response
from django.http import HttpRequest
from django.urls import Resolver404, ResolverMatch, URLResolver
from django.urls.resolvers import RegexPattern
from django.utils.module_loading import import_string


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

    def load_middleware(self, is_async: bool = False) -> None:
        """Load the middlewares of this handler, as Django loads those of the settings."""
        handler: Any = self
        handler._view_middleware, handler._template_response_middleware = [], []
        handler._exception_middleware = []
        chain = convert_exception_to_response(handler._get_response)
        for name in reversed(self._names):
            chain = convert_exception_to_response(import_string(name)(chain))
        handler._middleware_chain = chain

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
