"""Send a Content-Security-Policy with every response: scripts come from this site's files only."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from django.http import HttpRequest, HttpResponse

HEADER = "Content-Security-Policy"


def content_policy(images: Iterable[str] = ()) -> str:
    """Return the policy. `images` are sources of pictures that are allowed besides this site's files.

    Styles may be inline: the pages set widths and heights of charts in `style` attributes.
    """
    pictures = " ".join(["'self'", "data:", *images])
    return (
        f"default-src 'self'; script-src 'self'; style-src 'self' 'unsafe-inline'; img-src {pictures}; "
        "worker-src 'self'; object-src 'none'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'"
    )


POLICY = content_policy()


class ContentPolicyMiddleware:
    """Set the policy on responses whose view set none."""

    def __init__(self, get_response: Callable[[HttpRequest], HttpResponse]) -> None:
        self._get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponse:
        response = self._get_response(request)
        response.headers.setdefault(HEADER, POLICY)
        return response
