"""Base of the console's views: access, and rendering of pages and fragments."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import wraps
from typing import Any
from urllib.parse import urlencode
from uuid import UUID

from django.core.exceptions import BadRequest
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.shortcuts import render, resolve_url
from django.urls import reverse
from django.utils.http import url_has_allowed_host_and_scheme

from accounts.models import Membership, Organization, User
from accounts.sso import sessions as sso
from accounts.tenancy import SESSION_KEY, NoOrganization, membership_context, user_of
from dispatch.console import health
from dispatch.console.menu import menu
from dispatch.core import clock, languages
from dispatch.core.api import idempotency
from dispatch.core.api.parsers import is_storable
from notifications import live_updates
from notifications.services import phone_confirmation

View = Callable[..., HttpResponse]
# How many organizations the menu lists for a superuser.
MAX_LISTED = 50


def console_view(view: View) -> View:
    """Require a signed-in dispatcher or admin with an organization.

    Other users are sent to the sign-in page or get an explanation. A link from outside names its organization
    (`?in=<slug>`); members of several organizations switch to it.
    """

    @wraps(view)
    def guarded(request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponse:
        if not isinstance(request.user, User):
            return to_sign_in(request)
        if any("\x00" in text for _, texts in request.POST.lists() for text in texts):
            raise BadRequest("A NUL character cannot be stored.")
        if (slug := request.GET.get("in")) and request.method == "GET" and _continue_in(request, slug):
            return HttpResponseRedirect(_without_in(request))
        if request.organization is None or request.role not in Membership.Role.values:
            return render_page(request, "console/nowhere.html", {}, status=403)
        answer = view(request, *args, **kwargs)
        answer.headers.setdefault("Cache-Control", "no-store")
        answer.headers.setdefault("Vary", "HX-Request")
        return answer

    return guarded


def _continue_in(request: HttpRequest, slug: str) -> bool:
    """Switch to the organization if the user is a member. Return whether it changed."""
    assert isinstance(request.user, User)
    if request.organization is not None and request.organization.slug == slug:
        return False
    chosen = find_organization(request.user, slug)
    if chosen is not None:
        request.session[SESSION_KEY] = chosen.pk
    return chosen is not None


def _without_in(request: HttpRequest) -> str:
    """Return this address without `?in=`."""
    query = request.GET.copy()
    del query["in"]
    return f"{request.path}?{query.urlencode()}" if query else request.path


def is_fragment(request: HttpRequest) -> bool:
    """Return whether htmx requests a part of the page. History navigation needs the whole page."""
    return request.headers.get("HX-Request") == "true" and "HX-History-Restore-Request" not in request.headers


def render_page(
    request: HttpRequest, template: str, context: dict[str, Any], *, status: int = 200
) -> HttpResponse:
    """Render a whole page with `context` and that of "console/base.html". `current` names its menu entry."""
    around: dict[str, Any] = {"menu": menu(request, context.get("current", "")), **_common(request)}
    if request.organization is not None:
        around["health"] = health.current_health(request.organization)
        around["phone_to_confirm"] = has_phone_to_confirm(request)
        around.setdefault("since", live_updates.update_floor(request.organization.pk))
    return render(request, template, {**around, **context}, status=status)


def has_phone_to_confirm(request: HttpRequest) -> bool:
    """Return whether the health bar asks the user to confirm their phone."""
    user = request.user
    return isinstance(user, User) and phone_confirmation.needs_confirmation(request.organization.pk, user)


def render_fragment(
    request: HttpRequest, template: str, context: dict[str, Any], *, status: int = 200
) -> HttpResponse:
    """Render a part of a page."""
    return render(request, template, {**_common(request), **context}, status=status)


def back_to(request: HttpRequest, address: str) -> HttpResponse:
    """Redirect, for htmx requests as well."""
    if is_fragment(request):
        return HttpResponse(status=204, headers={"HX-Redirect": address})
    return HttpResponseRedirect(address)


def with_note(answer: HttpResponse, text: str, tone: str = "good") -> HttpResponse:
    """Show a note ("Job #12: assigned.") on the page with this fragment."""
    return with_dom_events(answer, {"dispatch:note": {"text": text, "tone": tone}})


def with_dom_events(answer: HttpResponse, happened: dict[str, Any]) -> HttpResponse:
    """Trigger these DOM events on the page with this fragment."""
    answer["HX-Trigger"] = json.dumps(happened)
    return answer


class InvalidForm(Exception):
    """Raised in what runs once per form, to show the form again with its errors."""


def run_once(request: HttpRequest, endpoint: str, entered: Any, make: Callable[[], int]) -> None:
    """Run `make`, which returns the id of what it made, for the `nonce` of a form.

    A form that is sent again, such as after a lost reply, makes one thing. With other `entered` values, it counts
    as another form.
    """
    try:
        key = f"{UUID(request.POST.get('nonce', ''))}:{idempotency.body_hash(entered)}"
    except ValueError:  # a page of an earlier release has none
        key = ""
    endpoint = f"{endpoint}/{user_of(request).pk}"
    idempotency.run_once(request.organization.pk, endpoint, key, entered, lambda: (201, {"id": make()}))


def return_url(request: HttpRequest) -> str:
    """Return the URL of the page that sent the form if it is on this host, else the board."""
    address = request.headers.get("Referer", "")
    ours = url_has_allowed_host_and_scheme(address, {request.get_host()}, require_https=request.is_secure())
    return address if ours else reverse("home")


def find_organization(user: User, slug: str) -> Organization | None:
    """Return the organization with this slug if the user may work in it."""
    if not slug or not is_storable(slug):
        return None
    try:
        return membership_context(user, slug).organization
    except NoOrganization:
        return None


def organizations_of(user: User) -> list[Organization]:
    """Return the organizations in which the user may work, by name; for a superuser, the first MAX_LISTED."""
    if user.is_superuser:
        return list(Organization.objects.filter(is_active=True).order_by("name")[:MAX_LISTED])
    return sorted(
        (membership.organization for membership in user.active_memberships),
        key=lambda organization: organization.name.casefold(),
    )


def _common(request: HttpRequest) -> dict[str, Any]:
    assert isinstance(request.user, User)
    if request.organization is None:
        return {"now": clock.now(), "organizations": organizations_of(request.user)}
    return {
        "now": clock.now(),
        "own_names": languages.OWN_NAMES if sso.may_change_account(request) else (),
        "zone": request.organization.time_zone,
        "unit": request.organization.distance_unit,
        "organizations": organizations_of(request.user),
    }


def to_sign_in(request: HttpRequest) -> HttpResponse:
    """Redirect to the sign-in page, which leads back here afterwards."""
    here = request.get_full_path() if request.method == "GET" and not is_fragment(request) else reverse("home")
    address = f"{resolve_url('admin:login')}?{urlencode({'next': here})}"
    return back_to(request, address)
