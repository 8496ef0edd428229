"""Open a portal link, and decorate the portal's views: session cookie, rate limits, headers.

The cookie is limited to the path of its portal, so one browser can hold several. The CSRF check applies to every
form. A link is opened by a button and not by following it, because mail scanners follow links.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

from django.conf import settings
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.shortcuts import render
from django.urls import reverse
from django.utils.cache import add_never_cache_headers
from django.views.decorators.http import require_http_methods

from accounts.auth import throttling
from dispatch.core.web.client_addresses import limit_key
from dispatch.jobs.public.common import reject_nul
from dispatch.outbox.services import portal

COOKIE = "dispatch_portal"
READS, WRITES = throttling.parse_rate("120/min"), throttling.parse_rate("20/min")
# By address: attempts to open links and requests without a session.
STRANGERS = throttling.parse_rate("30/min")


@require_http_methods(["GET", "HEAD", "POST"])
def open_portal(request: HttpRequest, uid: str, code: str) -> HttpResponse:
    """Show the button that opens the link; open it by POST."""
    if limited := _limit(request, f"portal-strangers:{limit_key(request)}", STRANGERS):
        return limited
    try:
        if request.method != "POST":
            link = portal.find_link(uid, code)
            return _secure(render(request, "portal/open.html", {"link": link, "organization": link.organization}))
        link, key = portal.open_link(uid, code)
    except portal.InvalidPortalLink:
        return _closed(request)
    home = reverse("portal:home", args=[uid])
    response = HttpResponseRedirect(home)
    response.set_cookie(
        COOKIE, key, max_age=link.session_s, path=home, httponly=True, samesite="Lax",
        secure=settings.SESSION_COOKIE_SECURE,
    )  # fmt: skip
    return _secure(response)


def portal_view(view: Callable[..., HttpResponse]) -> Callable[..., HttpResponse]:
    """Decorate a view to receive the link of the session instead of its `uid`. POSTs need more than read-only."""

    @wraps(view)
    def page(request: HttpRequest, uid: str, *args: Any, **kwargs: Any) -> HttpResponse:
        try:
            link = portal.session_of(uid, request.COOKIES.get(COOKIE, ""))
        except portal.InvalidPortalLink:
            limited = _limit(request, f"portal-strangers:{limit_key(request)}", STRANGERS)
            return limited or _closed(request)
        is_write = request.method == "POST"
        if limited := _limit(request, f"portal:{link.pk}:{is_write:d}", WRITES if is_write else READS):
            return limited
        reject_nul(request)
        if is_write and link.is_read_only:
            return _secure(render(request, "portal/closed.html", {"is_read_only": True}, status=403))
        return _secure(view(request, link, *args, **kwargs))

    return page


def _limit(request: HttpRequest, name: str, rate: throttling.Rate) -> HttpResponse | None:
    """Return a 429 if the rate is exceeded."""
    taken = throttling.take_token(name, rate)
    if not taken.wait_ms:
        return None
    response = render(request, "portal/closed.html", {"is_limited": True}, status=429)
    response["Retry-After"] = str(-(-taken.wait_ms // 1000))
    return _secure(response)


def _closed(request: HttpRequest) -> HttpResponse:
    return _secure(render(request, "portal/closed.html", {}, status=403))


def _secure(response: HttpResponse) -> HttpResponse:
    add_never_cache_headers(response)
    response["Cache-Control"] = "no-store, private"
    response["X-Robots-Tag"] = "noindex, nofollow"
    response["Content-Security-Policy"] = (
        "default-src 'none'; style-src 'self'; img-src 'self' data:; form-action 'self'; base-uri 'none'; "
        "frame-ancestors 'none'"
    )
    return response
