"""What these pages share: who asks, how often they may guess, and the headers of their answers."""

from __future__ import annotations

import ipaddress
from collections.abc import Callable
from functools import wraps
from typing import Any

from django.conf import settings
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.utils.cache import add_never_cache_headers
from django.views.decorators.csrf import csrf_exempt
from django.views.decorators.http import require_http_methods

from accounts import throttling
from dispatch.jobs.links import BadLink

_POLICY = (
    "default-src 'none'; style-src 'self'; script-src 'self'; connect-src 'self'; img-src 'self' data:; "
    "form-action 'self'; base-uri 'none'; frame-ancestors {frames}"
)


def address_of(request: HttpRequest) -> str:
    """Who asks, for counting: an address, or the /64 of an IPv6 one, of which everybody has plenty."""
    given = request.META.get("REMOTE_ADDR") or ""
    try:
        address = ipaddress.ip_address(given)
    except ValueError:
        return "unknown"
    if address.version == 4:
        return str(address)
    return str(ipaddress.ip_network((address, 64), strict=False).network_address)


def signed(read: Callable[[str], Any]) -> Callable[[Callable[..., HttpResponse]], Callable[..., HttpResponse]]:
    """Decorator: the view gets the row that its link stands for. Whoever guesses links is soon told to wait.

    Exempt from the CSRF check: there is no session, the link in the address is all the authority, and it does not
    travel by itself as a cookie does."""

    def decorate(view: Callable[..., HttpResponse]) -> Callable[..., HttpResponse]:
        @csrf_exempt
        @require_http_methods(["GET", "HEAD", "POST"])
        @wraps(view)
        def page(request: HttpRequest, token: str) -> HttpResponse:
            try:
                row = read(token)
            except BadLink as bad:
                return _no_page(request, bad)
            return private(view(request, row))

        return page

    return decorate


def private(response: HttpResponse, *, frames: str = "'none'") -> HttpResponse:
    """Not to be kept, indexed, or told to others; framed by nobody unless `frames` says by whom."""
    add_never_cache_headers(response)
    response["Content-Security-Policy"] = _POLICY.format(frames=frames)
    response["Referrer-Policy"] = "no-referrer"
    response["X-Robots-Tag"] = "noindex, nofollow"
    return response


def _no_page(request: HttpRequest, bad: BadLink) -> HttpResponse:
    if not bad.expired:
        taken = throttling.take(f"link:{address_of(request)}", throttling.parse(settings.LINK_GUESS_RATE))
        if taken.wait_ms:
            response = render(request, "pages/wait.html", {"minutes": 1}, status=429)
            response["Retry-After"] = str(-(-taken.wait_ms // 1000))
            return private(response)
    status = 410 if bad.expired else 404
    return private(render(request, "pages/gone.html", {"expired": bad.expired}, status=status))
