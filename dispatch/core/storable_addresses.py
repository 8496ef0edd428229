"""Addresses of pages that hold what no column can."""

from __future__ import annotations

from collections.abc import Callable

from django.core.exceptions import BadRequest
from django.http import HttpRequest, HttpResponse


class StorableAddressMiddleware:
    """Refuses a page whose query holds a NUL character, with 400: PostgreSQL can neither store nor compare it, so
    that a search or filter by it would fail. The API names the field itself."""

    def __init__(self, get_response: Callable[[HttpRequest], HttpResponse]) -> None:
        self.get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponse:
        if "%00" in request.META["QUERY_STRING"] and not request.path_info.startswith("/api/"):
            raise BadRequest("A NUL character can be neither stored nor searched for.")
        return self.get_response(request)
