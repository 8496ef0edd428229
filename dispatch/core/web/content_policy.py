"""Send a Content-Security-Policy with every response: scripts come from this site's files only."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from django.conf import settings
from django.http import HttpRequest, HttpResponse

HEADER = "Content-Security-Policy"
# The admin's theme (django-unfold) is built on Alpine, which compiles the expressions in its templates.
ALPINE = "'unsafe-eval'"


def content_policy(scripts: Iterable[str] = (), images: Iterable[str] = ()) -> str:
    """Return the policy. `scripts` and `images` are sources that are allowed besides this site's files.

    Styles may be inline: the pages set widths and heights of charts in `style` attributes.
    """
    sources = " ".join(["'self'", *scripts])
    pictures = " ".join(["'self'", "data:", *images])
    return (
        f"default-src 'self'; script-src {sources}; style-src 'self' 'unsafe-inline'; "
        f"img-src {pictures}; object-src 'none'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'"
    )


class ContentPolicyMiddleware:
    """Set the policy on responses whose view set none. Paths in ALPINE_PATHS may use Alpine."""

    def __init__(self, get_response: Callable[[HttpRequest], HttpResponse]) -> None:
        self._get_response = get_response
        self._strict, self._alpine = content_policy(), content_policy([ALPINE])
        self._alpine_paths = tuple(settings.ALPINE_PATHS)

    def __call__(self, request: HttpRequest) -> HttpResponse:
        response = self._get_response(request)
        if HEADER not in response:
            uses_alpine = request.path.startswith(self._alpine_paths)
            response[HEADER] = self._alpine if uses_alpine else self._strict
        return response
