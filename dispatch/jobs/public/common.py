"""Share parts of the public pages: client address, rate limit on guessed links, response headers."""

from __future__ import annotations

import ipaddress
from collections.abc import Callable, Mapping
from functools import wraps
from typing import Any

from django.conf import settings
from django.core.exceptions import BadRequest
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.utils.cache import add_never_cache_headers
from django.views.decorators.csrf import csrf_exempt
from django.views.decorators.http import require_http_methods

from accounts.auth import throttling
from dispatch.core import languages
from dispatch.core.web.client_addresses import limit_key, read_address
from dispatch.jobs.signed_links import InvalidLink

_POLICY = (
    "default-src 'none'; style-src 'self'; script-src 'self'; connect-src 'self'; img-src 'self' data:; "
    "manifest-src 'self'; worker-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors {frames}"
)

# By version of IP: prefix of a network, and how many times the rate of one address it has.
NETWORKS = {4: ((24, 4),), 6: ((56, 2), (48, 4))}


def limits_of_networks(request: HttpRequest, rate: throttling.Rate) -> list[tuple[str, throttling.Rate]]:
    """Return the rate limits by the client's address and by the networks that one customer of a provider may hold.

    A provider gives one customer a /56 or /48 of IPv6, or some neighboring IPv4 addresses.
    """
    limits = [(limit_key(request), rate)]
    address = read_address(request)
    if address is None:
        return limits
    for prefix, factor in NETWORKS[address.version]:
        network = ipaddress.ip_network((address, prefix), strict=False)
        limits.append((str(network), throttling.Rate(rate.limit * factor, rate.period_s)))
    return limits


def with_signed_link(
    read: Callable[[str], Any], language_of: Callable[[Any], str], *, gone: str = "pages/gone.html"
) -> Callable[[Callable[..., HttpResponse]], Callable[..., HttpResponse]]:
    """Decorate a view to receive the row that its signed link refers to. Guessing links is rate limited.

    The page is in the language that `language_of` returns for the row; if that is empty, in the request's. `gone`:
    the template for a link that is not valid.

    The view is exempt from the CSRF check because there is no session: the link in the URL is the only credential,
    and browsers don't send it automatically as they send a cookie.
    """

    def decorate(view: Callable[..., HttpResponse]) -> Callable[..., HttpResponse]:
        @csrf_exempt
        @require_http_methods(["GET", "HEAD", "POST"])
        @wraps(view)
        def page(request: HttpRequest, token: str) -> HttpResponse:
            try:
                row = read(token)
            except InvalidLink as error:
                return _no_page(request, error, gone)
            reject_nul(request)
            language = language_of(row) or requested_language(request, row.organization.language)
            with languages.override(language):
                return without_caching(view(request, row))

        return page

    return decorate


def requested_language(request: HttpRequest, default: str) -> str:
    """Return the language of a page: of the switch (`?lang=es`), else the browser's, else `default`."""
    chosen = request.GET.get("lang", "")
    if chosen in languages.CODES:
        return chosen
    return languages.accepted_language(request.headers.get("Accept-Language", "")) or default


def language_choices() -> list[dict[str, Any]]:
    """Return the languages for the switch, each in its own words."""
    active = languages.active()
    return [{"code": code, "name": name, "is_active": code == active} for code, name in languages.OWN_NAMES]


def choose_words(words: str, otherwise: str) -> str:
    """Return the words of a service, which are in English, or on a page in another language `otherwise`."""
    return words if languages.is_english() else otherwise


def confirmation_of(request: HttpRequest, confirmations: Mapping[str, str]) -> str:
    """Return the translated confirmation that the code `said` of the URL names, or an empty string."""
    words = confirmations.get(request.GET.get("said", ""))
    return languages.gettext(words) if words else ""


def reject_nul(request: HttpRequest) -> None:
    """Raise BadRequest (400) if a form field contains a NUL character, which PostgreSQL can't store."""
    if any("\x00" in text for _, texts in request.POST.lists() for text in texts):
        raise BadRequest("NUL characters can't be stored.")


def without_caching(response: HttpResponse, *, frames: str = "'none'") -> HttpResponse:
    """Set the headers against caching, indexing and referrers. Only the origins in `frames` may embed the page."""
    add_never_cache_headers(response)
    response["Content-Security-Policy"] = _POLICY.format(frames=frames)
    response["Referrer-Policy"] = "same-origin"
    response["X-Robots-Tag"] = "noindex, nofollow"
    return response


def _no_page(request: HttpRequest, error: InvalidLink, template: str) -> HttpResponse:
    if not error.expired:
        taken = throttling.take_token(
            f"link:{limit_key(request)}", throttling.parse_rate(settings.LINK_GUESS_RATE)
        )
        if taken.wait_ms:
            response = _render_error(request, "pages/wait.html", {"minutes": 1}, 429)
            response["Retry-After"] = str(-(-taken.wait_ms // 1000))
            return response
    return _render_error(request, template, {"expired": error.expired}, 410 if error.expired else 404)


def _render_error(request: HttpRequest, template: str, context: dict[str, Any], status: int) -> HttpResponse:
    """Render a page of no organization, in the browser's language."""
    with languages.override(requested_language(request, languages.DEFAULT)):
        return without_caching(render(request, template, context, status=status))
