"""The language of a person's pages, and the middleware that activates it."""

from __future__ import annotations

from collections.abc import Callable

from django.http import HttpRequest, HttpResponse

from accounts.auth.authentication import has_credentials
from accounts.models import User
from dispatch.core import languages


class LanguageMiddleware:
    """Activate the language of the signed-in person, or the browser's, and set `request.language`.

    Requests with an API key stay in English.
    """

    def __init__(self, get_response: Callable[[HttpRequest], HttpResponse]) -> None:
        self.get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponse:
        is_of_program = request.path_info.startswith("/api/") and has_credentials(request)
        request.language = languages.DEFAULT if is_of_program else language_of(request)
        with languages.override(request.language):
            return self.get_response(request)


def language_of(request: HttpRequest) -> str:
    """Return the language of the pages for this request.

    That is the person's choice, else the first of the browser's that Dispatch has, else the organization's.
    """
    chosen = request.user.language if isinstance(request.user, User) else ""
    if chosen in languages.CODES:
        return chosen
    if accepted := languages.accepted_language(request.headers.get("Accept-Language", "")):
        return accepted
    organization = getattr(request, "organization", None)
    return organization.language if organization else languages.DEFAULT
